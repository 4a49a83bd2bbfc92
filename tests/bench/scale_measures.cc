// What a connection costs beside many others: memory, and time per operation.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "tests/bench/measures.h"

namespace ringsock::bench {

namespace {

constexpr double kSeconds = 0.3;
constexpr int kBatch = 64;
constexpr int kWarmUpConnections = 50;
constexpr int kMeasuredConnections = 500;
constexpr rlim_t kWantedDescriptors = 200000;

using Message = std::array<char, 64>;

/// As many descriptors as this process may have.
void raise_descriptor_limit() {
  rlimit limit{kWantedDescriptors, kWantedDescriptors};
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// Memory that this process has touched, KiB; a page shared by n processes counts 1/n.
double touched_kib() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  double sum = 0;
  for (std::string line; std::getline(rollup, line);) {
    const std::string name = line.substr(0, line.find(':'));
    const double share = name == "Pss" || name == "Private_Hugetlb" ? 1 : name == "Shared_Hugetlb" ? 0.5 : 0;
    if (share > 0) sum += share * std::stod(line.substr(name.size() + 1));
  }
  return sum;
}

/// Waits until one of several sockets can be read.
class Waiter {
 public:
  virtual ~Waiter() = default;
  virtual int next_readable() = 0;
};

/// Knows that it is always the same one.
class OnlyOne final : public Waiter {
 public:
  explicit OnlyOne(int socket) : socket_(socket) {}
  int next_readable() override { return socket_; }

 private:
  int socket_;
};

class EpollWaiter final : public Waiter {
 public:
  EpollWaiter(const Party& party, const std::vector<int>& sockets) : party_(party), set_(party.calls.epoll_create(0)) {
    if (set_ < 0) party.fail("epoll_create");
    for (const int socket : sockets) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.fd = socket;
      if (party.calls.epoll_ctl(set_, EPOLL_CTL_ADD, socket, &event) != 0) party.fail("epoll_ctl");
    }
  }
  int next_readable() override {
    epoll_event event{};
    if (party_.calls.epoll_wait(set_, &event, 1, -1) != 1) party_.fail("epoll_wait");
    return event.data.fd;
  }

 private:
  const Party& party_;
  int set_;
};

class PollWaiter final : public Waiter {
 public:
  PollWaiter(const Party& party, const std::vector<int>& sockets) : party_(party) {
    for (const int socket : sockets) watched_.push_back({socket, POLLIN, 0});
  }
  int next_readable() override {
    if (party_.calls.poll(watched_.data(), watched_.size(), -1) < 1) party_.fail("poll");
    return std::find_if(watched_.begin(), watched_.end(), [](const pollfd& one) { return one.revents != 0; })->fd;
  }

 private:
  const Party& party_;
  std::vector<pollfd> watched_;
};

using MakeWaiter = std::function<std::unique_ptr<Waiter>(const Party&, const std::vector<int>& sockets)>;

/// Echoes on whichever connection has something, until a message begins with 'q'.
double serve_many(const Party& party, int connections, const MakeWaiter& make_waiter) {
  raise_descriptor_limit();
  const int listener = party.listen_anywhere();
  std::vector<int> sockets;
  for (int i = 0; i < connections; ++i) sockets.push_back(party.accept_one(listener));
  const auto waiter = make_waiter(party, sockets);
  Message message{};
  while (message[0] != 'q') {
    const int socket = waiter->next_readable();
    if (!party.receive_all(socket, message.data(), message.size())) party.fail("recv: early end");
    party.send_all(socket, message.data(), message.size());
  }
  return 0;
}

/// Microseconds per round trip on the last of `connections`.
double drive_one_of_many(const Party& party, std::uint16_t port, int connections) {
  raise_descriptor_limit();
  int socket = -1;
  for (int i = 0; i < connections; ++i) socket = party.connect_to(port);
  Message message{};
  const auto round_trip = [&] {
    party.send_all(socket, message.data(), message.size());
    if (!party.receive_all(socket, message.data(), message.size())) party.fail("recv: early end");
  };
  for (int i = 0; i < kBatch; ++i) round_trip();
  const auto start = Clock::now();
  long done = 0;
  do {
    for (int i = 0; i < kBatch; ++i) round_trip();
    done += kBatch;
  } while (seconds_since(start) < kSeconds);
  const double each_us = seconds_since(start) / static_cast<double>(done) * 1e6;
  message[0] = 'q';
  round_trip();
  return each_us;
}

Figure run_beside_idle(const Calls& calls, int idle, const MakeWaiter& make_waiter) {
  return run_processes(
      calls, [&](const Party& party) { return serve_many(party, idle + 1, make_waiter); },
      [&](const Party& party, std::uint16_t port) { return drive_one_of_many(party, port, idle + 1); });
}

/// What `open` more connections add to the memory of this process. `meet` returns when the other side has got as far.
double growth_kib(const std::function<void()>& open, const std::function<void()>& meet) {
  for (int i = 0; i < kWarmUpConnections; ++i) open();
  meet();
  const double before = touched_kib();
  meet();
  for (int i = 0; i < kMeasuredConnections; ++i) open();
  meet();
  const double after = touched_kib();
  meet();
  return (after - before) / kMeasuredConnections;
}

}  // namespace

Figure idle_memory_kib() {
  const auto server = [](const Party& party) {
    raise_descriptor_limit();
    const int listener = party.listen_anywhere();
    const int first = party.accept_one(listener);
    return growth_kib([&] { party.accept_one(listener); },
                      [&] {
                        char byte;
                        party.receive_all(first, &byte, 1);
                        party.send_all(first, &byte, 1);
                      });
  };
  const auto client = [](const Party& party, std::uint16_t port) {
    raise_descriptor_limit();
    const int first = party.connect_to(port);
    return growth_kib([&] { party.connect_to(port); },
                      [&] {
                        char byte = 'm';
                        party.send_all(first, &byte, 1);
                        party.receive_all(first, &byte, 1);
                      });
  };
  return run_processes(kRing, server, client);
}

Figure round_trip_beside_idle_us(const Calls& calls, int idle) {
  return run_beside_idle(calls, idle, [](const Party&, const std::vector<int>& sockets) {
    return std::make_unique<OnlyOne>(sockets.back());
  });
}

Figure epoll_round_trip_beside_idle_us(const Calls& calls, int idle) {
  return run_beside_idle(calls, idle, [](const Party& party, const std::vector<int>& sockets) {
    return std::make_unique<EpollWaiter>(party, sockets);
  });
}

Figure poll_round_trip_beside_idle_us(const Calls& calls, int idle) {
  return run_beside_idle(calls, idle, [](const Party& party, const std::vector<int>& sockets) {
    return std::make_unique<PollWaiter>(party, sockets);
  });
}

}  // namespace ringsock::bench
