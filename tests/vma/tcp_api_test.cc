// VMA's Extra API on TCP connections that rings carry (VMA_TCP=on), with the kernel as the peer on the other host.
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/extra_api.h"
#include "tests/vma/tcp_world.h"

namespace ringsock::vma_tests {
namespace {

using support::api;
using support::error_of;
using support::free_one;
using Packets = support::StreamPackets;

constexpr const char* kHere = "10.9.0.1";
constexpr int kZeroCopy = MSG_VMA_ZCOPY, kForce = MSG_VMA_ZCOPY_FORCE, kForced = kForce | MSG_DONTWAIT;

constexpr int kDummy = VMA_SND_FLAGS_DUMMY;
constexpr std::size_t kMuchUnread = 1'000'000;

/// A pattern without short periods.
std::string pattern(std::size_t bytes) {
  std::string out(bytes, '\0');
  std::uint32_t state = 7;
  for (char& one : out) one = static_cast<char>((state = state * 1'664'525 + 1'013'904'223) >> 24);
  return out;
}

class TcpZeroCopy : public testing::Test {
 protected:
  TcpZeroCopy() { EXPECT_TRUE(pair_.here.is_on_ring()); }
  [[nodiscard]] int here() const { return pair_.here.fd(); }
  /// The peer sends until neither its queue nor our buffer has room. Returns how many bytes.
  [[nodiscard]] std::size_t fill() const {
    const std::string piece(16'384, 'x');
    std::size_t sent = 0;
    for (int full = 0; full < 20;) {
      const long count = pair_.there.send_some(piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      full = count > 0 ? 0 : full + 1;
      if (count > 0) sent += static_cast<std::size_t>(count);
      if (count <= 0) ::usleep(5'000);
    }
    return sent;
  }
  /// Leaves the ring, as setsockopt(2) with an option that only the kernel has does.
  void go_to_kernel() const {
    const int clamp = 60'000;
    ASSERT_EQ(::setsockopt(here(), IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof clamp), 0);
    ASSERT_FALSE(pair_.here.is_on_ring());
  }

  Pair pair_ = accept_here(kHere, Calls::kernels);
};

TEST_F(TcpZeroCopy, TheProgramGetsTheStreamsNextBytesWhereTheyLie) {
  ASSERT_EQ(pair_.there.send("question"), 8U);
  Packets packets;
  ASSERT_EQ(packets.receive(here()), 8) << std::strerror(errno);
  EXPECT_TRUE(packets.are_lent());
  EXPECT_EQ(packets.text(), "question");
  EXPECT_EQ(packets.free(here()), 0) << std::strerror(errno);
}

TEST_F(TcpZeroCopy, ALongStreamArrivesAsItWasAndEveryPacketGoesBack) {
  const std::string sent = pattern(20'000'000);
  std::thread sends([&] { EXPECT_EQ(pair_.there.send(sent), sent.size()); });
  std::string got;
  while (got.size() < sent.size()) {
    Packets packets;
    ASSERT_GT(packets.receive(here(), kForce), 0) << "after " << got.size() << std::strerror(errno);
    ASSERT_TRUE(packets.are_lent());
    got += packets.text();
    ASSERT_EQ(packets.free(here()), 0) << std::strerror(errno);
  }
  sends.join();
  EXPECT_TRUE(got == sent);
  EXPECT_TRUE(pair_.here.is_on_ring());
}

TEST_F(TcpZeroCopy, ZeroCopyAndCopiesTakeTurns) {
  const std::string sent = pattern(3'000'000);
  std::thread sends([&] { EXPECT_EQ(pair_.there.send(sent), sent.size()); });
  std::string got;
  for (int turn = 0; got.size() < sent.size(); ++turn) {
    if (turn % 2 == 0) {
      const std::string copy = pair_.here.receive(std::min<std::size_t>(777, sent.size() - got.size()));
      ASSERT_FALSE(copy.empty());
      got += copy;
      continue;
    }
    Packets packets(sizeof(vma_packets_t) + 2 * 32);
    ASSERT_GT(packets.receive(here()), 0);
    ASSERT_LE(packets.count(), 2U) << "the list has room for two";
    got += packets.text();
    ASSERT_EQ(packets.free(here()), 0);
  }
  sends.join();
  EXPECT_TRUE(got == sent);
}

TEST_F(TcpZeroCopy, HeldPacketsKeepTheirBytesWhileTheStreamGoesOn) {
  ASSERT_EQ(pair_.there.send("held"), 4U);
  Packets held;
  ASSERT_EQ(held.receive(here()), 4);
  const std::string rest = pattern(5'000'000);
  std::thread sends([&] { EXPECT_EQ(pair_.there.send(rest), rest.size()); });
  EXPECT_TRUE(pair_.here.receive(rest.size()) == rest);
  sends.join();
  EXPECT_EQ(held.text(), "held");
  EXPECT_EQ(held.free(here()), 0);
}

TEST_F(TcpZeroCopy, HeldPacketsKeepTheWindowShutUntilTheyAreFreed) {
  const int bytes = 100'000;
  ASSERT_EQ(::setsockopt(here(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  ASSERT_GT(fill(), 0U);
  std::vector<Packets> held;
  for (;;) {
    Packets packets;
    if (packets.receive(here(), kForced) <= 0) break;
    held.push_back(std::move(packets));
  }
  ASSERT_EQ(errno, EAGAIN);
  ASSERT_FALSE(held.empty());
  ::usleep(50'000);
  Packets none;
  EXPECT_EQ(error_of([&] { return none.receive(here(), kForced); }), EAGAIN)
      << "the peer had more, and the program had read all: the window is shut by what the program holds";
  for (Packets& packets : held) ASSERT_EQ(packets.free(here()), 0);
  Packets more;
  ASSERT_GT(more.receive(here()), 0) << std::strerror(errno);
  EXPECT_EQ(more.free(here()), 0);
}

TEST_F(TcpZeroCopy, TheWindowIsWholeAgainAfterManyPacketsWereHeld) {
  const int bytes = 200'000;
  ASSERT_EQ(::setsockopt(here(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  std::size_t first = 0;
  for (int round = 0; round < 4; ++round) {
    const std::size_t filled = fill();
    if (round == 1) first = filled;
    if (round > 1) {
      EXPECT_GE(filled, first / 2) << "in round " << round;
    }
    std::vector<Packets> held;
    std::size_t got = 0;
    while (got < filled) {
      Packets packets;
      const int count = packets.receive(here(), kForced);
      if (count > 0) {
        got += static_cast<std::size_t>(count);
        held.push_back(std::move(packets));
        continue;
      }
      ASSERT_EQ(errno, EAGAIN);
      for (Packets& one : held) ASSERT_EQ(one.free(here()), 0);
      held.clear();
    }
    for (Packets& one : held) ASSERT_EQ(one.free(here()), 0);
  }
}

TEST_F(TcpZeroCopy, RoomForOnePacketIsTheLeast) {
  ASSERT_EQ(pair_.there.send("five!"), 5U);
  Packets small(39), enough(40);
  Packets wait;
  char one = 0;
  ASSERT_EQ(::recv(here(), &one, 1, MSG_PEEK), 1);
  EXPECT_EQ(error_of([&] { return small.receive(here()); }), ENOBUFS);
  EXPECT_EQ(enough.receive(here()), 5);
  EXPECT_EQ(enough.text(), "five!");
  EXPECT_EQ(enough.free(here()), 0);
}

TEST_F(TcpZeroCopy, WhatIsNotLentIsNotFreed) {
  const Pair other = accept_here(kHere, Calls::kernels);
  ASSERT_EQ(pair_.there.send("mine"), 4U);
  Packets packets;
  ASSERT_EQ(packets.receive(here()), 4);
  void* const id = packets.ids().at(0);
  EXPECT_EQ(error_of([&] { return free_one(other.here.fd(), id); }), ENOENT) << "foreign";
  EXPECT_EQ(error_of([&] { return free_one(here(), static_cast<char*>(id) + 8); }), ENOENT) << "garbage";
  EXPECT_EQ(error_of([&] { return free_one(here(), nullptr); }), ENOENT);
  EXPECT_EQ(error_of([&] { return api().free_packets(here(), nullptr, 1); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api().free_packets(here(), reinterpret_cast<vma_packet_t*>(8), 1); }), EFAULT);
  EXPECT_EQ(packets.text(), "mine");
  EXPECT_EQ(packets.free(here()), 0);
  EXPECT_EQ(error_of([&] { return free_one(here(), id); }), ENOENT) << "twice";
}

TEST_F(TcpZeroCopy, NothingThereIsEagainAndTheEndIsZero) {
  Packets packets;
  EXPECT_EQ(error_of([&] { return packets.receive(here(), MSG_DONTWAIT); }), EAGAIN);
  const Stream there = std::move(pair_.there);
  ASSERT_EQ(there.send("last"), 4U);
  there.shut_down(SHUT_WR);
  ASSERT_EQ(packets.receive(here()), 4);
  Packets end;
  EXPECT_EQ(end.receive(here()), 0);
  EXPECT_EQ(packets.text(), "last");
  EXPECT_EQ(packets.free(here()), 0);
}

TEST_F(TcpZeroCopy, AResetIsToldAndHeldPacketsStay) {
  ASSERT_EQ(pair_.there.send("held"), 4U);
  Packets held;
  ASSERT_EQ(held.receive(here()), 4);
  const linger now{1, 0};
  ASSERT_EQ(raw_syscall(SYS_setsockopt, pair_.there.fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
  pair_.there.close();
  Packets none;
  EXPECT_EQ(error_of([&] { return none.receive(here()); }), ECONNRESET);
  EXPECT_EQ(held.text(), "held");
  EXPECT_EQ(held.free(here()), 0);
}

TEST_F(TcpZeroCopy, APeekIsACopy) {
  ASSERT_EQ(pair_.there.send("look"), 4U);
  Packets copied;
  ASSERT_EQ(copied.receive(here(), MSG_PEEK | kZeroCopy), 4);
  EXPECT_FALSE(copied.are_lent());
  EXPECT_EQ(copied.text(), "look");
  EXPECT_EQ(error_of([&] { return copied.receive(here(), MSG_PEEK | kForced); }), EOPNOTSUPP);
  EXPECT_EQ(pair_.here.receive(4), "look");
}

TEST_F(TcpZeroCopy, OnTheKernelBytesAreCopied) {
  go_to_kernel();
  ASSERT_EQ(pair_.there.send("copied"), 6U);
  Packets packets;
  ASSERT_EQ(packets.receive(here(), kZeroCopy), 6) << std::strerror(errno);
  EXPECT_FALSE(packets.are_lent());
  EXPECT_EQ(packets.text(), "copied");
}

TEST_F(TcpZeroCopy, PacketsOutliveTheWayToTheKernel) {
  ASSERT_EQ(pair_.there.send("held"), 4U);
  Packets held;
  ASSERT_EQ(held.receive(here()), 4);
  go_to_kernel();
  ASSERT_EQ(pair_.there.send("more"), 4U);
  EXPECT_EQ(pair_.here.receive(4), "more");
  EXPECT_EQ(held.text(), "held");
  void* const id = held.ids().at(0);
  EXPECT_EQ(held.free(here()), 0) << std::strerror(errno);
  EXPECT_EQ(error_of([&] { return free_one(here(), id); }), EINVAL) << "twice";
}

TEST_F(TcpZeroCopy, AWaitingCallGoesOnWhenTheConnectionMoves) {
  Packets packets;
  int got = 0;
  std::thread waits([&] { got = packets.receive(here()); });
  ::usleep(20'000);
  go_to_kernel();
  ASSERT_EQ(pair_.there.send("late"), 4U);
  waits.join();
  EXPECT_EQ(got, 4);
  EXPECT_FALSE(packets.are_lent());
  EXPECT_EQ(packets.text(), "late");
}

TEST_F(TcpZeroCopy, AForkedChildReadsAndFreesItsCopies) {
  ASSERT_EQ(pair_.there.send("both"), 4U);
  Packets held;
  ASSERT_EQ(held.receive(here()), 4);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(held.text() == "both" && held.free(here()) == 0 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(held.text(), "both");
  EXPECT_EQ(held.free(here()), 0);
}

TEST_F(TcpZeroCopy, ARingBringsTheConnection) {
  EXPECT_EQ(api().get_socket_rings_num(here()), 1);
  int ring = -1;
  EXPECT_EQ(api().get_socket_rings_fds(here(), &ring, 1), 1);
  EXPECT_GE(ring, 0);
  go_to_kernel();
  EXPECT_EQ(api().get_socket_rings_num(here()), 0);
}

// -- dummy sends

class TcpDummy : public TcpZeroCopy {};

TEST_F(TcpDummy, NothingLeavesAndTheStreamGoesOn) {
  std::string dummy = "dummy";
  iovec parts[2]{{dummy.data(), 2}, {dummy.data() + 2, 3}};
  mmsghdr message{};
  message.msg_hdr.msg_iov = parts;
  message.msg_hdr.msg_iovlen = 2;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(::send(here(), dummy.data(), 5, kDummy), 5) << std::strerror(errno);
    ASSERT_EQ(::sendto(here(), dummy.data(), 5, kDummy, nullptr, 0), 5) << std::strerror(errno);
    ASSERT_EQ(::sendmsg(here(), &message.msg_hdr, kDummy), 5) << std::strerror(errno);
    ASSERT_EQ(::sendmmsg(here(), &message, 1, kDummy), 1) << std::strerror(errno);
    ASSERT_EQ(pair_.here.send("real"), 4U);
    ASSERT_EQ(pair_.there.receive(4), "real");
    ASSERT_EQ(pair_.there.send("answer"), 6U);
    ASSERT_EQ(pair_.here.receive(6), "answer");
  }
  char more = 0;
  EXPECT_EQ(error_of([&] { return pair_.there.receive_some(&more, 1, MSG_DONTWAIT); }), EAGAIN);
  EXPECT_TRUE(pair_.here.is_on_ring());
}

TEST_F(TcpDummy, WhatDoesNotFitIsEagainAlsoOnABlockingSocket) {
  const std::string more_than_a_segment(20'000, 'd');
  const auto dummy = [&](std::size_t bytes) {
    return error_of([&] { return ::send(here(), more_than_a_segment.data(), bytes, kDummy); });
  };
  EXPECT_EQ(dummy(more_than_a_segment.size()), EAGAIN);
  const std::string much(kMuchUnread, 'x');
  while (::send(here(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_EQ(dummy(5), EAGAIN) << "bytes wait";
}

TEST_F(TcpDummy, WhereTheKernelSendsItFails) {
  EXPECT_EQ(error_of([&] { return ::send(here(), "dummy", 5, kDummy | MSG_MORE); }), EINVAL);
  go_to_kernel();
  EXPECT_EQ(error_of([&] { return ::send(here(), "dummy", 5, kDummy); }), EINVAL);
  const int fresh = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(error_of([&] { return ::send(fresh, "dummy", 5, kDummy | MSG_NOSIGNAL); }), EINVAL);
  ::close(fresh);
  ASSERT_EQ(pair_.here.send("real"), 4U);
  EXPECT_EQ(pair_.there.receive(4), "real");
}

}  // namespace
}  // namespace ringsock::vma_tests
