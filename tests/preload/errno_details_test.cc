// The errno of calls in rare states, and which of several errors comes first.
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <thread>

#include "tests/preload/tcp_world.h"
#include "tests/support/bad_memory.h"
#include "tests/support/sanitizers.h"
#include "tests/support/signals.h"

namespace ringsock::preload_tests {
namespace {

/// Closes `fd`, so that the peer gets a reset.
void reset_by(Fd& fd) {
  const linger at_once{1, 0};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  fd.reset();
}
/// Alice, whom Bob has reset, which she knows.
Fd reset_end() {
  Pair pair = connected_pair();
  reset_by(pair.bob);
  EXPECT_NE(poll_once(pair.alice, POLLIN, 5000) & POLLERR, 0);
  return std::move(pair.alice);
}

/// A pipe's ends: out of `out` comes what is written to `in`.
struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    out = Fd(ends[0]);
    in = Fd(ends[1]);
  }
  Fd out, in;
};

/// A socket whose connect(2) without blocking has begun, and its listener.
struct Connecting {
  Connecting() {
    EXPECT_EQ(::connect(fd, there.get(), there.length), -1);
    EXPECT_EQ(errno, EINPROGRESS);
  }
  Fd listener = listening();
  Address there = name_of(listener);
  Fd fd{::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)};
};

// -- after calls that have succeeded

/// Guile takes EINTR for a call that has to be made again, whatever it has returned.
template <class Call, class Finish>
void expect_no_errno_after_a_signal(Call call, Finish finish) {
  const support::Disposition counted(SIGUSR1, support::count_handled, SA_RESTART);
  long result = -1;
  int error = -1;
  std::thread waits([&] {
    errno = 0;
    result = call();
    error = errno;
  });
  for (int turn = 1; turn <= 3; ++turn) {
    ::usleep(10'000);
    ::pthread_kill(waits.native_handle(), SIGUSR1);
    while (support::handled < turn) ::usleep(1000);
  }
  ::usleep(10'000);
  finish();
  waits.join();
  EXPECT_GE(result, 0);
  EXPECT_EQ(error, 0);
  if (result > 2) ::close(static_cast<int>(result));
}

TEST(ErrnoOfSuccess, AReceiveThatASignalHasInterruptedLeavesNone) {
  if (support::kDelaysHandlers) GTEST_SKIP() << "ThreadSanitizer delays the handler";
  const Pair pair = connected_pair();
  char byte = 0;
  expect_no_errno_after_a_signal([&] { return ::recv(pair.bob, &byte, 1, 0); },
                                 [&] { EXPECT_EQ(::send(pair.alice, "x", 1, 0), 1); });
}

TEST(ErrnoOfSuccess, AnAcceptThatASignalHasInterruptedLeavesNone) {
  if (support::kDelaysHandlers) GTEST_SKIP() << "ThreadSanitizer delays the handler";
  const Fd listener = listening();
  Fd client;
  expect_no_errno_after_a_signal([&] { return ::accept(listener, nullptr, nullptr); },
                                 [&] { client = connected_to(listener); });
}

TEST(ErrnoOfCounts, NegativeOnesAreInvalid) {
  Pair pair = connected_pair();
  const Fd file(::open("/bin/sh", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(error_of(::sendfile(pair.alice, file, nullptr, static_cast<std::size_t>(-1))), EINVAL);
  ASSERT_EQ(::send(pair.alice, "x", 1, 0), 1);
  char byte = 0;
  iovec part{&byte, 1};
  sockaddr_in name{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_name = &name;
  message.msg_namelen = static_cast<socklen_t>(-1);
  EXPECT_EQ(error_of(::recvmsg(pair.bob, &message, 0)), EINVAL);
  EXPECT_EQ(read_all(pair.bob, 1), "x");
}

TEST(ErrnoOfCounts, AnOptionWithoutRoomIsNotWritten) {
  Pair pair = connected_pair();
  for (const int option : {SO_RCVBUF, SO_LINGER, SO_RCVTIMEO}) {
    socklen_t none = 0;
    EXPECT_EQ(::getsockopt(pair.alice, SOL_SOCKET, option, nullptr, &none), 0) << "option " << option;
    EXPECT_EQ(none, 0U);
  }
}

// -- sends from bad memory

class SendFromBadMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (support::kHasAddressSanitizer || support::kHasThreadSanitizer)
      GTEST_SKIP() << "the sanitizer's own functions look at what is passed";
  }
  /// Returns the error of send(2), sendto(2) and sendmsg(2), which must be the same.
  [[nodiscard]] int error_of_sends(int fd, char* place) const {
    iovec part{place, 8};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
    const int error = error_of(::send(fd, place, 8, kFlags));
    EXPECT_EQ(error_of(::sendmsg(fd, &message, kFlags)), error);
    EXPECT_EQ(error_of(::sendto(fd, place, 8, kFlags, name_.get(), name_.length)), error);
    return error;
  }
  BadMemory memory_;
  char* const hole_ = memory_.last(0);
  mutable Address name_ = Address::loopback(AF_INET, 9);
};

TEST_F(SendFromBadMemory, TellsTheEndOfTheConnectionFirst) {
  auto [alice, bob] = connected_pair();
  EXPECT_EQ(error_of_sends(alice, hole_), EFAULT);
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  EXPECT_EQ(error_of_sends(alice, hole_), EPIPE);
  EXPECT_EQ(error_of_sends(alice, reinterpret_cast<char*>(UINTPTR_MAX - 63)), EFAULT);  // no address of a process
}

TEST_F(SendFromBadMemory, TellsTheErrorOfTheSocketFirst) {
  const Fd alice = reset_end();
  EXPECT_EQ(error_of(::send(alice, hole_, 8, MSG_NOSIGNAL)), ECONNRESET);
  EXPECT_EQ(error_of_sends(alice, hole_), EPIPE);
}

TEST_F(SendFromBadMemory, TellsThatThereIsNoRoomFirst) {
  auto [alice, bob] = connected_pair();
  const std::string bytes(65536, 'x');
  while (::send(alice, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) continue;
  ASSERT_EQ(errno, EAGAIN);
  EXPECT_EQ(error_of_sends(alice, hole_), EAGAIN);
}

// -- splice(2)

TEST(ErrnoOfSplice, UnknownFlagsAndNoBytes) {
  auto [alice, bob] = connected_pair();
  const Pipe pipe;
  EXPECT_EQ(error_of(::splice(bob, nullptr, pipe.in, nullptr, 7, 0x100)), EINVAL);
  EXPECT_EQ(error_of(::splice(pipe.out, nullptr, bob, nullptr, 7, 0x100)), EINVAL);
  EXPECT_EQ(::splice(bob, nullptr, pipe.in, nullptr, 0, 0x100), 0);
  EXPECT_EQ(::splice(bob, nullptr, alice, nullptr, 0, 0), 0);
}

TEST(ErrnoOfSplice, OffsetsOfTheSocketAndOfThePipe) {
  auto [alice, bob] = connected_pair();
  const Pipe pipe;
  ASSERT_EQ(::write(alice, "x", 1), 1);
  ASSERT_EQ(::write(pipe.in, "y", 1), 1);
  off64_t offset = 0;
  EXPECT_EQ(error_of(::splice(bob, &offset, pipe.in, nullptr, 7, 0)), EINVAL);
  EXPECT_EQ(error_of(::splice(bob, nullptr, pipe.in, &offset, 7, 0)), ESPIPE);
  EXPECT_EQ(error_of(::splice(pipe.out, nullptr, bob, &offset, 7, 0)), EINVAL);
  EXPECT_EQ(error_of(::splice(pipe.out, &offset, bob, nullptr, 7, 0)), ESPIPE);
  const Fd closed(::dup(bob));
  ::close(closed);
  EXPECT_EQ(error_of(::splice(bob, &offset, closed, nullptr, 7, 0)), EBADF);
}

TEST(ErrnoOfSplice, TheWrongEndOfAPipe) {
  auto [alice, bob] = connected_pair();
  const Pipe pipe;
  EXPECT_EQ(error_of(::splice(bob, nullptr, pipe.out, nullptr, 7, SPLICE_F_NONBLOCK)), EBADF);
  EXPECT_EQ(error_of(::splice(pipe.in, nullptr, bob, nullptr, 7, SPLICE_F_NONBLOCK)), EBADF);
}

TEST(ErrnoOfSplice, IntoAListenerIsABrokenPipe) {
  const support::Disposition ignored(SIGPIPE, SIG_IGN);
  const Fd listener = listening();
  const Pipe pipe;
  ASSERT_EQ(::write(pipe.in, "bytes", 5), 5);
  EXPECT_EQ(error_of(::splice(pipe.out, nullptr, listener, nullptr, 5, 0)), EPIPE);
}

TEST(ErrnoOfSplice, AnEmptyPipeComesBeforeTheSocket) {
  auto [alice, bob] = connected_pair();
  Pipe pipe;
  ASSERT_EQ(::shutdown(bob, SHUT_WR), 0);
  EXPECT_EQ(error_of(::splice(pipe.out, nullptr, bob, nullptr, 7, SPLICE_F_NONBLOCK)), EAGAIN);
  pipe.in.reset();
  EXPECT_EQ(::splice(pipe.out, nullptr, bob, nullptr, 7, 0), 0);
}

// -- flags of sends and receives

TEST(ErrnoOfFlags, TheErrorQueueIsEmptyInEveryState) {
  char byte = 0;
  const Fd fresh(::socket(AF_INET, SOCK_STREAM, 0)), listener = listening(), alice = reset_end();
  for (const int fd : {int(fresh), int(listener), int(alice)})
    EXPECT_EQ(error_of(::recv(fd, &byte, 1, MSG_ERRQUEUE)), EAGAIN);
  EXPECT_EQ(error_of(::recv(alice, &byte, 1, 0)), ECONNRESET);
}

TEST(ErrnoOfFlags, NoUrgentDataComesBeforeTheErrorOfTheSocket) {
  char byte = 0;
  const Fd fresh(::socket(AF_INET, SOCK_STREAM, 0)), listener = listening(), alice = reset_end();
  EXPECT_EQ(error_of(::recv(fresh, &byte, 1, MSG_OOB)), EINVAL);
  EXPECT_EQ(error_of(::recv(alice, &byte, 1, MSG_OOB)), EINVAL);
  EXPECT_EQ(error_of(::recv(listener, &byte, 1, MSG_OOB)), ENOTCONN);
}

TEST(ErrnoOfFlags, UrgentDataOfASocketThatIsNotConnected) {
  const Fd fresh(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(error_of(::send(fresh, "x", 1, MSG_OOB | MSG_NOSIGNAL)), EPIPE);
}

TEST(ErrnoOfFlags, FastopenWithoutAnAddress) {
  constexpr int kFlags = MSG_FASTOPEN | MSG_NOSIGNAL;
  const Fd fresh(::socket(AF_INET, SOCK_STREAM, 0)), listener = listening();
  EXPECT_EQ(error_of(::send(fresh, "x", 1, kFlags)), EINVAL);
  EXPECT_EQ(error_of(::send(listener, "x", 1, kFlags)), EISCONN);
  auto [alice, bob] = connected_pair();
  EXPECT_EQ(error_of(::send(alice, "x", 1, kFlags)), EISCONN);
}

TEST(ErrnoOfFlags, FastopenToNoFamily) {
  const Fd fresh(::socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  EXPECT_EQ(error_of(::sendto(fresh, "x", 1, MSG_FASTOPEN, &nowhere, sizeof nowhere)), EOPNOTSUPP);
}

TEST(ErrnoOfFlags, SendmsgWithFastopenConnects) {
  const Fd listener = listening();
  Address there = name_of(listener);
  const Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
  std::string text = "first";
  iovec part{text.data(), text.size()};
  msghdr message{};
  message.msg_name = there.get();
  message.msg_namelen = there.length;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(::sendmsg(fd, &message, MSG_FASTOPEN), 5) << std::strerror(errno);
  const Fd accepted(::accept(listener, nullptr, nullptr));
  EXPECT_EQ(read_all(accepted, 5), "first");
}

TEST(ErrnoOfFlags, Preadv2AndPwritev2) {
  auto [alice, bob] = connected_pair();
  std::string text = "xyz";
  const iovec part{text.data(), 3};
  EXPECT_EQ(::pwritev2(alice, &part, 1, -1, RWF_APPEND), 3) << std::strerror(errno);
  EXPECT_EQ(::preadv2(bob, &part, 1, -1, RWF_APPEND), 3) << std::strerror(errno);
  EXPECT_EQ(error_of(::pwritev2(alice, &part, 1, -2, 0)), EINVAL);
  EXPECT_EQ(error_of(::preadv2(bob, &part, 1, -2, 0)), EINVAL);
  EXPECT_EQ(error_of(::preadv2(bob, &part, 1, 0, 0)), ESPIPE);
}

// -- addresses

TEST(ErrnoOfAddresses, BindOfAConnectedSocketChecksTheAddressFirst) {
  auto [alice, bob] = connected_pair();
  Address any = Address::loopback(AF_INET, 0), six = Address::loopback(AF_INET6, 0);
  EXPECT_EQ(error_of(::bind(alice, any.get(), any.length)), EINVAL);
  EXPECT_EQ(error_of(::bind(alice, any.get(), 3)), EINVAL);
  EXPECT_EQ(error_of(::bind(alice, six.get(), six.length)), EAFNOSUPPORT);
  auto& in = reinterpret_cast<sockaddr_in&>(any.storage);
  in.sin_addr.s_addr = htonl(0xC0000201);  // 192.0.2.1, of documentation
  EXPECT_EQ(error_of(::bind(alice, any.get(), any.length)), EADDRNOTAVAIL);
}

TEST(ErrnoOfAddresses, BindAfterAResetSucceeds) {
  const Fd alice = reset_end();
  Address any = Address::loopback(AF_INET, 0);
  EXPECT_EQ(::bind(alice, any.get(), any.length), 0) << std::strerror(errno);
  EXPECT_NE(name_of(alice).port(), 0);
}

TEST(ErrnoOfAddresses, ConnectNeedsAFamily) {
  auto [alice, bob] = connected_pair();
  const Fd fresh(::socket(AF_INET, SOCK_STREAM, 0));
  Address there = Address::loopback(AF_INET, 9);
  for (const int fd : {int(alice), int(fresh)}) {
    EXPECT_EQ(error_of(::connect(fd, there.get(), 0)), EINVAL);
    EXPECT_EQ(error_of(::connect(fd, there.get(), 1)), EINVAL);
  }
}

TEST(ErrnoOfAddresses, APeerOfThisHostHasThePathMtuOfLoopback) {
  int mtu = 0;
  socklen_t length = sizeof mtu;
  const Fd fresh(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(error_of(::getsockopt(fresh, IPPROTO_IP, IP_MTU, &mtu, &length)), ENOTCONN);
  auto [alice, bob] = connected_pair();
  for (const int fd : {int(alice), int(bob)}) {
    mtu = 0;
    ASSERT_EQ(::getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &length), 0) << std::strerror(errno);
    EXPECT_EQ(mtu, 65535);
  }
}

// -- connections under way, and their ends

/// Accepts and resets the connection that is under way, which its end knows then.
void reset_once_made(Connecting& alice) {
  Fd bob(::accept(alice.listener, nullptr, nullptr));
  ASSERT_NE(poll_once(alice.fd, POLLOUT, 5000), 0);
  reset_by(bob);
  ASSERT_NE(poll_once(alice.fd, POLLIN, 5000) & POLLERR, 0);
}

TEST(ErrnoOfConnects, TheFirstConnectAfterOneThatWasResetMeanwhileTellsOfTheReset) {
  Connecting alice;
  ASSERT_NO_FATAL_FAILURE(reset_once_made(alice));
  EXPECT_EQ(error_of(::connect(alice.fd, alice.there.get(), alice.there.length)), ECONNRESET);
  EXPECT_EQ(error_of(::connect(alice.fd, alice.there.get(), alice.there.length)), EINPROGRESS);
}

TEST(ErrnoOfConnects, TheFirstConnectAfterAResetThatIsToldSaysAborted) {
  Connecting alice;
  ASSERT_NO_FATAL_FAILURE(reset_once_made(alice));
  EXPECT_EQ(socket_error(alice.fd), ECONNRESET);
  EXPECT_EQ(error_of(::connect(alice.fd, alice.there.get(), alice.there.length)), ECONNABORTED);
}

TEST(ErrnoOfConnects, ASocketThatIsDisconnectedHasTheErrorOfAReset) {
  auto [alice, bob] = connected_pair();
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  ASSERT_EQ(::connect(alice, &nowhere, sizeof nowhere), 0);
  EXPECT_EQ(poll_once(alice, POLLIN | POLLOUT) & (POLLERR | POLLHUP), POLLERR | POLLHUP);
  EXPECT_EQ(socket_error(alice), ECONNRESET);
}

TEST(ErrnoOfConnects, AConnectThatDoesNotBlockIsNeverMadeAtOnce) {
  const Fd listener = listening();
  Address there = name_of(listener);
  ASSERT_EQ(::fcntl(listener, F_SETFL, O_NONBLOCK), 0);
  std::atomic<bool> is_done{false};
  std::thread server([&] {
    while (!is_done) const Fd client(::accept(listener, nullptr, nullptr));
  });
  for (int i = 0; i < 100; ++i) {
    const Fd alice(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    EXPECT_EQ(error_of(::connect(alice, there.get(), there.length)), EINPROGRESS);
    EXPECT_NE(poll_once(alice, POLLOUT, 5000) & POLLOUT, 0);
  }
  is_done = true;
  server.join();
}

TEST(ErrnoOfConnects, ShutdownOfAConnectThatIsUnderWay) {
  Connecting alice;
  ASSERT_EQ(::shutdown(alice.fd, SHUT_WR), 0) << std::strerror(errno);
  const Fd bob(::accept(alice.listener, nullptr, nullptr));
  char byte = 0;
  EXPECT_EQ(::read(bob, &byte, 1), 0) << std::strerror(errno);
  ASSERT_EQ(::write(bob, "x", 1), 1);
  EXPECT_EQ(poll_once(alice.fd, POLLIN, 5000) & POLLIN, POLLIN);
  EXPECT_EQ(::read(alice.fd, &byte, 1), 1) << std::strerror(errno);
}

TEST(ErrnoOfConnects, AServerThatAcceptsDuringAShutdownServesThatClient) {
  const Fd listener = listening();
  Address there = name_of(listener);
  constexpr int kClients = 200;
  std::thread server([&] {
    for (int i = 0; i < kClients; ++i) {
      const Fd bob(::accept(listener, nullptr, nullptr));
      char byte = 0;
      if (bob < 0) return;
      EXPECT_EQ(::read(bob, &byte, 1), 0);
      EXPECT_EQ(::write(bob, "x", 1), 1);
    }
  });
  for (int i = 0; i < kClients; ++i) {
    const Fd alice(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    EXPECT_EQ(error_of(::connect(alice, there.get(), there.length)), EINPROGRESS);
    EXPECT_EQ(error_of(::shutdown(alice, SHUT_WR)), 0);
    EXPECT_NE(poll_once(alice, POLLIN, 5000) & POLLIN, 0);
    char byte = 0;
    EXPECT_EQ(::read(alice, &byte, 1), 1) << "client " << i;
    if (::testing::Test::HasFailure()) break;
  }
  ::shutdown(listener, SHUT_RD);
  server.join();
}

// -- settings

TEST(ErrnoOfSettings, SocketsHaveNoDirectInputAndOutput) {
  auto [alice, bob] = connected_pair();
  EXPECT_EQ(error_of(::fcntl(alice, F_SETFL, O_DIRECT | O_NONBLOCK)), EINVAL);
  EXPECT_EQ(::fcntl(alice, F_GETFL) & (O_NONBLOCK | O_DIRECT), 0);
}

TEST(ErrnoOfSettings, CongestionControlThatNobodyKnows) {
  auto [alice, bob] = connected_pair();
  EXPECT_EQ(error_of(::setsockopt(alice, IPPROTO_TCP, TCP_CONGESTION, "nonesuch", 8)), ENOENT);
  char name[16] = {};
  socklen_t length = sizeof name;
  ASSERT_EQ(::getsockopt(alice, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  EXPECT_EQ(::setsockopt(alice, IPPROTO_TCP, TCP_CONGESTION, name, length), 0) << std::strerror(errno);
  EXPECT_EQ(::setsockopt(alice, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0) << std::strerror(errno);
}

}  // namespace
}  // namespace ringsock::preload_tests
