// Latency, rates and costs on one connection at a time.
#include <mellanox/vma_extra.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/measures.h"

namespace ringsock::bench {

namespace {

constexpr std::size_t kSmall = 64;
constexpr std::size_t kLarge = 64 << 10;
constexpr double kSeconds = 0.4;  // of one run
constexpr int kBatch = 256;       // operations between looks at the clock

using SmallMessage = std::array<char, kSmall>;

void receive_spinning(const Party& party, int socket, SmallMessage& message) {
  for (std::size_t have = 0; have < message.size();) {
    const ssize_t got = party.calls.recv(socket, message.data() + have, message.size() - have, MSG_DONTWAIT);
    if (got > 0) have += static_cast<std::size_t>(got);
    if (got == 0) _exit(0);
  }
}

void echo(const Party& party, int socket, Waiting waiting) {
  SmallMessage message;
  for (;;) {
    if (waiting == Waiting::spinning) {
      receive_spinning(party, socket, message);
    } else if (!party.receive_all(socket, message.data(), message.size())) {
      return;
    }
    party.send_all(socket, message.data(), message.size());
  }
}

void round_trip(const Party& party, int socket, Waiting waiting) {
  SmallMessage message{};
  party.send_all(socket, message.data(), message.size());
  if (waiting == Waiting::spinning) {
    receive_spinning(party, socket, message);
  } else if (!party.receive_all(socket, message.data(), message.size())) {
    party.fail("recv: early end");
  }
}

/// Round trips per second.
double drive_ping_pong(const Party& party, int socket, Waiting waiting) {
  for (int i = 0; i < kBatch; ++i) round_trip(party, socket, waiting);
  const auto start = Clock::now();
  long done = 0;
  do {
    for (int i = 0; i < kBatch; ++i) round_trip(party, socket, waiting);
    done += kBatch;
  } while (seconds_since(start) < kSeconds);
  return static_cast<double>(done) / seconds_since(start);
}

/// Reads to the end of the stream, then says with one byte that it has everything.
void drain(const Party& party, int socket, std::size_t message_bytes) {
  std::vector<char> buffer(message_bytes);
  while (party.calls.recv(socket, buffer.data(), buffer.size(), 0) > 0) {
  }
  party.send_all(socket, "!", 1);
}

/// Messages per second, until the receiver has the last of them.
double drive_stream(const Party& party, int socket, std::size_t message_bytes) {
  const std::vector<char> message(message_bytes, 'x');
  const int batch = message_bytes > kSmall ? 16 : kBatch;
  const auto start = Clock::now();
  long done = 0;
  do {
    for (int i = 0; i < batch; ++i) party.send_all(socket, message.data(), message.size());
    done += batch;
  } while (seconds_since(start) < kSeconds);
  party.calls.shutdown(socket, SHUT_WR);
  char all_there;
  party.receive_all(socket, &all_there, 1);
  return static_cast<double>(done) / seconds_since(start);
}

Figure run_stream(const Calls& calls, std::size_t message_bytes) {
  return run_connected(
      calls, [&](const Party& party, int socket) { drain(party, socket, message_bytes); },
      [&](const Party& party, int socket) { return drive_stream(party, socket, message_bytes); });
}

void allow_iomap(const Party& party, int socket) {
  const int entries = 1;
  if (party.calls.setsockopt(socket, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof entries) != 0)
    party.fail("RDMA_IOMAPSIZE");
}

double cpu_seconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// Narrows this process, and what it forks, to two CPUs; the earlier set comes back at the end of its life.
class OnTwoCpus {
 public:
  OnTwoCpus() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t two;
    CPU_ZERO(&two);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++cpu) {
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &two);
    }
    sched_setaffinity(0, sizeof two, &two);
  }
  OnTwoCpus(const OnTwoCpus&) = delete;
  ~OnTwoCpus() { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_;
};

}  // namespace

Figure ping_pong_us(const Calls& calls, Waiting waiting) {
  const Figure rate = run_connected(
      calls, [&](const Party& party, int socket) { echo(party, socket, waiting); },
      [&](const Party& party, int socket) { return drive_ping_pong(party, socket, waiting); });
  if (!rate) return std::nullopt;
  return 1e6 / *rate / 2;
}

Figure messages_per_second(const Calls& calls) { return run_stream(calls, kSmall); }

Figure stream_gb_per_second(const Calls& calls) {
  const Figure rate = run_stream(calls, kLarge);
  if (!rate) return std::nullopt;
  return *rate * kLarge / 1e9;
}

namespace {

vma_api_t* extra_api() {
  vma_api_t* table = nullptr;
  socklen_t length = sizeof table;
  return rgetsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &table, &length) == 0 ? table : nullptr;
}

/// As drain(), by packets that lie in the ring.
void drain_without_copies(const Party& party, int socket) {
  vma_api_t* const api = extra_api();
  if (api == nullptr) party.fail("SO_VMA_GET_API");
  std::array<char, 1024> room;
  for (;;) {
    int flags = MSG_VMA_ZCOPY_FORCE;
    if (api->recvfrom_zcopy(socket, room.data(), room.size(), &flags, nullptr, nullptr) <= 0) break;
    auto* const list = reinterpret_cast<vma_packets_t*>(room.data());
    if (api->free_packets(socket, list->pkts, list->n_packet_num) != 0) party.fail("free_packets");
  }
  party.send_all(socket, "!", 1);
}

}  // namespace

Figure zero_copy_gb_per_second() {
  const Figure rate = run_connected(kRing, drain_without_copies,
                                    [](const Party& party, int socket) { return drive_stream(party, socket, kLarge); });
  if (!rate) return std::nullopt;
  return *rate * kLarge / 1e9;
}

/// Of processes that are started from now on.
class Sharing {
 public:
  explicit Sharing(bool wanted) {
    if (::mkdtemp(directory_) == nullptr) return;
    file_ = std::string(directory_) + "/iomap_share";
    if (std::FILE* file = std::fopen(file_.c_str(), "we")) {
      std::fputs(wanted ? "1\n" : "0\n", file);
      std::fclose(file);
    }
    ::setenv("RINGSOCK_CONFIG_DIR", directory_, 1);
  }
  Sharing(const Sharing&) = delete;
  ~Sharing() {
    ::unsetenv("RINGSOCK_CONFIG_DIR");
    ::unlink(file_.c_str());
    ::rmdir(directory_);
  }

 private:
  char directory_[32] = "/tmp/rsocket_bench.XXXXXX";
  std::string file_;
};

Figure riowrite_gb_per_second(bool shared) {
  const Sharing sharing(shared);
  const auto server = [](const Party& party) {
    const int listener = party.listen_anywhere();
    allow_iomap(party, listener);
    const int socket = party.accept_one(listener);
    std::vector<char> target(kLarge);
    const off_t offset = riomap(socket, target.data(), target.size(), PROT_WRITE, 0, 0);
    if (offset < 0) party.fail("riomap");
    party.send_all(socket, "m", 1);  // the mapping travels ahead of this byte
    char done;
    party.receive_all(socket, &done, 1);
    if (target.back() != 'x') party.fail("riowrite: nothing arrived");
    party.send_all(socket, "!", 1);
    party.receive_all(socket, &done, 1);
    riounmap(socket, target.data(), target.size());
    party.calls.close(socket);
    return 0.0;
  };
  const auto client = [](const Party& party, std::uint16_t port) {
    const int socket = party.connect_to(port, [&](int fresh) { allow_iomap(party, fresh); });
    char byte;
    party.receive_all(socket, &byte, 1);
    const std::vector<char> source(kLarge, 'x');
    const auto start = Clock::now();
    long done = 0;
    do {
      for (int i = 0; i < 16; ++i) {
        if (riowrite(socket, source.data(), source.size(), 0, 0) != source.size()) party.fail("riowrite");
      }
      done += 16;
    } while (seconds_since(start) < kSeconds);
    party.send_all(socket, "d", 1);
    party.receive_all(socket, &byte, 1);
    const double rate = static_cast<double>(done) / seconds_since(start);
    party.calls.close(socket);
    return rate * kLarge / 1e9;
  };
  return run_processes(kRing, server, client);
}

Figure connections_per_second(const Calls& calls) {
  const auto server = [](const Party& party) {
    const int listener = party.listen_anywhere();
    for (char byte = 0; byte != 'q';) {
      const int socket = party.accept_one(listener);
      party.receive_all(socket, &byte, 1);
      party.send_all(socket, &byte, 1);
      party.calls.close(socket);
    }
    party.calls.close(listener);
    return 0.0;
  };
  const auto client = [](const Party& party, std::uint16_t port) {
    const auto one = [&](char byte) {
      const int socket = party.connect_to(port);
      party.send_all(socket, &byte, 1);
      party.receive_all(socket, &byte, 1);
      party.calls.close(socket);
    };
    one('c');
    const auto start = Clock::now();
    long done = 0;
    for (; seconds_since(start) < kSeconds; ++done) one('c');
    const double rate = static_cast<double>(done) / seconds_since(start);
    one('q');
    return rate;
  };
  return run_processes(calls, server, client);
}

Figure blocked_reader_cpu_percent(const Calls& calls) {
  return run_connected(
      calls,
      [](const Party& party, int socket) {
        char byte;
        party.receive_all(socket, &byte, 1);
        std::this_thread::sleep_for(std::chrono::seconds(1));  // the silence that is measured
        party.send_all(socket, &byte, 1);
        party.receive_all(socket, &byte, 1);
      },
      [](const Party& party, int socket) {
        party.send_all(socket, "s", 1);
        const double before = cpu_seconds();
        const auto start = Clock::now();
        char byte;
        party.receive_all(socket, &byte, 1);
        return (cpu_seconds() - before) / seconds_since(start) * 100;
      });
}

Figure busy_pairs_round_trips_per_second(const Calls& calls, int pairs) {
  const OnTwoCpus narrowed;
  return run_pairs_together(
      calls, pairs, [](const Party& party, int socket) { echo(party, socket, Waiting::blocking); },
      [](const Party& party, int socket) { return drive_ping_pong(party, socket, Waiting::blocking); });
}

}  // namespace ringsock::bench
