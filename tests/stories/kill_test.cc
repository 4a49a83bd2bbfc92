// Two processes exchange data over rsockets; one of them is killed with SIGKILL at a random moment. The other one must
// get everything that was delivered, an error or the end of the stream soon, and its descriptors and memory back.
// Usage: kill_test [--rounds N]      100 without it, 1000 when RINGSOCK_TEST_LONG is set
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/stories/shared_ledger.h"
#include "tests/support/child.h"

namespace ringsock::stories {
namespace {

using testing::Channel;
using testing::Child;
using testing::Milliseconds;

int g_rounds = 100;

constexpr std::uint64_t kAckEvery = 16384;       // bytes
constexpr Milliseconds kLongestReaction(10000);  // far beyond what is wanted; a hang, on any machine
constexpr int kWarmUpRounds = 5;

enum class Side { connects, accepts };
enum class Role { sends, receives };

/// One round, as both processes are told it; the victim plays the opposite side and role.
struct Round {
  Side side;  ///< of the survivor
  Role role;
  std::uint64_t seed;
  std::uint16_t port;      ///< of the victim's listener when the survivor connects
  bool polls;              ///< the survivor waits in rpoll() and not in the call itself
  std::uint64_t stall_at;  ///< the victim stops taking part after so many bytes, and waits for its death
};

struct VictimIsDead {};

/// How it went for the survivor.
struct Verdict {
  enum class Connection { none, broke_before_hello, made } connection;
  std::array<char, 200> complaint;  ///< empty when all is well
  std::uint64_t bytes;              ///< received, or acknowledged to us
};

/// A complaint ends the round; the process lives on.
struct Complaint {
  std::array<char, 200> text;
};

[[noreturn, gnu::format(printf, 1, 2)]] void complain(const char* format, ...) {
  Complaint complaint{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(complaint.text.data(), complaint.text.size(), format, arguments);
  va_end(arguments);
  throw complaint;
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

struct Listener {
  int socket;
  std::uint16_t port;
};

Listener listen_anywhere() {
  const int socket = rsocket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (socket < 0) complain("rsocket: %s", std::strerror(errno));
  if (rbind(socket, reinterpret_cast<sockaddr*>(&address), length) != 0) complain("rbind: %s", std::strerror(errno));
  if (rlisten(socket, 16) != 0) complain("rlisten: %s", std::strerror(errno));
  if (rgetsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    complain("rgetsockname: %s", std::strerror(errno));
  return {socket, ntohs(address.sin_port)};
}

bool means_peer_is_gone(int code) { return code == ECONNRESET || code == EPIPE || code == ETIMEDOUT; }

/// One end of a connection, in the shape that both processes use. Calls that would block wait in rpoll() when `polls`
/// is set.
class End {
 public:
  End(int socket, bool polls) : socket_(socket), flags_(polls ? MSG_DONTWAIT | MSG_NOSIGNAL : MSG_NOSIGNAL) {}
  End(const End&) = delete;
  ~End() { rclose(socket_); }

  /// Bytes taken; nothing once the peer is gone.
  std::size_t send(std::span<const std::byte> data) {
    for (;;) {
      const ssize_t sent = rsend(socket_, data.data(), data.size(), flags_);
      if (sent > 0) return static_cast<std::size_t>(sent);
      if (sent == 0) complain("rsend of %zu bytes returned 0", data.size());
      if (errno != EAGAIN) {
        if (!means_peer_is_gone(errno)) complain("rsend: %s", std::strerror(errno));
        return 0;
      }
      wait_for(POLLOUT);
    }
  }

  /// Bytes that came; nothing at the end of the stream, in order or because the peer is gone.
  std::size_t receive(std::span<std::byte> out) {
    for (;;) {
      const ssize_t got = rrecv(socket_, out.data(), out.size(), flags_);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EAGAIN) {
        if (!means_peer_is_gone(errno)) complain("rrecv: %s", std::strerror(errno));
        return 0;
      }
      wait_for(POLLIN);
    }
  }

  /// Bytes that are there already, 0 when there are none.
  std::size_t receive_now(std::span<std::byte> out) {
    const ssize_t got = rrecv(socket_, out.data(), out.size(), MSG_DONTWAIT);
    return got > 0 ? static_cast<std::size_t>(got) : 0;
  }

 private:
  void wait_for(short events) {
    pollfd one{socket_, events, 0};
    if (rpoll(&one, 1, -1) != 1) complain("rpoll: %s", std::strerror(errno));
  }
  int socket_;
  int flags_;
};

/// Acknowledgements as they come in: each is the number of bytes that the receiver has, 8 bytes.
class AckReader {
 public:
  void take(End& end, const Ledger& ledger) {
    while (const std::size_t got = end.receive_now(std::as_writable_bytes(std::span(&partial_, 1)).subspan(have_))) {
      have_ += got;
      if (have_ < sizeof partial_) continue;
      have_ = 0;
      if (partial_ < last_ || partial_ > ledger.offered) complain("an acknowledgement of bytes that were never sent");
      last_ = partial_;
    }
  }
  [[nodiscard]] std::uint64_t last() const { return last_; }

 private:
  std::uint64_t partial_ = 0;
  std::size_t have_ = 0;
  std::uint64_t last_ = 0;
};

/// Sends the stream in pieces of all sizes until the peer is gone; what the peer had acknowledged by then.
std::uint64_t send_stream(End& end, const Round& round, Ledger& ledger) {
  std::mt19937_64 random(round.seed);
  std::vector<std::byte> piece(100000);
  AckReader acks;
  for (std::uint64_t position = 0;;) {
    const std::size_t limit = std::array<std::size_t, 4>{8, 64, 4096, 100000}[random() % 4];
    const std::span<std::byte> part = std::span(piece).first(1 + random() % limit);
    fill_stream(part, round.seed, position);
    ledger.offered = position + part.size();
    const std::size_t sent = end.send(part);
    acks.take(end, ledger);
    if (sent == 0) return acks.last();
    ledger.sent = position += sent;
    if (position >= round.stall_at) pause();
  }
}

/// Receives and checks the stream until its end, and acknowledges it now and then; the number of bytes.
std::uint64_t receive_stream(End& end, const Round& round, Ledger& ledger) {
  std::vector<std::byte> buffer(70000);
  std::uint64_t position = 0, acked = 0;
  while (const std::size_t got = end.receive(buffer)) {
    const std::size_t same = first_difference(std::span(buffer).first(got), round.seed, position);
    if (same != got)
      complain("byte %llu is not the one that was sent", static_cast<unsigned long long>(position + same));
    ledger.received = position += got;
    if (position - acked >= kAckEvery) {
      if (end.send(std::as_bytes(std::span(&position, 1))) != 0) ledger.acked = acked = position;
    }
    if (position >= round.stall_at) pause();
  }
  return position;
}

// -- the victim

int victim_connection(const Round& round, Channel& parent) {
  if (round.side == Side::connects) {
    const Listener listener = listen_anywhere();
    parent.send(listener.port);
    return raccept(listener.socket, nullptr, nullptr);
  }
  const int socket = rsocket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = loopback(round.port);
  if (rconnect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    complain("rconnect: %s", std::strerror(errno));
  return socket;
}

/// Lives until it is killed; tells the parent only what is wrong.
int live_as_victim(Round round, Ledger& ledger, Channel& parent) {
  try {
    End end(victim_connection(round, parent), false);
    end.send(std::as_bytes(std::span(&round.seed, 1)));
    if (round.role == Role::receives) {
      send_stream(end, round, ledger);
    } else {
      receive_stream(end, round, ledger);
    }
    pause();
  } catch (const Complaint& complaint) {
    parent.send(complaint);
  }
  return 1;
}

// -- the survivor

class Survivor {
 public:
  Survivor(Channel& parent, Ledger& ledger) : parent_(parent), ledger_(ledger), listener_(listen_anywhere()) {
    rfcntl(listener_.socket, F_SETFL, O_NONBLOCK);
    parent_.send(listener_.port);
  }

  Verdict play(Round round) {
    Verdict verdict{};
    round.stall_at = ~std::uint64_t{0};
    victim_lives_ = true;
    try {
      take_part(round, verdict);
      if (victim_lives_ && !parent_.receive<VictimIsDead>()) _exit(1);
      expect_everything_given_back();
    } catch (const Complaint& complaint) {
      verdict.complaint = complaint.text;
    }
    return verdict;
  }

 private:
  void take_part(const Round& round, Verdict& verdict) {
    int socket;
    while ((socket = connection(round)) >= 0) {
      End end(socket, round.polls);
      verdict.connection = Verdict::Connection::broke_before_hello;
      if (!hears_hello(end, round.seed)) continue;
      verdict.connection = Verdict::Connection::made;
      if (round.role == Role::sends) {
        verdict.bytes = send_stream(end, round, ledger_);
        // The victim noted it after its send, so we may have got more than it could note, never less.
        if (verdict.bytes < ledger_.acked)
          complain("an acknowledgement was lost: %llu of %llu", as_ull(verdict.bytes), as_ull(ledger_.acked));
        if (verdict.bytes > ledger_.received) complain("acknowledged were more bytes than received");
      } else {
        verdict.bytes = receive_stream(end, round, ledger_);
        if (verdict.bytes > ledger_.offered) complain("more bytes came than were sent");
        // What rsend() took is not the sender's any more, as with send(2): its death takes nothing back.
        if (verdict.bytes < ledger_.sent) complain("%llu sent bytes are gone", as_ull(ledger_.sent - verdict.bytes));
      }
      return;
    }
  }

  static unsigned long long as_ull(std::uint64_t value) { return value; }

  static bool hears_hello(End& end, std::uint64_t seed) {
    std::uint64_t hello = 0;
    for (std::size_t have = 0; have < sizeof hello;) {
      const std::size_t got = end.receive(std::as_writable_bytes(std::span(&hello, 1)).subspan(have));
      if (got == 0) return false;
      have += got;
    }
    return hello == seed;
  }

  /// A connection with the victim, or -1 when it died before there was one.
  int connection(const Round& round) {
    return round.side == Side::connects ? connect_once(round.port) : accept_or_hear_of_death();
  }

  int connect_once(std::uint16_t port) {
    if (std::exchange(tried_port_, port) == port) return -1;
    const int socket = rsocket(AF_INET, SOCK_STREAM, 0);
    if (socket < 0) complain("rsocket: %s", std::strerror(errno));
    const sockaddr_in address = loopback(port);
    if (rconnect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return socket;
    const int code = errno;
    rclose(socket);
    if (code != ECONNREFUSED && !means_peer_is_gone(code)) complain("rconnect: %s", std::strerror(code));
    return -1;
  }

  int accept_or_hear_of_death() {
    for (;;) {
      const bool last_look = !victim_lives_;
      const int socket = raccept(listener_.socket, nullptr, nullptr);
      if (socket >= 0) {
        rfcntl(socket, F_SETFL, 0);
        return socket;
      }
      if (errno != EAGAIN && errno != ECONNABORTED) complain("raccept: %s", std::strerror(errno));
      if (errno == ECONNABORTED) continue;
      if (last_look) return -1;
      std::array<pollfd, 2> both{{{listener_.socket, POLLIN, 0}, {parent_.fd(), POLLIN, 0}}};
      if (rpoll(both.data(), both.size(), -1) < 1) complain("rpoll: %s", std::strerror(errno));
      if (both[1].revents != 0) {
        if (!parent_.receive<VictimIsDead>()) _exit(1);
        victim_lives_ = false;
      }
    }
  }

  /// The library may tidy up in a thread of its own, so it gets a moment.
  void expect_everything_given_back() {
    Holdings held = Holdings::now();
    if (++rounds_ <= kWarmUpRounds) {
      // One may be kept for a next connection with a process whose end nobody has noticed (SegmentCache).
      const std::size_t none_yet = held.memory_files == 0 ? 1 : 0;
      bound_.descriptors = std::max(bound_.descriptors, held.descriptors + none_yet);
      bound_.memory_files = std::max(bound_.memory_files, held.memory_files + none_yet);
      return;
    }
    for (int patience = 0; !held.within(bound_) && patience < 500; ++patience) {
      std::this_thread::sleep_for(Milliseconds(10));
      held = Holdings::now();
    }
    if (!held.within(bound_)) {
      complain("%zu descriptors and %zu memory files are held, %zu and %zu before", held.descriptors, held.memory_files,
               bound_.descriptors, bound_.memory_files);
    }
  }

  Channel& parent_;
  Ledger& ledger_;
  Listener listener_;
  bool victim_lives_ = true;
  std::uint16_t tried_port_ = 0;
  int rounds_ = 0;
  Holdings bound_;
};

int live_as_survivor(Channel& parent, Ledger& ledger) {
  try {
    Survivor survivor(parent, ledger);
    while (const auto round = parent.receive<Round>(Milliseconds(-1))) parent.send(survivor.play(*round));
    return 0;
  } catch (const Complaint& complaint) {
    std::fprintf(stderr, "survivor: %s\n", complaint.text.data());
    return 1;
  }
}

// -- the test

/// Never uses an rsocket itself, so that each process it forks starts with a fresh library.
class Coordinator {
 public:
  Coordinator(Side side, Role role)
      : side_(side),
        role_(role),
        survivor_(Child::start([this](Channel& parent) { return live_as_survivor(parent, ledger_); })) {}

  void run(int rounds) {
    const auto port = survivor_.channel().receive<std::uint16_t>();
    ASSERT_TRUE(port) << "the survivor did not start";
    survivor_port_ = *port;
    for (int number = 0; number < rounds; ++number) {
      ASSERT_NO_FATAL_FAILURE(run_one(number)) << "round " << number;
      // On a slow machine, or under a sanitizer, a victim needs longer to get anywhere.
      if (connections_ < (number + 1) / 3) longest_life_us_ = std::min<std::uint64_t>(longest_life_us_ * 2, 2'000'000);
    }
    std::printf("%d rounds: %d connections, %llu bytes, slowest reaction %.1f ms\n", rounds, connections_,
                static_cast<unsigned long long>(bytes_), slowest_ms_);
    EXPECT_GT(connections_, rounds / 10) << "nearly every victim was dead before it had a connection";
  }

 private:
  void run_one(int number) {
    Round round{side_, role_, random_(), survivor_port_, random_() % 2 == 0, stall_position()};
    ledger_.clear();
    Child victim = Child::start([&](Channel& parent) { return live_as_victim(round, ledger_, parent); });
    if (side_ == Side::connects) {
      const auto port = victim.channel().receive<std::uint16_t>();
      ASSERT_TRUE(port) << "the victim did not listen";
      round.port = *port;
    }
    ASSERT_TRUE(survivor_.channel().send(round)) << "the survivor is gone";
    // The moment of the kill is the random part of this test: anywhere from before the connection to the middle of the
    // data.
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % (number % 8 == 0 ? 500 : longest_life_us_)));
    victim.kill(SIGKILL);
    const auto killed = std::chrono::steady_clock::now();
    const auto said = victim.channel().receive<Complaint>(Milliseconds(0));
    victim.wait();
    survivor_.channel().send(VictimIsDead{});

    const auto verdict = survivor_.channel().receive<Verdict>(kLongestReaction);
    const double took_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - killed).count();
    ASSERT_TRUE(verdict) << "the survivor hangs, or is gone";
    ASSERT_STREQ(verdict->complaint.data(), "");
    ASSERT_FALSE(said) << "the victim, before it was killed: " << said->text.data();
    slowest_ms_ = std::max(slowest_ms_, took_ms);
    connections_ += verdict->connection == Verdict::Connection::made;
    bytes_ += verdict->bytes;
  }

  /// Every fourth victim stops somewhere, so that the survivor is asleep in its call when the kill comes.
  std::uint64_t stall_position() { return random_() % 4 == 0 ? random_() % 300000 : ~std::uint64_t{0}; }

  Side side_;
  Role role_;
  Ledger& ledger_ = Ledger::create();
  std::uint64_t longest_life_us_ = 20'000;
  std::mt19937_64 random_{std::random_device{}()};
  Child survivor_;
  std::uint16_t survivor_port_ = 0;
  int connections_ = 0;
  std::uint64_t bytes_ = 0;
  double slowest_ms_ = 0;
};

TEST(KillNine, OfAReceivingClientIsAnErrorForTheSendingServer) {
  Coordinator(Side::accepts, Role::sends).run(g_rounds / 4);
}

TEST(KillNine, OfASendingClientIsTheEndForTheReceivingServer) {
  Coordinator(Side::accepts, Role::receives).run(g_rounds / 4);
}

TEST(KillNine, OfAReceivingServerIsAnErrorForTheSendingClient) {
  Coordinator(Side::connects, Role::sends).run(g_rounds / 4);
}

TEST(KillNine, OfASendingServerIsTheEndForTheReceivingClient) {
  Coordinator(Side::connects, Role::receives).run(g_rounds / 4);
}

}  // namespace
}  // namespace ringsock::stories

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (std::getenv("RINGSOCK_TEST_LONG") != nullptr) ringsock::stories::g_rounds = 1000;
  if (argc == 3 && std::strcmp(argv[1], "--rounds") == 0) ringsock::stories::g_rounds = std::atoi(argv[2]);
  return RUN_ALL_TESTS();
}
