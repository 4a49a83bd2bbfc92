// Options of sockets in each state, compared with those of sockets that are the kernel's for certain, and options that
// change what calls do.
#include <linux/filter.h>

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "tests/preload/tcp_world.h"

namespace ringsock::preload_tests {
namespace {

std::string name_of_error(int error) {
  const char* const name = ::strerrorname_np(error);
  return name != nullptr ? name : std::to_string(error);
}

/// Socket calls by libc, which the library may answer, or by system calls, which the kernel answers.
class Caller {
 public:
  explicit Caller(bool is_kernel) : is_kernel_(is_kernel) {}

  [[nodiscard]] Fd socket(int family) const {
    return Fd(is_kernel_ ? static_cast<int>(raw_syscall(SYS_socket, family, SOCK_STREAM, 0))
                         : ::socket(family, SOCK_STREAM, 0));
  }
  void listen(int fd, int family) const {
    bind(fd, family);
    EXPECT_EQ(is_kernel_ ? raw_syscall(SYS_listen, fd, 8) : ::listen(fd, 8), 0);
  }
  void bind(int fd, int family) const {
    Address any = Address::loopback(family, 0);
    EXPECT_EQ(is_kernel_ ? raw_syscall(SYS_bind, fd, any.get(), any.length) : ::bind(fd, any.get(), any.length), 0);
  }
  /// Returns whether it has connected. An option may prevent that.
  [[nodiscard]] bool connect(int fd, int listener) const {
    Address there = name_of(listener);
    return (is_kernel_ ? raw_syscall(SYS_connect, fd, there.get(), there.length)
                       : ::connect(fd, there.get(), there.length)) == 0;
  }
  [[nodiscard]] Fd accept(int listener) const {
    return Fd(is_kernel_ ? static_cast<int>(raw_syscall(SYS_accept4, listener, nullptr, nullptr, 0))
                         : ::accept(listener, nullptr, nullptr));
  }
  /// Returns errno, or 0.
  int set(int fd, int level, int name, const void* value, socklen_t length) const {
    const long set = is_kernel_ ? raw_syscall(SYS_setsockopt, fd, level, name, value, length)
                                : ::setsockopt(fd, level, name, value, length);
    return set == 0 ? 0 : errno;
  }
  int get(int fd, int level, int name, void* value, socklen_t* length) const {
    const long got = is_kernel_ ? raw_syscall(SYS_getsockopt, fd, level, name, value, length)
                                : ::getsockopt(fd, level, name, value, length);
    return got == 0 ? 0 : errno;
  }
  /// Returns the error, or the length and the bytes.
  [[nodiscard]] std::string told(int fd, int level, int name, socklen_t length) const {
    std::array<unsigned char, 512> value{};
    if (const int error = get(fd, level, name, value.data(), &length)) return name_of_error(error);
    std::string out = std::to_string(length) + ":";
    for (socklen_t i = 0; i < std::min<socklen_t>(length, 16); ++i) out += " " + std::to_string(value[i]);
    return out;
  }

 private:
  bool is_kernel_;
};

enum class State : std::uint8_t { fresh, bound, listening, connected, accepted };

struct Option {
  int level;
  int name;
  friend bool operator==(const Option&, const Option&) = default;
};

/// A socket in a state, and those that it needs for that.
class Subject {
 public:
  /// @param before  called with the socket that is connected, or with the listener of the one that is accepted, before
  template <class Before>
  Subject(Caller caller, int family, State state, Before before) : caller(caller) {
    listener_ = caller.socket(family);
    if (state == State::fresh || state == State::bound || state == State::listening) {
      before(listener_);
      if (state == State::bound) caller.bind(listener_, family);
      if (state == State::listening) caller.listen(listener_, family);
      fd_ = std::move(listener_);
      return;
    }
    if (state == State::accepted) before(listener_);
    caller.listen(listener_, family);
    fd_ = caller.socket(family);
    if (state == State::connected) before(fd_);
    if (!caller.connect(fd_, listener_)) return;
    other_ = caller.accept(listener_);
    if (state == State::accepted) std::swap(fd_, other_);
  }
  [[nodiscard]] int fd() const { return fd_; }
  const Caller caller;

 private:
  Fd listener_, fd_, other_;
};

/// The application's socket and one of the kernel's.
class Twins {
 public:
  template <class Before>
  Twins(int family, State state, Before before)
      : ours_(Caller(false), family, state, [&](int fd) { before(Caller(false), fd); }),
        kernels_(Caller(true), family, state, [&](int fd) { before(Caller(true), fd); }) {}
  Twins(int family, State state) : Twins(family, state, [](const Caller&, int) {}) {}

  void set(Option option, const void* value, socklen_t length, const std::string& what) {
    note(what, name_of_error(ours_.caller.set(ours_.fd(), option.level, option.name, value, length)),
         name_of_error(kernels_.caller.set(kernels_.fd(), option.level, option.name, value, length)));
    look(option, "after " + what);
  }
  void look(Option option, const std::string& when) {
    for (const socklen_t length : {4U, 1U, 3U, 16U}) {
      const std::string what = "get " + std::to_string(length) + " " + when;
      if (!note(what, ours_.caller.told(ours_.fd(), option.level, option.name, length),
                kernels_.caller.told(kernels_.fd(), option.level, option.name, length)))
        return;
    }
  }
  /// Gives both calls bad pointers, which the kernel may look at last.
  void use_bad_pointers(Option option) {
    set(option, nullptr, 0, "null of 0");
    set(option, nullptr, 4, "null of 4");
    const int one = 1;
    set(option, &one, static_cast<socklen_t>(-1), "length -1");
    socklen_t length = 4, kernels_length = 4;
    note("get into null", name_of_error(ours_.caller.get(ours_.fd(), option.level, option.name, nullptr, &length)),
         name_of_error(kernels_.caller.get(kernels_.fd(), option.level, option.name, nullptr, &kernels_length)));
    int value = 0;
    note("get without length", name_of_error(ours_.caller.get(ours_.fd(), option.level, option.name, &value, nullptr)),
         name_of_error(kernels_.caller.get(kernels_.fd(), option.level, option.name, &value, nullptr)));
  }
  [[nodiscard]] const std::string& differences() const { return differences_; }

 private:
  bool note(const std::string& what, const std::string& ours, const std::string& kernels) {
    if (ours != kernels) differences_ += what + ": " + ours + ", kernel " + kernels + "\n";
    return ours == kernels;
  }

  Subject ours_, kernels_;
  std::string differences_;
};

std::vector<Option> options_of(int level, int last) {
  std::vector<Option> out;
  for (int name = 0; name <= last; ++name) out.push_back({level, name});
  return out;
}

constexpr int kSoZerocopy = 60, kSoCookie = 57, kIpProtocol = 52;
/// Options whose values differ between two sockets of the kernel, too, or that COMPLIANCE.md names.
constexpr std::array kOwn{
    Option{SOL_SOCKET, kSoCookie},           Option{SOL_SOCKET, SO_INCOMING_CPU}, Option{SOL_SOCKET, SO_PEERNAME},
    Option{SOL_SOCKET, kSoZerocopy},         Option{SOL_SOCKET, SO_MEMINFO},      Option{SOL_SOCKET, SO_SNDBUF},
    Option{SOL_SOCKET, SO_INCOMING_NAPI_ID}, Option{IPPROTO_IP, kIpProtocol},     Option{IPPROTO_TCP, TCP_INFO},
    Option{IPPROTO_TCP, TCP_MAXSEG},         Option{IPPROTO_TCP, TCP_CONGESTION}, Option{IPPROTO_TCP, TCP_CC_INFO},
    Option{IPPROTO_TCP, TCP_TIMESTAMP},      Option{IPPROTO_TCP, TCP_QUICKACK}};
/// Options of an accepted socket that the kernel takes from the client's packet, or from the address of the listener.
constexpr std::array kOfThePacket{Option{IPPROTO_IP, IP_MULTICAST_TTL}, Option{IPPROTO_IPV6, IPV6_MULTICAST_HOPS},
                                  Option{IPPROTO_IPV6, IPV6_MULTICAST_IF}, Option{IPPROTO_IPV6, IPV6_V6ONLY}};

bool is_in(Option option, std::span<const Option> list) {
  return std::find(list.begin(), list.end(), option) != list.end();
}

std::string as_text(Option option) {
  return "level " + std::to_string(option.level) + " option " + std::to_string(option.name) + "\n";
}

struct Values {
  int level;
  int last;
  int family;
};

class OptionsOfLevel : public ::testing::TestWithParam<Values> {
 protected:
  /// Calls `story(option)`, which returns the differences, for each option that two sockets of the kernel have alike.
  template <class Story>
  static std::string for_each_option(Story story) {
    std::string out;
    for (const Option option : options_of(GetParam().level, GetParam().last)) {
      if (is_in(option, kOwn)) continue;
      const std::string differences = story(option);
      if (!differences.empty()) out += as_text(option) + differences;
    }
    return out;
  }
  /// Sets an option in many ways, and looks at it after each.
  static std::string differences_in(Option option, State state) {
    Twins twins(GetParam().family, state);
    if (state == State::accepted && is_in(option, kOfThePacket)) return {};
    twins.look(option, "at first");
    for (const int value : {1, 0, -1, 5, 256, 3, INT32_MAX}) {
      std::array<int, 16> bytes{value};
      twins.set(option, bytes.data(), sizeof value, std::to_string(value));
    }
    const std::array<int, 16> one{1};
    for (const socklen_t length : {1U, 3U, 8U, 64U})
      twins.set(option, one.data(), length, "1 of length " + std::to_string(length));
    twins.use_bad_pointers(option);
    return twins.differences();
  }
};

TEST_P(OptionsOfLevel, AreTheKernelsOnAFreshSocket) {
  EXPECT_EQ(for_each_option([](Option option) { return differences_in(option, State::fresh); }), "");
}
TEST_P(OptionsOfLevel, AreTheKernelsOnABoundSocket) {
  EXPECT_EQ(for_each_option([](Option option) { return differences_in(option, State::bound); }), "");
}
TEST_P(OptionsOfLevel, AreTheKernelsOnAListener) {
  EXPECT_EQ(for_each_option([](Option option) { return differences_in(option, State::listening); }), "");
}
TEST_P(OptionsOfLevel, AreTheKernelsOnAConnectedSocket) {
  EXPECT_EQ(for_each_option([](Option option) { return differences_in(option, State::connected); }), "");
}
TEST_P(OptionsOfLevel, AreTheKernelsOnAnAcceptedSocket) {
  EXPECT_EQ(for_each_option([](Option option) { return differences_in(option, State::accepted); }), "");
}

TEST_P(OptionsOfLevel, AreKeptThroughConnect) {
  EXPECT_EQ(for_each_option([](Option option) {
              Twins twins(GetParam().family, State::connected, [&](const Caller& caller, int fd) {
                const int value = 5;
                caller.set(fd, option.level, option.name, &value, sizeof value);
              });
              twins.look(option, "after connect");
              return twins.differences();
            }),
            "");
}

TEST_P(OptionsOfLevel, AreInheritedFromTheListener) {
  EXPECT_EQ(for_each_option([](Option option) {
              const bool is_waited_for = option == Option{IPPROTO_TCP, TCP_DEFER_ACCEPT};
              if (is_waited_for || is_in(option, kOfThePacket)) return std::string();
              Twins twins(GetParam().family, State::accepted, [&](const Caller& caller, int fd) {
                const int value = 5;
                caller.set(fd, option.level, option.name, &value, sizeof value);
              });
              twins.look(option, "after accept");
              return twins.differences();
            }),
            "");
}

INSTANTIATE_TEST_SUITE_P(All, OptionsOfLevel,
                         ::testing::Values(Values{SOL_SOCKET, 84, AF_INET}, Values{IPPROTO_IP, 54, AF_INET},
                                           Values{IPPROTO_TCP, 45, AF_INET}, Values{IPPROTO_IPV6, 2, AF_INET},
                                           Values{IPPROTO_IPV6, 80, AF_INET6}, Values{IPPROTO_UDP, 1, AF_INET}),
                         [](const auto& info) {
                           return "Level" + std::to_string(info.param.level) +
                                  (info.param.family == AF_INET ? "OfIpv4" : "OfIpv6");
                         });

// -- options that change what calls do

/// What a recvmsg(2) of some bytes tells beside them.
struct Received {
  ssize_t bytes = -1;
  int flags = 0;
  std::optional<int> unread;  ///< TCP_CM_INQ
  bool has_time = false;      ///< SCM_TIMESTAMP
};
Received receive_with_control(int fd, std::size_t bytes, std::size_t control_room) {
  std::string data(bytes, '\0');
  alignas(cmsghdr) std::array<char, 256> control{};
  iovec part{data.data(), data.size()};
  msghdr message = message_of(part);
  message.msg_control = control.data();
  message.msg_controllen = control_room;
  Received out;
  out.bytes = ::recvmsg(fd, &message, 0);
  out.flags = message.msg_flags;
  if (out.bytes < 0) return out;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    int number = 0;
    if (header->cmsg_len >= CMSG_LEN(sizeof number)) std::memcpy(&number, CMSG_DATA(header), sizeof number);
    if (header->cmsg_level == IPPROTO_TCP && header->cmsg_type == TCP_CM_INQ) out.unread = number;
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_TIMESTAMP) out.has_time = true;
  }
  return out;
}

void set_number(int fd, int level, int name, int value) {
  ASSERT_EQ(::setsockopt(fd, level, name, &value, sizeof value), 0) << std::strerror(errno);
}
int number_of(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(fd, level, name, &value, &length), 0) << std::strerror(errno);
  return value;
}

TEST(OptionsWithEffect, EachReceiveTellsHowManyBytesAreLeft) {
  auto [alice, bob] = connected_pair();
  ASSERT_NO_FATAL_FAILURE(set_number(bob, IPPROTO_TCP, TCP_INQ, 1));
  EXPECT_EQ(number_of(bob, IPPROTO_TCP, TCP_INQ), 1);
  ASSERT_EQ(::write(alice, "0123456789", 10), 10);
  ASSERT_NE(poll_once(bob, POLLIN, 5000), 0);
  EXPECT_EQ(receive_with_control(bob, 4, 256).unread, 6);

  // One more stands for the end of the stream.
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  ASSERT_NE(poll_once(bob, POLLRDHUP, 5000) & POLLRDHUP, 0);
  EXPECT_EQ(receive_with_control(bob, 4, 256).unread, 3);
  EXPECT_EQ(receive_with_control(bob, 4, 256).unread, 1);
  const Received end = receive_with_control(bob, 4, 256);
  EXPECT_EQ(end.bytes, 0);
  EXPECT_EQ(end.unread, 1);
}

TEST(OptionsWithEffect, AConnectionThatBecomesTheKernelsSendsWithoutDelayWhereItWasTold) {
  for (const int is_told : {0, 1}) {
    auto [alice, bob] = connected_pair();
    ASSERT_NO_FATAL_FAILURE(set_number(alice, IPPROTO_TCP, TCP_NODELAY, is_told));
    ASSERT_EQ(::fcntl(alice, F_SETFL, O_ASYNC), 0);
    ASSERT_FALSE(is_on_ring(alice));
    EXPECT_EQ(number_of(alice, IPPROTO_TCP, TCP_NODELAY), is_told);
    ASSERT_EQ(::write(bob, "0123456789", 10), 10);
    EXPECT_EQ(read_all(alice, 10), "0123456789");
  }
}

TEST(OptionsWithEffect, TheSegmentSizeIsAboutThatOfLoopback) {
  auto [alice, bob] = connected_pair();
  EXPECT_GE(number_of(alice, IPPROTO_TCP, TCP_MAXSEG), 16'384) << "iperf3 -u chooses the size of its datagrams by it";
  EXPECT_GE(number_of(bob, IPPROTO_TCP, TCP_MAXSEG), 16'384);
}

TEST(OptionsWithEffect, TheNumberOfBytesThatAreLeftIsCutOffWithoutRoom) {
  auto [alice, bob] = connected_pair();
  ASSERT_NO_FATAL_FAILURE(set_number(bob, IPPROTO_TCP, TCP_INQ, 1));
  ASSERT_EQ(::write(alice, "01", 2), 2);
  for (const std::size_t room : {std::size_t{0}, CMSG_LEN(sizeof(int)) - 1}) {
    const Received one = receive_with_control(bob, 1, room);
    EXPECT_EQ(one.bytes, 1);
    EXPECT_NE(one.flags & MSG_CTRUNC, 0) << room;
  }
}

/// The kernel begins to take times a moment after it was asked to.
void expect_a_time(int from, int to) {
  Received one;
  do {
    ASSERT_EQ(::write(from, "x", 1), 1);
    one = receive_with_control(to, 1, 256);
    ASSERT_EQ(one.bytes, 1) << std::strerror(errno);
  } while (!one.has_time);
}

TEST(OptionsWithEffect, ReceivesTellTheTimeOfTheirBytes) {
  auto [alice, bob] = connected_pair();
  ASSERT_NO_FATAL_FAILURE(set_number(bob, SOL_SOCKET, SO_TIMESTAMP, 1));
  EXPECT_EQ(number_of(bob, SOL_SOCKET, SO_TIMESTAMP), 1);
  ASSERT_NO_FATAL_FAILURE(expect_a_time(alice, bob));
}

/// iperf 2 sets the option on each connection and never asks for the time.
TEST(OptionsWithEffect, TimesLeaveAConnectionOnItsRingUntilAReceiveHasRoomForOne) {
  auto [alice, bob] = connected_pair();
  const bool was_on_ring = is_on_ring(bob);
  ASSERT_NO_FATAL_FAILURE(set_number(bob, SOL_SOCKET, SO_TIMESTAMP, 1));
  EXPECT_EQ(number_of(bob, SOL_SOCKET, SO_TIMESTAMP), 1);
  ASSERT_EQ(::write(alice, "0123", 4), 4);
  EXPECT_EQ(read_all(bob, 3), "012");
  EXPECT_EQ(is_on_ring(bob), was_on_ring);
  const Received last = receive_with_control(bob, 1, 256);
  EXPECT_EQ(last.bytes, 1);
  ASSERT_NO_FATAL_FAILURE(expect_a_time(alice, bob));
  EXPECT_FALSE(is_on_ring(bob));
  ASSERT_EQ(::write(bob, "back", 4), 4);
  EXPECT_EQ(read_all(alice, 4), "back");
}

TEST(OptionsWithEffect, TimesThatAreTurnedOffAgainLeaveAConnectionOnItsRing) {
  auto [alice, bob] = connected_pair();
  const bool was_on_ring = is_on_ring(bob);
  ASSERT_NO_FATAL_FAILURE(set_number(bob, SOL_SOCKET, SO_TIMESTAMP, 1));
  ASSERT_NO_FATAL_FAILURE(set_number(bob, SOL_SOCKET, SO_TIMESTAMP, 0));
  ASSERT_EQ(::write(alice, "x", 1), 1);
  const Received one = receive_with_control(bob, 1, 256);
  EXPECT_EQ(one.bytes, 1);
  EXPECT_FALSE(one.has_time);
  EXPECT_EQ(is_on_ring(bob), was_on_ring);
}

TEST(OptionsWithEffect, TimeLimitsHaveTwoNumbers) {
  auto [alice, bob] = connected_pair();
  const timeval limit{0, 20000};
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVTIMEO_NEW, &limit, sizeof limit), 0) << std::strerror(errno);
  char byte = 0;
  EXPECT_EQ(::recv(bob, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  timeval told{};
  socklen_t length = sizeof told;
  ASSERT_EQ(::getsockopt(bob, SOL_SOCKET, SO_RCVTIMEO, &told, &length), 0);
  EXPECT_EQ(told.tv_usec, limit.tv_usec);
}

TEST(OptionsWithEffect, AFilterIsThereOnceItIsSet) {
  std::array<sock_filter, 1> code{{{BPF_RET | BPF_K, 0, 0, 0xffffffff}}};  // lets everything through
  const sock_fprog program{code.size(), code.data()};
  const Fd fresh(::socket(AF_INET, SOCK_STREAM, 0));
  auto [alice, bob] = connected_pair();
  for (const int fd : {int(fresh), int(alice)}) {
    ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0) << std::strerror(errno);
    std::array<sock_filter, 4> kept{};
    socklen_t instructions = kept.size();
    ASSERT_EQ(::getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, kept.data(), &instructions), 0) << std::strerror(errno);
    EXPECT_EQ(instructions, 1U);
    EXPECT_FALSE(is_on_ring(fd));
  }
  ASSERT_EQ(::write(alice, "through", 7), 7);
  EXPECT_EQ(read_all(bob, 7), "through");
}

TEST(OptionsWithEffect, AFilterOfAFreshSocketIsThereWhenItIsConnected) {
  std::array<sock_filter, 1> code{{{BPF_RET | BPF_K, 0, 0, 0xffffffff}}};
  const sock_fprog program{code.size(), code.data()};
  const Fd listener = listening();
  Address there = name_of(listener);
  const Fd alice(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::setsockopt(alice, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
  ASSERT_EQ(::connect(alice, there.get(), there.length), 0) << std::strerror(errno);
  EXPECT_FALSE(is_on_ring(alice));
  const Fd bob(::accept(listener, nullptr, nullptr));
  ASSERT_EQ(::write(alice, "through", 7), 7);
  EXPECT_EQ(read_all(bob, 7), "through");
}

TEST(OptionsWithEffect, PriorityFollowsTheTypeOfService) {
  auto [alice, bob] = connected_pair();
  ASSERT_NO_FATAL_FAILURE(set_number(alice, IPPROTO_IP, IP_TOS, 0x10));
  EXPECT_EQ(number_of(alice, SOL_SOCKET, SO_PRIORITY), 6);
  ASSERT_NO_FATAL_FAILURE(set_number(alice, SOL_SOCKET, SO_PRIORITY, 2));
  EXPECT_EQ(number_of(alice, SOL_SOCKET, SO_PRIORITY), 2);
  EXPECT_EQ(number_of(alice, IPPROTO_IP, IP_TOS), 0x10);
}

TEST(OptionsWithEffect, TheCookieStaysTheSame) {
  auto [alice, bob] = connected_pair();
  const auto cookie_of = [](int fd) {
    std::uint64_t cookie = 0;
    socklen_t length = sizeof cookie;
    EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length), 0) << std::strerror(errno);
    return cookie;
  };
  EXPECT_EQ(cookie_of(alice), cookie_of(alice));
  EXPECT_NE(cookie_of(alice), cookie_of(bob));
}

TEST(OptionsWithEffect, ThePeersNameIsAnOption) {
  auto [alice, bob] = connected_pair();
  sockaddr_in name{};
  socklen_t length = sizeof name;
  ASSERT_EQ(::getsockopt(alice, SOL_SOCKET, SO_PEERNAME, &name, &length), 0) << std::strerror(errno);
  EXPECT_EQ(ntohs(name.sin_port), peer_of(alice).port());
  length = sizeof name + 1;
  EXPECT_EQ(::getsockopt(alice, SOL_SOCKET, SO_PEERNAME, &name, &length), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(OptionsWithEffect, GoWithAConnectionThatBecomesTheKernels) {
  auto [alice, bob] = connected_pair();
  ASSERT_NO_FATAL_FAILURE(set_number(alice, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 12345));
  ASSERT_NO_FATAL_FAILURE(set_number(alice, IPPROTO_IP, IP_RECVERR, 1));
  ASSERT_NO_FATAL_FAILURE(set_number(alice, SOL_SOCKET, SO_PEEK_OFF, 0));  // rings have none
  EXPECT_FALSE(is_on_ring(alice));
  EXPECT_EQ(number_of(alice, IPPROTO_TCP, TCP_NOTSENT_LOWAT), 12345);
  EXPECT_EQ(number_of(alice, IPPROTO_IP, IP_RECVERR), 1);
}

}  // namespace
}  // namespace ringsock::preload_tests
