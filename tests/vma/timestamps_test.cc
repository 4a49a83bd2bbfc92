// When datagrams came, and when they left.
#include <ctime>
//
#include <linux/errqueue.h>  // needs <ctime>
#include <linux/net_tstamp.h>
#include <poll.h>
#include <sys/syscall.h>

#include <chrono>
#include <thread>

#include "tests/support/raw_syscall.h"
#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

using std::chrono::nanoseconds;

class Timestamps : public Udp {};
INSTANTIATE_TEST_SUITE_P(Over, Timestamps, both_versions(), name_of_version);

nanoseconds as_nanos(const timespec& time) { return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec); }
nanoseconds now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return as_nanos(time);
}

struct Option {
  int name;
  int value;
  nanoseconds (*read)(Message&);
};
const Option kOptions[] = {
    {SO_TIMESTAMPNS, 1, [](Message& m) { return as_nanos(m.value<timespec>(SOL_SOCKET, SO_TIMESTAMPNS)); }},
    {SO_TIMESTAMP, 1,
     [](Message& m) {
       const auto time = m.value<timeval>(SOL_SOCKET, SO_TIMESTAMP);
       return nanoseconds(std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec));
     }},
    {SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE,
     [](Message& m) { return as_nanos(m.value<scm_timestamping>(SOL_SOCKET, SO_TIMESTAMPING).ts[0]); }},
};

/// Waits until the kernel looks at the clock when a datagram comes: it begins a while after the first socket has asked.
/// Until then the time is that of the read.
void until_the_kernel_takes_times(const Version& version) {
  const Socket socket(version.family);
  socket.set(SOL_SOCKET, SO_TIMESTAMPNS, 1);
  const Address me(version.loopback, 0);
  ASSERT_EQ(::bind(socket, me.get(), me.length()), 0);
  for (;; std::this_thread::yield()) {
    ASSERT_EQ(socket.send_to(socket.name(), "probe"), 5);
    const nanoseconds sent = now();  // it has come
    Message message;
    ASSERT_EQ(message.receive(socket), 5);
    if (as_nanos(message.value<timespec>(SOL_SOCKET, SO_TIMESTAMPNS)) <= sent) return;
  }
}

/// Has the other host send `text` to `to`. It has come when this returns, and nobody has looked at rings: the order is
/// given by system calls of our own.
void have_sent(const Address& echo, const std::string& text, const Address& to) {
  const long fd = raw_syscall(SYS_socket, echo.family(), SOCK_DGRAM, 0);
  const timeval limit{5, 0};
  raw_syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  for (const std::string& order :
       {"to " + to.host() + " " + std::to_string(to.port()) + " " + text, std::string("done?")}) {
    EXPECT_EQ(raw_syscall(SYS_sendto, fd, order.data(), order.size(), 0, echo.get(), echo.length()),
              static_cast<long>(order.size()));
  }
  char room[16];
  EXPECT_EQ(raw_syscall(SYS_recvfrom, fd, room, sizeof room, 0, nullptr, nullptr), 5);
  raw_syscall(SYS_close, fd);
}

TEST_P(Timestamps, TellWhenADatagramCameNotWhenItWasRead) {
  until_the_kernel_takes_times(GetParam());
  for (const Option& option : kOptions) {
    const Socket socket(GetParam().family);
    socket.limit_waits();
    bind_anywhere(socket);
    socket.set(SOL_SOCKET, option.name, option.value);
    get_acquainted(socket);
    const nanoseconds before = now();
    have_sent(echo_, "when?", Address(GetParam().here, socket.name().port()));
    const nanoseconds late = now();
    Message message;
    ASSERT_EQ(message.receive(socket), 5) << std::strerror(errno);
    const nanoseconds came = option.read(message);
    EXPECT_GE(came, before - std::chrono::microseconds(1)) << option.name;
    EXPECT_LE(came, late) << option.name;
  }
}

TEST_P(Timestamps, EndWhenTheyAreNotWantedAnyMore) {
  bind_anywhere(socket_);
  socket_.set(SOL_SOCKET, SO_TIMESTAMP, 1);
  socket_.set(SOL_SOCKET, SO_TIMESTAMPNS, 1);
  get_acquainted(socket_);
  ASSERT_EQ(socket_.send_to(echo_, "one"), 3);
  Message first;
  ASSERT_EQ(first.receive(socket_), 3);
  EXPECT_TRUE(first.has(SOL_SOCKET, SO_TIMESTAMPNS));
  EXPECT_FALSE(first.has(SOL_SOCKET, SO_TIMESTAMP)) << "the later one counts";
  socket_.set(SOL_SOCKET, SO_TIMESTAMPNS, 0);
  ASSERT_EQ(socket_.send_to(echo_, "two"), 3);
  Message second;
  ASSERT_EQ(second.receive(socket_), 3);
  EXPECT_EQ(second.header.msg_controllen, 0U);
}

TEST_P(Timestamps, TheErrorQueueTellsWhenADatagramLeft) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  socket_.set(
      SOL_SOCKET, SO_TIMESTAMPING,
      SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_TSONLY | SOF_TIMESTAMPING_OPT_ID);
  const nanoseconds before = now();
  ASSERT_EQ(socket_.send_to(echo_, "leaving"), 7);
  EXPECT_EQ(socket_.receive(), "leaving") << "the answer";
  pollfd entry{socket_, 0, 0};
  ASSERT_EQ(::poll(&entry, 1, -1), 1);
  EXPECT_EQ(entry.revents & POLLERR, POLLERR);
  Message message(MSG_ERRQUEUE);
  ASSERT_GE(message.receive(socket_), 0) << std::strerror(errno);
  EXPECT_EQ(message.header.msg_flags & MSG_ERRQUEUE, MSG_ERRQUEUE);
  const nanoseconds left = as_nanos(message.value<scm_timestamping>(SOL_SOCKET, SO_TIMESTAMPING).ts[0]);
  EXPECT_GE(left, before);
  EXPECT_LE(left, now());
  socket_.limit_waits(0);  // no limit: the next call would never return if it waited
  EXPECT_EQ(message.receive(socket_), -1) << "an empty error queue is told at once";
  EXPECT_EQ(errno, EAGAIN);
}

}  // namespace
}  // namespace ringsock::vma_tests
