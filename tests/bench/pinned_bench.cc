// One measurement between two processes that are pinned to one CPU each, over rsockets or over the kernel's TCP. For
// tests/bench/peers, which compares it with UCX between the same two CPUs.
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/pair.h"

namespace ringsock::bench {

namespace {

constexpr double kSeconds = 0.5;  // of one measurement
constexpr double kWarmUpSeconds = 0.05;
constexpr std::size_t kSmallBytes = 1024;

struct Cpus {
  int server;
  int client;
};

bool pin(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return ::pthread_setaffinity_np(::pthread_self(), sizeof one, &one) == 0;
}

void pin_party(const Party& party, int cpu) {
  if (!pin(cpu)) party.fail("pthread_setaffinity_np");
}

// ---- a cache line -----------------------------------------------------------------------------------------------

constexpr int kLineBatches = 201;
constexpr std::uint32_t kLineRoundTrips = 1000;  // of a batch

/// A counter in a cache line of its own. One thread makes it odd, the other makes it even.
struct alignas(128) Line {
  std::atomic<std::uint32_t> counter{0};
};

void wait_for(const Line& line, std::uint32_t value) {
  while (line.counter.load(std::memory_order_acquire) != value) {
  }
}

/// Time of a cache line from one CPU to the other, ns: half a round trip, the median of batches.
Figure cache_line_ns(const Cpus& cpus) {
  Line line;
  constexpr std::uint32_t kAll = kLineBatches * kLineRoundTrips;
  std::atomic<bool> pinned{true};
  std::thread echo([&] {
    if (!pin(cpus.server)) pinned = false;
    for (std::uint32_t i = 0; i < kAll; ++i) {
      wait_for(line, 2 * i + 1);
      line.counter.store(2 * i + 2, std::memory_order_release);
    }
  });
  if (!pin(cpus.client)) pinned = false;
  std::vector<double> batches;
  std::uint32_t i = 0;
  for (int batch = 0; batch < kLineBatches; ++batch) {
    const auto start = Clock::now();
    for (std::uint32_t round = 0; round < kLineRoundTrips; ++round, ++i) {
      line.counter.store(2 * i + 1, std::memory_order_release);
      wait_for(line, 2 * i + 2);
    }
    batches.push_back(seconds_since(start) / kLineRoundTrips / 2 * 1e9);
  }
  echo.join();
  if (!pinned) {
    std::fprintf(stderr, "pinned_bench: this process may not run on CPU %d or on CPU %d\n", cpus.server, cpus.client);
    return std::nullopt;
  }
  std::nth_element(batches.begin(), batches.begin() + kLineBatches / 2, batches.end());
  return batches[kLineBatches / 2];
}

// ---- messages ---------------------------------------------------------------------------------------------------

using Buffer = std::vector<char>;

/// False at the end of the stream.
bool receive_spinning(const Party& party, int socket, Buffer& message) {
  for (std::size_t have = 0; have < message.size();) {
    const ssize_t got = party.calls.recv(socket, message.data() + have, message.size() - have, MSG_DONTWAIT);
    if (got == 0) return false;
    if (got < 0 && errno != EAGAIN) party.fail("recv");
    if (got > 0) have += static_cast<std::size_t>(got);
  }
  return true;
}

/// How both ends wait for a message: in blocking calls, or by calls that do not block.
using Receive = bool (*)(const Party& party, int socket, Buffer& message);

bool receive_blocking(const Party& party, int socket, Buffer& message) {
  return party.receive_all(socket, message.data(), message.size());
}

/// Microseconds of one way.
Figure latency_us(const Calls& calls, const Cpus& cpus, Receive receive, std::size_t size) {
  const auto server = [&](const Party& party) {
    pin_party(party, cpus.server);
    const int listener = party.listen_anywhere();
    const int socket = party.accept_one(listener);
    Buffer message(size);
    while (receive(party, socket, message)) party.send_all(socket, message.data(), message.size());
    party.calls.close(socket);
    party.calls.close(listener);
    return 0.0;
  };
  const auto client = [&](const Party& party, std::uint16_t port) {
    pin_party(party, cpus.client);
    const int socket = party.connect_to(port);
    Buffer message(size);
    const int batch = size <= kSmallBytes ? 128 : 16;
    const auto round_trips_for = [&](double seconds) {
      long done = 0;
      const auto start = Clock::now();
      for (; seconds_since(start) < seconds; done += batch) {
        for (int i = 0; i < batch; ++i) {
          party.send_all(socket, message.data(), message.size());
          if (!receive(party, socket, message)) party.fail("recv: early end");
        }
      }
      return seconds_since(start) / static_cast<double>(done);
    };
    round_trips_for(kWarmUpSeconds);
    const double each = round_trips_for(kSeconds);
    party.calls.close(socket);
    return each / 2 * 1e6;
  };
  return run_processes(calls, server, client);
}

/// Messages per second in one direction, until the receiver has the last of them.
Figure messages_per_second(const Calls& calls, const Cpus& cpus, std::size_t size) {
  const auto server = [&](const Party& party) {
    pin_party(party, cpus.server);
    const int listener = party.listen_anywhere();
    const int socket = party.accept_one(listener);
    Buffer message(size);
    while (party.calls.recv(socket, message.data(), message.size(), 0) > 0) {
    }
    party.send_all(socket, "!", 1);
    char end;
    party.receive_all(socket, &end, 1);
    party.calls.close(socket);
    party.calls.close(listener);
    return 0.0;
  };
  const auto client = [&](const Party& party, std::uint16_t port) {
    pin_party(party, cpus.client);
    const int socket = party.connect_to(port);
    const Buffer message(size, 'x');
    const int batch = size <= kSmallBytes ? 256 : 16;
    long done = 0;
    const auto start = Clock::now();
    for (; seconds_since(start) < kSeconds; done += batch) {
      for (int i = 0; i < batch; ++i) party.send_all(socket, message.data(), message.size());
    }
    party.calls.shutdown(socket, SHUT_WR);
    char all_there;
    party.receive_all(socket, &all_there, 1);
    const double rate = static_cast<double>(done) / seconds_since(start);
    party.calls.close(socket);
    return rate;
  };
  return run_processes(calls, server, client);
}

int usage(int status) {
  std::fprintf(status == 0 ? stdout : stderr,
               "usage: pinned_bench SERVER_CPU CLIENT_CPU cache-line\n"
               "       pinned_bench SERVER_CPU CLIENT_CPU latency kernel|kernel-spinning|ring BYTES\n"
               "       pinned_bench SERVER_CPU CLIENT_CPU rate kernel|ring BYTES\n"
               "Prints one number: the time of a cache line from one CPU to the other, ns; the time of a message one "
               "way, us; messages per second.\n");
  return status;
}

Figure measure(int count, char** words) {
  const Cpus cpus{std::atoi(words[1]), std::atoi(words[2])};
  const std::string what = words[3];
  if (what == "cache-line") return cache_line_ns(cpus);
  const std::string way = words[4];
  const Calls& calls = way == "ring" ? kRing : kKernel;
  const std::size_t size = count > 5 ? std::strtoul(words[5], nullptr, 10) : 0;
  if (what == "rate") return messages_per_second(calls, cpus, size);
  return latency_us(calls, cpus, way == "kernel-spinning" ? receive_spinning : receive_blocking, size);
}

bool is_understood(int count, char** words) {
  const std::string what = count > 3 ? words[3] : "";
  if (what == "cache-line") return count == 4;
  if (count != 6 || std::atol(words[5]) <= 0) return false;
  const std::string way = words[4];
  return (what == "rate" || what == "latency") &&
         (way == "kernel" || way == "ring" || (way == "kernel-spinning" && what == "latency"));
}

}  // namespace

int run(int count, char** words) {
  if (count == 2 && std::string(words[1]) == "--help") return usage(0);
  if (!is_understood(count, words)) return usage(2);
  const Figure figure = measure(count, words);
  if (!figure) return 1;
  std::printf("%.6g\n", *figure);
  return 0;
}

}  // namespace ringsock::bench

int main(int argc, char** argv) { return ringsock::bench::run(argc, argv); }
