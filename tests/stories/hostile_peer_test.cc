// A peer that writes whatever it likes over the memory it shares with a victim, and onto the link between them. The
// victim may get errors and nonsense data; it must not crash, must not touch memory outside its buffers
// (AddressSanitizer and guard bytes look), and goes on working with honest peers.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/child.h"

namespace ringsock::stories {
namespace {

using testing::Channel;
using testing::Child;
using testing::Milliseconds;

constexpr Milliseconds kVictimTries(60);  // how long the victim goes on sending and receiving
constexpr Milliseconds kLongestRound(20000);
constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xa5};

enum class Scribble { random_words, small_numbers, flipped_bits, all_ones };

struct Attack {
  Scribble values;
  bool victim_accepts;
  bool garbage_on_the_link;
  bool victim_blocks;  ///< in rsend() and rrecv(), until the attacker dies
  std::uint64_t seed;
};

struct Done {};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int listen_anywhere(Channel& parent) {
  const int listener = rsocket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (listener < 0 || rbind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      rlisten(listener, 16) != 0 || rgetsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    std::perror("listen");
    _exit(2);
  }
  parent.send(ntohs(address.sin_port));
  return listener;
}

int connect_to(std::uint16_t port) {
  const int socket = rsocket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = loopback(port);
  if (socket < 0 || rconnect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    std::perror("connect");
    _exit(2);
  }
  return socket;
}

// -- the attacker

/// The shared memory files that this process has mapped for writing, as words.
std::vector<std::span<std::uint64_t>> shared_words() {
  std::vector<std::span<std::uint64_t>> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" rw-s ") == std::string::npos || line.find("/memfd:") == std::string::npos) continue;
    unsigned long first = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &first, &end) != 2) continue;
    found.emplace_back(reinterpret_cast<std::uint64_t*>(first), (end - first) / sizeof(std::uint64_t));
  }
  return found;
}

std::vector<int> local_sockets() {
  std::vector<int> found;
  for (int fd = 3; fd < 256; ++fd) {
    struct stat status;
    sockaddr_storage name;
    socklen_t length = sizeof name;
    if (fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 && name.ss_family == AF_UNIX) {
      found.push_back(fd);
    }
  }
  return found;
}

class Attacker {
 public:
  explicit Attacker(const Attack& attack) : attack_(attack), random_(attack.seed), regions_(shared_words()) {}

  [[nodiscard]] bool has_something_to_scribble_on() const { return !regions_.empty(); }

  /// The start of each region, where counters and tables are, gets as many writes as all the rest.
  void scribble_once() {
    for (const auto region : regions_) {
      const std::size_t head = std::min<std::size_t>(region.size(), 1024);
      for (std::size_t i = 0; i < head; ++i) scribble(region[random_() % head]);
      for (std::size_t i = 0; i < head; ++i) scribble(region[random_() % region.size()]);
    }
  }

  /// Each word, one after the other.
  void sweep() {
    for (const auto region : regions_) {
      for (std::uint64_t& word : region) scribble(word);
    }
  }

  void send_garbage(const std::vector<int>& links) {
    std::array<std::uint64_t, 32> garbage;
    for (auto& word : garbage) word = next_value(random_());
    for (const int link : links)
      send(link, garbage.data(), 1 + random_() % sizeof garbage, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

 private:
  std::uint64_t next_value(std::uint64_t old) {
    switch (attack_.values) {
      case Scribble::random_words: return random_();
      case Scribble::small_numbers: return (random_() % 4096) << 32 | random_() % 4096;
      case Scribble::flipped_bits: return old ^ std::uint64_t{1} << random_() % 64;
      case Scribble::all_ones: break;
    }
    return ~std::uint64_t{0};
  }
  void scribble(std::uint64_t& word) {
    std::atomic_ref<std::uint64_t> shared(word);
    shared.store(next_value(shared.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  }

  const Attack& attack_;
  std::mt19937_64 random_;
  std::vector<std::span<std::uint64_t>> regions_;
};

/// Connects honestly, exchanges a byte, and then never calls the library again: it would only trip over its own
/// scribbles.
int live_as_attacker(const Attack& attack, std::uint16_t port, Channel& parent) {
  const std::vector<int> before = local_sockets();
  const int socket = attack.victim_accepts ? connect_to(port) : raccept(listen_anywhere(parent), nullptr, nullptr);
  char byte = 'a';
  if (rsend(socket, &byte, 1, MSG_NOSIGNAL) != 1 || rrecv(socket, &byte, 1, 0) != 1) return 2;
  std::vector<int> links;
  std::ranges::set_difference(local_sockets(), before, std::back_inserter(links));
  Attacker attacker(attack);
  if (!attacker.has_something_to_scribble_on()) return 3;
  const auto start = std::chrono::steady_clock::now();
  // A blocking victim is let go by our death.
  while (std::chrono::steady_clock::now() - start < (attack.victim_blocks ? kVictimTries / 2 : 4 * kVictimTries)) {
    attacker.scribble_once();
    attacker.sweep();
    if (attack.garbage_on_the_link) attacker.send_garbage(links);
    if (parent.receive<Done>(Milliseconds(0))) break;
  }
  _exit(0);
}

// -- the victim

/// A receive buffer between guard bytes.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::size_t length) : bytes_(length + 2 * kGuardBytes, kGuard) {}
  std::span<std::byte> inside() { return std::span(bytes_).subspan(kGuardBytes, bytes_.size() - 2 * kGuardBytes); }
  [[nodiscard]] bool is_intact() const {
    const auto untouched = [](std::byte byte) { return byte == kGuard; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kGuardBytes, untouched) &&
           std::all_of(bytes_.end() - kGuardBytes, bytes_.end(), untouched);
  }

 private:
  std::vector<std::byte> bytes_;
};

[[noreturn]] void die(const char* complaint) {
  std::fprintf(stderr, "victim: %s: %s\n", complaint, std::strerror(errno));
  _exit(1);
}

bool is_honest_result(ssize_t result, std::size_t asked) {
  return result >= -1 && result <= static_cast<ssize_t>(asked);
}

/// Receives until an error, the end, or the time is over. `flags` MSG_DONTWAIT polls.
void receive_for_a_while(int socket, int flags, std::chrono::steady_clock::time_point end) {
  std::mt19937 random(1);
  while (std::chrono::steady_clock::now() < end || flags == 0) {
    GuardedBuffer buffer(1 + random() % 20000);
    const ssize_t got = rrecv(socket, buffer.inside().data(), buffer.inside().size(), flags);
    if (!is_honest_result(got, buffer.inside().size())) die("rrecv returned more than it was asked for");
    if (!buffer.is_intact()) die("rrecv wrote outside the buffer");
    if (got == 0 || (got < 0 && errno != EAGAIN)) return;
    if (got > 0) continue;
    pollfd one{socket, POLLIN | POLLOUT, 0};
    if (rpoll(&one, 1, 5) < 0) die("rpoll");
  }
}

void send_for_a_while(int socket, int flags, std::chrono::steady_clock::time_point end) {
  std::mt19937 random(2);
  const std::vector<std::byte> data(20000, std::byte{'v'});
  while (std::chrono::steady_clock::now() < end || flags == 0) {
    const std::size_t length = 1 + random() % data.size();
    const ssize_t sent = rsend(socket, data.data(), length, flags | MSG_NOSIGNAL);
    if (!is_honest_result(sent, length)) die("rsend returned more than it was given");
    if (sent < 0 && errno != EAGAIN) return;
    pollfd one{socket, POLLOUT, 0};
    if (sent < 0 && rpoll(&one, 1, 5) < 0) die("rpoll");
  }
}

void suffer(const Attack& attack, int socket) {
  char byte = 'v';
  if (rrecv(socket, &byte, 1, 0) != 1 || rsend(socket, &byte, 1, MSG_NOSIGNAL) != 1) die("the start of an attack");
  const int flags = attack.victim_blocks ? 0 : MSG_DONTWAIT;
  const auto end = std::chrono::steady_clock::now() + kVictimTries;
  std::thread sender([&] { send_for_a_while(socket, flags, end); });
  receive_for_a_while(socket, flags, end);
  sender.join();
  rclose(socket);
}

/// After all attacks: a connection with somebody honest, who echoes.
void work_with_an_honest_peer(int socket) {
  std::vector<std::byte> data(300000), back(data.size());
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7 >> 3);
  std::thread sender([&] {
    for (std::size_t sent = 0; sent < data.size();) {
      const ssize_t n = rsend(socket, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) die("rsend to the honest peer");
      sent += static_cast<std::size_t>(n);
    }
  });
  if (rrecv(socket, back.data(), back.size(), MSG_WAITALL) != static_cast<ssize_t>(back.size()))
    die("rrecv from the honest peer");
  sender.join();
  if (back != data) die("the honest peer's data is damaged");
  rclose(socket);
}

int live_as_honest_peer(std::uint16_t port) {
  const int socket = connect_to(port);
  std::array<std::byte, 10000> buffer;
  for (ssize_t got; (got = rrecv(socket, buffer.data(), buffer.size(), 0)) > 0;) {
    for (ssize_t sent = 0, n; sent < got; sent += n) {
      n = rsend(socket, buffer.data() + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
      if (n <= 0) return 1;
    }
  }
  return 0;
}

/// What the victim is to do next.
struct Order {
  enum class What { suffer, be_honest } what;
  Attack attack;
  std::uint16_t attacker_port;
};

int live_as_victim(Channel& parent) {
  const int listener = listen_anywhere(parent);
  while (const auto order = parent.receive<Order>(Milliseconds(-1))) {
    const bool accepts = order->what == Order::What::be_honest || order->attack.victim_accepts;
    const int socket = accepts ? raccept(listener, nullptr, nullptr) : connect_to(order->attacker_port);
    if (socket < 0) die("no connection");
    if (order->what == Order::What::suffer) {
      suffer(order->attack, socket);
    } else {
      work_with_an_honest_peer(socket);
    }
    parent.send(Done{});
  }
  return 0;
}

// -- the test

class HostilePeer : public ::testing::TestWithParam<Scribble> {
 protected:
  void SetUp() override {
    const auto port = victim_.channel().receive<std::uint16_t>();
    ASSERT_TRUE(port) << "the victim did not start";
    victim_port_ = *port;
  }

  void attack(const Attack& attack) {
    Child attacker = Child::start([&](Channel& parent) {
      // Its own library may well crash over what it did; nobody wants to read about that.
      if (freopen("/dev/null", "w", stderr) == nullptr) return 1;
      return live_as_attacker(attack, victim_port_, parent);
    });
    Order order{Order::What::suffer, attack, 0};
    if (!attack.victim_accepts) {
      const auto port = attacker.channel().receive<std::uint16_t>();
      ASSERT_TRUE(port) << "the attacker did not listen";
      order.attacker_port = *port;
    }
    victim_.channel().send(order);
    const bool survived = victim_.channel().receive<Done>(kLongestRound).has_value();
    attacker.channel().send(Done{});
    ASSERT_TRUE(survived) << "the victim ended or hangs";
    const int ended = attacker.wait();
    ASSERT_NE(ended, 2) << "the attacker did not get its connection";
    ASSERT_NE(ended, 3) << "the attacker found no shared memory";
  }

  void expect_victim_serves_the_honest() {
    Child honest = Child::start([&](Channel&) { return live_as_honest_peer(victim_port_); });
    victim_.channel().send(Order{Order::What::be_honest, {}, 0});
    EXPECT_TRUE(victim_.channel().receive<Done>(kLongestRound)) << "the victim is no longer of use to anybody";
    EXPECT_EQ(honest.wait(), 0);
  }

 private:
  Child victim_ = Child::start(live_as_victim);
  std::uint16_t victim_port_ = 0;
};

TEST_P(HostilePeer, CannotHarmAVictimThatPollsNorOneThatBlocks) {
  std::uint64_t seed = 1;
  for (int round = 0; round < 3; ++round) {
    for (const bool accepts : {true, false}) {
      for (const bool garbage : {false, true}) {
        for (const bool blocks : {false, true}) {
          ASSERT_NO_FATAL_FAILURE(attack({GetParam(), accepts, garbage, blocks, seed}))
              << "accepts " << accepts << ", garbage on the link " << garbage << ", blocks " << blocks << ", seed "
              << seed;
          ++seed;
        }
      }
    }
  }
  expect_victim_serves_the_honest();
}

std::string name_of(const ::testing::TestParamInfo<Scribble>& info) {
  switch (info.param) {
    case Scribble::random_words: return "RandomWords";
    case Scribble::small_numbers: return "SmallNumbers";
    case Scribble::flipped_bits: return "FlippedBits";
    case Scribble::all_ones: break;
  }
  return "AllOnes";
}

INSTANTIATE_TEST_SUITE_P(Scribbles, HostilePeer,
                         ::testing::Values(Scribble::random_words, Scribble::small_numbers, Scribble::flipped_bits,
                                           Scribble::all_ones),
                         name_of);

}  // namespace
}  // namespace ringsock::stories
