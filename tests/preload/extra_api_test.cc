// VMA's Extra API in programs under librspreload: the streams of unmodified programs, received where they lie, and
// shown to a function of the program first.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/preload/preloaded.h"
#include "tests/support/extra_api.h"

namespace ringsock::preloaded {
namespace {

constexpr int kForce = MSG_VMA_ZCOPY_FORCE, kForced = kForce | MSG_DONTWAIT;

using support::api;
using support::free_one;
using Packets = support::StreamPackets;

/// Sends until there is no room any more. Returns the bytes sent, which are pattern(…, 1).
std::size_t fill(int fd, const std::string& bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count =
        ::send(fd, bytes.data() + sent, std::min<std::size_t>(bytes.size() - sent, 16384), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count <= 0) break;
    sent += static_cast<std::size_t>(count);
  }
  return sent;
}

// -- the table

TEST(ExtraApi, TheTableIsThereBeforeTheFirstSocketAndTellsWhatWorks) {
  const std::uint64_t mask = api().vma_extra_supported_mask;
  EXPECT_EQ(mask, VMA_EXTRA_API_REGISTER_RECV_CALLBACK | VMA_EXTRA_API_RECVFROM_ZCOPY | VMA_EXTRA_API_FREE_PACKETS |
                      VMA_EXTRA_API_ADD_CONF_RULE | VMA_EXTRA_API_THREAD_OFFLOAD | VMA_EXTRA_API_DUMP_FD_STATS);
  EXPECT_EQ(vma_get_api(), vma_get_api());
}

TEST(ExtraApi, EveryFunctionAnswersOnAnyDescriptor) {
  const Listener listener = listen_anywhere();
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  vma_packet_t packet{};
  for (const int fd : {-1, 1 << 20, pipe_ends[0], listener.fd}) {
    const bool is_ours = fd == listener.fd;
    EXPECT_EQ(error_of(api().register_recv_callback(fd, nullptr, nullptr)), is_ours ? 0 : EINVAL) << fd;
    EXPECT_EQ(error_of(api().free_packets(fd, &packet, 1)), is_ours ? ENOENT : EINVAL) << fd;
    int ring_fd = 0;
    EXPECT_EQ(api().get_socket_rings_num(fd), 0);
    EXPECT_EQ(api().get_socket_rings_fds(fd, &ring_fd, 1), 0);
    EXPECT_EQ(error_of(api().get_socket_rings_fds(fd, nullptr, 1)), EINVAL);
    EXPECT_EQ(error_of(api().get_socket_tx_ring_fd(fd, nullptr, 0)), is_ours ? ENOSYS : EINVAL);
    std::uint16_t length = 0;
    EXPECT_EQ(error_of(api().get_socket_network_header(fd, nullptr, &length)),
              fd < 0 || fd == 1 << 20 ? EINVAL : ENOTCONN);
    int flags = MSG_DONTWAIT;
    char room[64];
    EXPECT_NE(error_of(api().recvfrom_zcopy(fd, room, sizeof room, &flags, nullptr, nullptr)), 0);
  }
  vma_completion_t completion{};
  EXPECT_EQ(error_of(api().socketxtreme_poll(3, &completion, 1, 0)), EOPNOTSUPP);
  EXPECT_EQ(error_of(api().socketxtreme_free_vma_packets(nullptr, 1)), EOPNOTSUPP);
  EXPECT_EQ(error_of(api().vma_modify_ring(nullptr)), EINVAL);
  EXPECT_EQ(error_of(api().vma_add_ring_profile(nullptr, nullptr)), EINVAL);
  EXPECT_EQ(api().ioctl(nullptr, 0), 0);
  EXPECT_EQ(api().add_conf_rule(nullptr), 1);
  for (const int fd : {listener.fd, pipe_ends[0], pipe_ends[1]}) ::close(fd);
}

TEST(ExtraApi, OnTheKernelsSocketsTheLibraryReceivesAsUsual) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  ASSERT_EQ(::send(ends[0], "text", 4, 0), 4);
  Packets packets;
  EXPECT_EQ(packets.receive(ends[1]), 4);
  EXPECT_FALSE(packets.are_lent());
  EXPECT_EQ(packets.text(), "text");
  for (const int fd : ends) ::close(fd);
}

// -- zero copy

TEST(ZeroCopy, TheProgramReadsTheBytesWhereTheyLie) {
  const Ends ends;
  send_all(ends.peers, "question");
  Packets packets;
  ASSERT_EQ(packets.receive(ends.ours, kForce), 8) << std::strerror(errno);
  EXPECT_TRUE(packets.are_lent());
  EXPECT_EQ(packets.text(), "question");
  EXPECT_EQ(packets.free(ends.ours), 0) << std::strerror(errno);
  EXPECT_TRUE(is_on_ring(ends.ours));
}

TEST(ZeroCopy, ABlockingReceiveWaitsAndANonblockingOneDoesNot) {
  const Ends ends;
  Packets none;
  EXPECT_EQ(error_of(none.receive(ends.ours, kForced)), EAGAIN);
  std::thread peer([&] { send_all(ends.peers, "late"); });
  Packets packets;
  EXPECT_EQ(packets.receive(ends.ours), 4);
  peer.join();
  EXPECT_EQ(packets.text(), "late");
  EXPECT_EQ(packets.free(ends.ours), 0);
}

TEST(ZeroCopy, TheListNeedsRoomForOnePacketAndTheEndOfTheStreamForNone) {
  const Ends ends;
  send_all(ends.peers, "bytes");
  Packets small(39);
  EXPECT_EQ(error_of(small.receive(ends.ours, kForced)), ENOBUFS);
  Packets enough(40);
  EXPECT_EQ(enough.receive(ends.ours, kForced), 5);
  EXPECT_EQ(enough.free(ends.ours), 0);
  ::shutdown(ends.peers, SHUT_WR);
  Packets end;
  EXPECT_EQ(end.receive(ends.ours), 0);
}

TEST(ZeroCopy, ALongStreamArrivesAsItWasSent) {
  const Ends ends;
  const std::string sent = pattern(20'000'000, 3);
  std::thread peer([&] { send_all(ends.peers, sent); });
  std::string got;
  while (got.size() < sent.size()) {
    Packets packets;
    ASSERT_GT(packets.receive(ends.ours, kForce), 0) << std::strerror(errno) << " after " << got.size();
    got += packets.text();
    ASSERT_EQ(packets.free(ends.ours), 0);
  }
  peer.join();
  EXPECT_TRUE(got == sent);
}

TEST(ZeroCopy, CopiesAndPacketsTakeTurns) {
  const Ends ends;
  const std::string sent = pattern(3'000'000, 4);
  std::thread peer([&] { send_all(ends.peers, sent); });
  std::string got;
  for (int turn = 0; got.size() < sent.size(); ++turn) {
    if (turn % 2 == 0) {
      got += receive(ends.ours, std::min<std::size_t>(777, sent.size() - got.size()));
      continue;
    }
    Packets packets(sizeof(vma_packets_t) + std::size_t{2} * 32);
    ASSERT_GT(packets.receive(ends.ours), 0);
    ASSERT_LE(packets.count(), 2U) << "the list has room for two";
    got += packets.text();
    ASSERT_EQ(packets.free(ends.ours), 0);
  }
  peer.join();
  EXPECT_TRUE(got == sent);
}

TEST(ZeroCopy, HeldPacketsKeepTheirBytesWhileTheStreamGoesOn) {
  const Ends ends;
  send_all(ends.peers, "held");
  Packets held;
  ASSERT_EQ(held.receive(ends.ours), 4);
  const std::string rest = pattern(5'000'000, 5);
  std::thread peer([&] { send_all(ends.peers, rest); });
  EXPECT_TRUE(receive(ends.ours, rest.size()) == rest);
  peer.join();
  EXPECT_EQ(held.text(), "held");
  EXPECT_EQ(held.free(ends.ours), 0);
}

TEST(ZeroCopy, AProgramThatHoldsAllMakesTheSenderWaitUntilItFrees) {
  const Ends ends;
  const std::string bytes = pattern(64'000'000, 6);
  std::vector<Packets> held;
  std::string got;
  std::size_t sent = 0;
  const auto take_all = [&] {
    for (;;) {
      Packets packets;
      if (packets.receive(ends.ours, kForced) <= 0) return;
      got += packets.text();
      held.push_back(std::move(packets));
    }
  };
  for (std::size_t before = 1; sent != before;) {
    before = sent;
    sent += fill(ends.peers, bytes.substr(sent));
    take_all();
  }
  ASSERT_LT(sent, bytes.size()) << "the sender has to wait";
  EXPECT_TRUE(got == bytes.substr(0, got.size())) << "nothing that is held has been overwritten";

  // Given back in another order than they came.
  std::reverse(held.begin(), held.end());
  for (Packets& one : held) ASSERT_EQ(one.free(ends.ours), 0) << std::strerror(errno);
  held.clear();
  std::thread peer([&] { send_all(ends.peers, bytes.substr(sent, 1'000'000)); });
  got += receive(ends.ours, sent - got.size() + 1'000'000);
  peer.join();
  EXPECT_TRUE(got == bytes.substr(0, sent + 1'000'000));
}

TEST(ZeroCopy, WhatIsNotLentCannotBeFreed) {
  const Ends ends, others;
  send_all(ends.peers, "mine");
  Packets packets;
  ASSERT_EQ(packets.receive(ends.ours), 4);
  EXPECT_EQ(error_of(free_one(others.ours, packets.ids().at(0))), ENOENT) << "another socket's";
  EXPECT_EQ(error_of(free_one(ends.ours, &packets)), ENOENT) << "no packet at all";
  EXPECT_EQ(error_of(free_one(ends.ours, nullptr)), ENOENT);
  EXPECT_EQ(error_of(free_one(ends.ours, static_cast<char*>(packets.ids().at(0)) + 8)), ENOENT);
  EXPECT_EQ(error_of(api().free_packets(ends.ours, nullptr, 1)), EINVAL);
  EXPECT_EQ(error_of(api().free_packets(ends.ours, reinterpret_cast<vma_packet_t*>(8), 1)), EFAULT);
  EXPECT_EQ(api().free_packets(ends.ours, nullptr, 0), 0);
  EXPECT_EQ(error_of(free_one(0, packets.ids().at(0))), EINVAL) << "not carried";
  EXPECT_EQ(packets.free(ends.ours), 0);
  EXPECT_EQ(error_of(packets.free(ends.ours)), ENOENT) << "freed twice";
}

TEST(ZeroCopy, CloseTakesBackWhatIsHeld) {
  Packets held;
  {
    const Ends ends;
    send_all(ends.peers, "held");
    ASSERT_EQ(held.receive(ends.ours), 4);
  }
  const Ends others;
  EXPECT_EQ(error_of(held.free(others.ours)), ENOENT);
  send_all(others.peers, "goes on");
  EXPECT_EQ(receive(others.ours, 7), "goes on");
}

TEST(ZeroCopy, AConnectionWithHeldPacketsStaysOnItsRing) {
  const Ends ends;
  send_all(ends.peers, "held");
  Packets held;
  ASSERT_EQ(held.receive(ends.ours), 4);
  const int on = 1;
  static_cast<void>(::setsockopt(ends.ours, SOL_SOCKET, SO_TIMESTAMPING, &on, sizeof on));
  EXPECT_TRUE(is_on_ring(ends.ours));
  EXPECT_EQ(held.text(), "held");
  send_all(ends.peers, "more");
  EXPECT_EQ(receive(ends.ours, 4), "more");
  EXPECT_EQ(held.free(ends.ours), 0);
}

TEST(ZeroCopy, AChildHasWhatItsParentHeldAndBothFreeIt) {
  const Ends ends;
  send_all(ends.peers, "held");
  Packets held;
  ASSERT_EQ(held.receive(ends.ours), 4);
  const pid_t child = spawn([&] {
    expect(held.text() == "held", "the child reads it");
    expect(held.free(ends.ours) == 0, "the child frees it");
    expect(error_of(held.free(ends.ours)) == ENOENT, "once");
  });
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(held.text(), "held");
  EXPECT_EQ(held.free(ends.ours), 0);
  send_all(ends.peers, "goes on");
  EXPECT_EQ(receive(ends.ours, 7), "goes on");
}

TEST(ZeroCopy, AChildThatGoesOnWithTheConnectionLeavesItsParentsPacketsAlone) {
  const Ends ends;
  send_all(ends.peers, "held");
  Packets held;
  ASSERT_EQ(held.receive(ends.ours), 4);
  const std::string rest = pattern(1'000'000, 8);
  const pid_t child = spawn([&] {
    std::string got;
    while (got.size() < rest.size()) {
      Packets packets;
      expect(packets.receive(ends.ours) > 0, "a receive of the child");
      got += packets.text();
      expect(packets.free(ends.ours) == 0, "a free of the child");
    }
    expect(got == rest, "what the peer sent");
  });
  send_all(ends.peers, rest);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(held.text(), "held");
  EXPECT_EQ(held.free(ends.ours), 0);
}

TEST(ZeroCopy, ThreadsFreeWhatAnotherOneReceives) {
  const Ends ends;
  const std::string sent = pattern(4'000'000, 9);
  std::thread peer([&] { send_all(ends.peers, sent); });
  std::string got;
  std::vector<std::thread> freeing;
  while (got.size() < sent.size()) {
    auto packets = std::make_shared<Packets>(sizeof(vma_packets_t) + 32);
    ASSERT_GT(packets->receive(ends.ours), 0) << std::strerror(errno);
    got += packets->text();
    freeing.emplace_back([packets, &ends] { EXPECT_EQ(packets->free(ends.ours), 0); });
    if (freeing.size() == 8) {
      for (std::thread& one : freeing) one.join();
      freeing.clear();
    }
  }
  for (std::thread& one : freeing) one.join();
  peer.join();
  EXPECT_TRUE(got == sent);
}

// -- the receive callback

/// The function of a socket, and what it has seen.
struct Seen {
  std::string text;
  int calls = 0;
  std::vector<void*> held;
  std::function<vma_recv_callback_retval_t(int fd, const std::string& part)> decide;
};

vma_recv_callback_retval_t see(int fd, std::size_t parts, iovec part[], vma_info_t* info, void* context) {
  Seen& seen = *static_cast<Seen*>(context);
  EXPECT_EQ(parts, 1U);
  EXPECT_EQ(info->struct_sz, sizeof *info);
  EXPECT_EQ(info->payload_sz, part[0].iov_len);
  EXPECT_EQ(info->src->sin_family, AF_INET);
  const std::string text(static_cast<char*>(part[0].iov_base), part[0].iov_len);
  seen.text += text;
  ++seen.calls;
  const auto decision = seen.decide(fd, text);
  if (decision == VMA_PACKET_HOLD) seen.held.push_back(info->packet_id);
  return decision;
}

/// Both ends, of which ours has a function.
struct Shown : Ends {
  explicit Shown(decltype(Seen::decide) decide) {
    seen.decide = std::move(decide);
    expect(api().register_recv_callback(ours, see, &seen) == 0, "register_recv_callback");
  }
  Seen seen;
};
auto always(vma_recv_callback_retval_t decision) {
  return [decision](int, const std::string&) { return decision; };
}

TEST(RecvCallback, WhatItLetsThroughIsRead) {
  Shown ends(always(VMA_PACKET_RECV));
  send_all(ends.peers, "seen first");
  EXPECT_EQ(receive(ends.ours, 10), "seen first");
  EXPECT_EQ(ends.seen.text, "seen first");
  EXPECT_EQ(ends.seen.calls, 1);
}

TEST(RecvCallback, WhatItDropsIsNot) {
  Shown ends([](int, const std::string& part) { return part == "drop" ? VMA_PACKET_DROP : VMA_PACKET_RECV; });
  send_all(ends.peers, "drop");
  pollfd wait{.fd = ends.ours, .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&wait, 1, 20), 0) << "it was dropped";
  EXPECT_EQ(ends.seen.text, "drop");
  send_all(ends.peers, "keep");
  EXPECT_EQ(::poll(&wait, 1, -1), 1);
  EXPECT_EQ(receive(ends.ours, 4), "keep");
}

TEST(RecvCallback, WhatItHoldsIsFreedLater) {
  Shown ends(always(VMA_PACKET_HOLD));
  send_all(ends.peers, "held");
  char none[8];
  EXPECT_EQ(error_of(::recv(ends.ours, none, sizeof none, MSG_DONTWAIT)), EAGAIN);
  ASSERT_EQ(ends.seen.held.size(), 1U);
  EXPECT_EQ(free_one(ends.ours, ends.seen.held[0]), 0);
  EXPECT_EQ(error_of(free_one(ends.ours, ends.seen.held[0])), ENOENT);
}

TEST(RecvCallback, ALongStreamKeepsItsOrder) {
  Shown ends(always(VMA_PACKET_RECV));
  const std::string sent = pattern(5'000'000, 11);
  std::thread peer([&] { send_all(ends.peers, sent); });
  EXPECT_TRUE(receive(ends.ours, sent.size()) == sent);
  peer.join();
  EXPECT_TRUE(ends.seen.text == sent);
}

TEST(RecvCallback, APeekAndAShortReadLeaveTheRest) {
  Shown ends(always(VMA_PACKET_RECV));
  send_all(ends.peers, "some text");
  char peeked[4];
  ASSERT_EQ(::recv(ends.ours, peeked, sizeof peeked, MSG_PEEK), 4);
  EXPECT_EQ(receive(ends.ours, 5), "some ");
  int waiting = 0;
  EXPECT_EQ(::ioctl(ends.ours, FIONREAD, &waiting), 0);
  EXPECT_EQ(waiting, 4);
  EXPECT_EQ(receive(ends.ours, 4), "text");
  EXPECT_EQ(ends.seen.calls, 1);
}

TEST(RecvCallback, WhatItLetsThroughIsReadAlthoughItTakesItselfAway) {
  const Ends ends;
  const auto once = [](int fd, std::size_t, iovec*, vma_info_t*, void*) {
    api().register_recv_callback(fd, nullptr, nullptr);
    return VMA_PACKET_RECV;
  };
  ASSERT_EQ(api().register_recv_callback(ends.ours, once, nullptr), 0);
  send_all(ends.peers, "seen first");
  EXPECT_EQ(receive(ends.ours, 10), "seen first");
  send_all(ends.peers, "not seen");
  EXPECT_EQ(receive(ends.ours, 8), "not seen");
}

TEST(RecvCallback, AListWithoutRoomForWhatItLetsThroughIsAnError) {
  Shown ends(always(VMA_PACKET_RECV));
  send_all(ends.peers, "seen");
  Packets small(sizeof(vma_packets_t));
  EXPECT_EQ(error_of(small.receive(ends.ours)), ENOBUFS);
  EXPECT_EQ(receive(ends.ours, 4), "seen");
}

TEST(RecvCallback, WhatItLetsThroughCanBeReceivedWithoutACopy) {
  Shown ends(always(VMA_PACKET_RECV));
  send_all(ends.peers, "seen");
  Packets packets;
  ASSERT_EQ(packets.receive(ends.ours), 4) << std::strerror(errno);
  EXPECT_TRUE(packets.are_lent());
  EXPECT_EQ(packets.text(), "seen");
  EXPECT_EQ(packets.free(ends.ours), 0);
}

TEST(RecvCallback, AnEpollSetTellsOfWhatItLetsThrough) {
  Shown ends([](int, const std::string& part) { return part == "drop" ? VMA_PACKET_DROP : VMA_PACKET_RECV; });
  const int set = ::epoll_create1(0);
  epoll_event event{.events = EPOLLIN, .data = {.fd = ends.ours}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, ends.ours, &event), 0);
  send_all(ends.peers, "drop");
  EXPECT_EQ(::epoll_wait(set, &event, 1, 20), 0);
  send_all(ends.peers, "keep");
  EXPECT_EQ(::epoll_wait(set, &event, 1, -1), 1);
  EXPECT_EQ(receive(ends.ours, 4), "keep");
  ::close(set);
}

TEST(RecvCallback, ItMayAnswerAndCloseInside) {
  Shown ends([](int fd, const std::string&) {
    expect(::send(fd, "answer", 6, 0) == 6, "the answer");
    ::close(fd);
    return VMA_PACKET_RECV;
  });
  send_all(ends.peers, "question");
  char none[8];
  EXPECT_LT(::recv(ends.ours, none, sizeof none, 0), 0);
  EXPECT_EQ(receive(ends.peers, 6), "answer");
}

TEST(RecvCallback, ItMayReceiveInside) {
  Shown ends([](int fd, const std::string& part) {
    char more[8];
    if (part == "first") expect(error_of(::recv(fd, more, sizeof more, MSG_DONTWAIT)) == EAGAIN, "there is no more");
    return VMA_PACKET_RECV;
  });
  send_all(ends.peers, "first");
  EXPECT_EQ(receive(ends.ours, 5), "first");
  EXPECT_EQ(ends.seen.calls, 1);
}

TEST(RecvCallback, WhatItThrowsReachesTheCallerOfTheReceive) {
  Shown ends(
      [](int, const std::string&) -> vma_recv_callback_retval_t { throw std::runtime_error("of the function"); });
  send_all(ends.peers, "bytes");
  char room[8];
  EXPECT_THROW(static_cast<void>(::recv(ends.ours, room, sizeof room, 0)), std::runtime_error);
  ends.seen.decide = always(VMA_PACKET_RECV);
  send_all(ends.peers, "more");
  EXPECT_EQ(receive(ends.ours, 4), "more") << "what it threw over is dropped";
}

TEST(RecvCallback, WithoutItTheStreamGoesOnAsUsual) {
  Shown ends(always(VMA_PACKET_RECV));
  send_all(ends.peers, "seen, ");
  char one = 0;
  ASSERT_EQ(::recv(ends.ours, &one, 1, 0), 1);
  ASSERT_EQ(api().register_recv_callback(ends.ours, nullptr, nullptr), 0);
  send_all(ends.peers, "unseen");
  EXPECT_EQ(receive(ends.ours, 11), "een, unseen");
  EXPECT_EQ(ends.seen.text, "seen, ");
}

TEST(RecvCallback, ItMayBeSetBeforeTheConnection) {
  const Listener listener = listen_anywhere();
  Seen seen;
  seen.decide = always(VMA_PACKET_RECV);
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(api().register_recv_callback(client, see, &seen), 0);
  const sockaddr_in there = loopback(listener.port);
  ASSERT_EQ(::connect(client, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
  const int server = ::accept(listener.fd, nullptr, nullptr);
  ASSERT_TRUE(is_on_ring(client));
  send_all(server, "hello");
  EXPECT_EQ(receive(client, 5), "hello");
  EXPECT_EQ(seen.text, "hello");
  for (const int fd : {client, server, listener.fd}) ::close(fd);
}

TEST(RecvCallback, TheEndOfTheStreamIsReadAfterTheLastBytes) {
  Shown ends(always(VMA_PACKET_RECV));
  send_all(ends.peers, "last");
  ::shutdown(ends.peers, SHUT_WR);
  EXPECT_EQ(receive_all(ends.ours), "last");
  EXPECT_EQ(ends.seen.text, "last");
}

/// Receives by `call` with SO_RCVTIMEO while the function drops what comes, more often than that. Returns whether the
/// call fails with EAGAIN although there is always something new.
bool ends_while_all_is_dropped(const std::function<ssize_t(int fd, char* room)>& call) {
  Shown ends(always(VMA_PACKET_DROP));
  const timeval limit{0, 100'000};
  expect(::setsockopt(ends.ours, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0, "SO_RCVTIMEO");
  std::atomic<bool> has_returned{false};
  std::thread peer([&] {
    for (int left = 500; left > 0 && !has_returned; --left) {
      send_all(ends.peers, "x");
      ::usleep(20'000);
    }
    ::shutdown(ends.peers, SHUT_WR);  // the end for a call that is still waiting
  });
  char room[16];
  const int error = error_of(call(ends.ours, room));
  has_returned = true;
  peer.join();
  return error == EAGAIN;
}

TEST(RecvCallback, ATimeLimitIsThatOfTheCallHoweverOftenItDropsSomething) {
  const auto all_by_message = [](int fd, char* room) {
    iovec part{room, 16};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return ::recvmsg(fd, &message, MSG_WAITALL);
  };
  const auto as_many_as_wished = [](int fd, char* room) {
    const int bytes = 8;
    expect(::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0, "SO_RCVLOWAT");
    return ::recv(fd, room, 16, 0);
  };
  EXPECT_TRUE(ends_while_all_is_dropped([](int fd, char* room) { return ::recv(fd, room, 16, 0); }));
  EXPECT_TRUE(ends_while_all_is_dropped([](int fd, char* room) { return ::recv(fd, room, 16, MSG_WAITALL); }));
  EXPECT_TRUE(ends_while_all_is_dropped(all_by_message));
  EXPECT_TRUE(ends_while_all_is_dropped(as_many_as_wished));
}

TEST(RecvCallback, AForkedChildShowsWhatItReceives) {
  Shown ends(always(VMA_PACKET_RECV));
  const pid_t child = spawn([&] {
    expect(receive(ends.ours, 5) == "child", "the child's bytes");
    expect(ends.seen.text == "child", "the function has seen them in the child");
  });
  send_all(ends.peers, "child");
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(ends.seen.text, "");
}

// -- the rest of the table

TEST(DummySend, NothingLeaves) {
  const Ends ends;
  EXPECT_EQ(::send(ends.ours, "dummy", 5, VMA_SND_FLAGS_DUMMY), 5);
  iovec part{const_cast<char*>("dummy"), 5};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(::sendmsg(ends.ours, &message, VMA_SND_FLAGS_DUMMY), 5);
  send_all(ends.ours, "true");
  EXPECT_EQ(receive(ends.peers, 4), "true");
}

TEST(DummySend, OnOtherSocketsItIsRefused) {
  const int udp = ::socket(AF_INET, SOCK_DGRAM, 0), stream = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in there = loopback(9);
  EXPECT_EQ(
      error_of(::sendto(udp, "x", 1, VMA_SND_FLAGS_DUMMY, reinterpret_cast<const sockaddr*>(&there), sizeof there)),
      EINVAL);
  EXPECT_NE(error_of(::send(stream, "x", 1, VMA_SND_FLAGS_DUMMY | MSG_NOSIGNAL)), 0);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EXPECT_EQ(error_of(::send(ends[0], "x", 1, VMA_SND_FLAGS_DUMMY)), EINVAL);
  for (const int fd : {udp, stream, ends[0], ends[1]}) ::close(fd);
}

TEST(ThreadOffload, AThreadMayLeaveItsSocketsToTheKernel) {
  const Listener listener = listen_anywhere();
  std::thread([&] {
    ASSERT_EQ(api().thread_offload(0, ::pthread_self()), 0);
    const int client = connect_to(listener.port);
    EXPECT_FALSE(is_on_ring(client));
    ::close(client);
    ASSERT_EQ(api().thread_offload(1, ::pthread_self()), 0);
    const int other = connect_to(listener.port);
    EXPECT_TRUE(is_on_ring(other));
    ::close(other);
  }).join();
  ::close(listener.fd);
}

TEST(AddConfRule, ItLeavesAPortToTheKernel) {
  const Listener listener = listen_anywhere();
  const std::string rule = "use os tcp_client 127.0.0.1:" + std::to_string(listener.port);
  ASSERT_EQ(api().add_conf_rule(rule.c_str()), 0);
  const int client = connect_to(listener.port);
  EXPECT_FALSE(is_on_ring(client));
  EXPECT_EQ(api().add_conf_rule("use nothing at all"), 1);
  const Ends others;
  EXPECT_TRUE(is_on_ring(others.ours)) << "other ports are not concerned";
  for (const int fd : {client, listener.fd}) ::close(fd);
}

/// What `body` writes to standard error.
std::string written_to_stderr(const std::function<void()>& body) {
  int ends[2];
  expect(::pipe(ends) == 0, "pipe");
  const int before = ::dup(2);
  ::dup2(ends[1], 2);
  ::close(ends[1]);
  body();
  ::dup2(before, 2);
  ::close(before);
  std::string out(65536, '\0');
  const ssize_t bytes = ::read(ends[0], out.data(), out.size());
  ::close(ends[0]);
  out.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  return out;
}

TEST(DumpFdStats, TheCountersOfASocketAreLogged) {
  const Ends ends;
  send_all(ends.peers, "twelve bytes");
  EXPECT_EQ(receive(ends.ours, 12), "twelve bytes");
  EXPECT_EQ(::send(ends.ours, "dummy", 5, VMA_SND_FLAGS_DUMMY), 5);
  constexpr int kError = 1;
  const std::string text =
      written_to_stderr([&] { EXPECT_EQ(api().dump_fd_stats(ends.ours, kError), 0) << std::strerror(errno); });
  EXPECT_NE(text.find("descriptor " + std::to_string(ends.ours)), std::string::npos) << text;
  EXPECT_NE(text.find("received 12 bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("1 dummy messages"), std::string::npos) << text;
  const std::string all = written_to_stderr([&] { EXPECT_EQ(api().dump_fd_stats(0, kError), 0); });
  EXPECT_NE(all.find("descriptor " + std::to_string(ends.peers)), std::string::npos) << all;
}

}  // namespace
}  // namespace ringsock::preloaded
