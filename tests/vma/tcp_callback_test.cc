// The callback that sees the bytes of a TCP connection on a ring first (register_recv_callback).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/extra_api.h"
#include "tests/vma/tcp_world.h"

namespace ringsock::vma_tests {
namespace {

using support::api;
using support::error_of;
using support::free_one;

using Decision = vma_recv_callback_retval_t;

std::string pattern(std::size_t bytes) {
  std::string out(bytes, '\0');
  std::uint32_t state = 7;
  for (char& one : out) one = static_cast<char>((state = state * 1'664'525 + 1'013'904'223) >> 24);
  return out;
}

/// A connection of this host on a ring, whose callback does what the test says.
class TcpCallback : public testing::Test {
 protected:
  TcpCallback() { EXPECT_TRUE(pair_.here.is_on_ring()); }
  ~TcpCallback() override { api().register_recv_callback(here(), nullptr, nullptr); }
  [[nodiscard]] int here() const { return pair_.here.fd(); }
  void watch(std::function<Decision(const std::string&, vma_info_t&)> decide) {
    decide_ = std::move(decide);
    const auto call = [](int, std::size_t count, iovec parts[], vma_info_t* info, void* context) {
      auto& test = *static_cast<TcpCallback*>(context);
      std::string bytes;
      for (std::size_t i = 0; i < count; ++i) bytes.append(static_cast<char*>(parts[i].iov_base), parts[i].iov_len);
      test.seen_ += bytes;
      return test.decide_(bytes, *info);
    };
    ASSERT_EQ(api().register_recv_callback(here(), call, this), 0) << std::strerror(errno);
  }
  /// Has the callback see what comes, until it has seen so many bytes.
  void until_seen(std::size_t bytes) {
    for (int left = 3'000; left > 0 && seen_.size() < bytes; --left) {
      pollfd one{here(), POLLIN, 0};
      ::poll(&one, 1, 10);
    }
    ASSERT_GE(seen_.size(), bytes);
  }
  void go_to_kernel() const {
    const int clamp = 60'000;
    EXPECT_EQ(::setsockopt(here(), IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof clamp), 0);
    EXPECT_FALSE(pair_.here.is_on_ring());
  }

  Pair pair_ = accept_here("10.9.0.1", Calls::kernels);
  std::function<Decision(const std::string&, vma_info_t&)> decide_;
  std::string seen_;
};

TEST_F(TcpCallback, WhatItDropsNobodyReadsAndWhatItLetsThroughIsRead) {
  watch([](const std::string& bytes, vma_info_t&) { return bytes == "good" ? VMA_PACKET_RECV : VMA_PACKET_DROP; });
  ASSERT_EQ(pair_.there.send("bad"), 3U);
  until_seen(3);
  ASSERT_EQ(pair_.there.send("good"), 4U);
  EXPECT_EQ(pair_.here.receive(4), "good");
  EXPECT_EQ(seen_, "badgood");
  char more = 0;
  EXPECT_EQ(error_of([&] { return ::recv(here(), &more, 1, MSG_DONTWAIT); }), EAGAIN);
}

TEST_F(TcpCallback, ItIsToldWhoHasSentWhatToWhom) {
  sockaddr_in source{}, destination{};
  vma_info_t told{};
  watch([&](const std::string&, vma_info_t& info) {
    told = info;
    source = *info.src;
    destination = *info.dst;
    return VMA_PACKET_RECV;
  });
  ASSERT_EQ(pair_.there.send("five!"), 5U);
  EXPECT_EQ(pair_.here.receive(5), "five!");
  EXPECT_EQ(told.struct_sz, 80U);
  EXPECT_NE(told.packet_id, nullptr);
  EXPECT_EQ(told.payload_sz, 5U);
  sockaddr_in peer{};
  socklen_t length = sizeof peer;
  ASSERT_EQ(::getpeername(here(), reinterpret_cast<sockaddr*>(&peer), &length), 0);
  EXPECT_EQ(source.sin_port, peer.sin_port);
  EXPECT_EQ(source.sin_addr.s_addr, inet_addr("10.9.0.2"));
  EXPECT_EQ(destination.sin_addr.s_addr, inet_addr("10.9.0.1"));
}

TEST_F(TcpCallback, WhileBytesWaitFurtherOnesFollowUnseen) {
  watch([](const std::string&, vma_info_t&) { return VMA_PACKET_RECV; });
  ASSERT_EQ(pair_.there.send("first"), 5U);
  until_seen(5);
  ASSERT_EQ(pair_.there.send("second"), 6U);
  EXPECT_EQ(pair_.here.receive(11), "firstsecond");
  ASSERT_EQ(pair_.there.send("third"), 5U);
  EXPECT_EQ(pair_.here.receive(5), "third");
  EXPECT_EQ(seen_, "firstthird");
}

TEST_F(TcpCallback, ALongStreamIsSeenWholeAndInOrder) {
  const std::string sent = pattern(5'000'000);
  watch([](const std::string&, vma_info_t&) { return VMA_PACKET_DROP; });
  std::thread sends([&] { EXPECT_EQ(pair_.there.send(sent), sent.size()); });
  until_seen(sent.size());
  sends.join();
  EXPECT_TRUE(seen_ == sent);
  EXPECT_TRUE(pair_.here.is_on_ring());
}

TEST_F(TcpCallback, ALongStreamThatIsLetThroughIsReadWholeAndInOrder) {
  const std::string sent = pattern(5'000'000);
  watch([](const std::string&, vma_info_t&) { return VMA_PACKET_RECV; });
  std::thread sends([&] { EXPECT_EQ(pair_.there.send(sent), sent.size()); });
  EXPECT_TRUE(pair_.here.receive(sent.size()) == sent);
  sends.join();
}

TEST_F(TcpCallback, EveryCallThatWaitsRunsIt) {
  watch([](const std::string& bytes, vma_info_t&) { return bytes == "stop" ? VMA_PACKET_RECV : VMA_PACKET_DROP; });
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event wish{EPOLLIN, {.fd = here()}}, event{};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, here(), &wish), 0);
  std::array<char, 16> room{};
  iovec part{room.data(), room.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  pollfd one{here(), POLLIN, 0};
  const std::vector<std::pair<const char*, std::function<bool()>>> calls{
      {"read", [&] { return ::read(here(), room.data(), room.size()) == 4; }},
      {"recv", [&] { return ::recv(here(), room.data(), room.size(), 0) == 4; }},
      {"recvmsg", [&] { return ::recvmsg(here(), &message, 0) == 4; }},
      {"poll", [&] { return ::poll(&one, 1, -1) == 1 && pair_.here.receive(4) == "stop"; }},
      {"epoll", [&] { return ::epoll_wait(set, &event, 1, -1) == 1 && pair_.here.receive(4) == "stop"; }}};
  for (const auto& [name, call] : calls) {
    seen_.clear();
    std::thread sender([&] {
      for (const char* text : {"one", "two", "stop"}) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        pair_.there.send(text);
      }
    });
    EXPECT_TRUE(call()) << name << ": " << std::strerror(errno);
    sender.join();
    EXPECT_EQ(seen_, "onetwostop") << name;
  }
  ::close(set);
}

TEST_F(TcpCallback, ItMayAnswerAndReadItsSocket) {
  watch([&](const std::string& bytes, vma_info_t&) {
    char more = 0;
    EXPECT_EQ(error_of([&] { return ::recv(here(), &more, 1, MSG_DONTWAIT); }), EAGAIN);
    EXPECT_EQ(::send(here(), "answer", 6, 0), 6);
    int option = 0;
    socklen_t length = sizeof option;
    EXPECT_EQ(::getsockopt(here(), SOL_SOCKET, SO_RCVBUF, &option, &length), 0);
    return bytes == "question" ? VMA_PACKET_DROP : VMA_PACKET_RECV;
  });
  ASSERT_EQ(pair_.there.send("question"), 8U);
  until_seen(8);
  EXPECT_EQ(pair_.there.receive(6), "answer");
  EXPECT_TRUE(pair_.here.is_on_ring());
}

TEST_F(TcpCallback, ItMayAnswerAndCloseItsSocket) {
  watch([&](const std::string&, vma_info_t&) {
    EXPECT_EQ(::send(here(), "answer", 6, 0), 6);
    EXPECT_EQ(::close(here()), 0);
    return VMA_PACKET_DROP;
  });
  ASSERT_EQ(pair_.there.send("question"), 8U);
  std::array<char, 16> room{};
  EXPECT_EQ(error_of([&] { return ::recv(here(), room.data(), room.size(), 0); }), EBADF);
  EXPECT_EQ(pair_.there.receive(6), "answer");
  EXPECT_EQ(pair_.there.error_of_receive(), 0) << "the end of the stream, no reset";
  pair_.here = Stream(::open("/dev/null", O_RDONLY | O_CLOEXEC), Calls::librarys);
}

TEST_F(TcpCallback, ItMayThrow) {
  watch([](const std::string& bytes, vma_info_t&) -> Decision {
    if (bytes == "bad") throw std::runtime_error("bad bytes");
    return VMA_PACKET_RECV;
  });
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(pair_.there.send("bad"), 3U);
    EXPECT_THROW(static_cast<void>(pair_.here.receive(4)), std::runtime_error);
    ASSERT_EQ(pair_.there.send("good"), 4U);
    EXPECT_EQ(pair_.here.receive(4), "good");
  }
}

TEST_F(TcpCallback, WhatItHoldsKeepsItsBytesUntilItIsFreed) {
  std::vector<std::pair<void*, iovec>> held;
  const auto hold = [](int, std::size_t, iovec parts[], vma_info_t* info, void* context) {
    static_cast<decltype(held)*>(context)->emplace_back(info->packet_id, parts[0]);
    return VMA_PACKET_HOLD;
  };
  ASSERT_EQ(api().register_recv_callback(here(), hold, &held), 0);
  for (const char* text : {"one", "two"}) {
    const std::size_t before = held.size();
    ASSERT_EQ(pair_.there.send(text), 3U);
    while (held.size() == before) {
      pollfd one{here(), POLLIN, 0};
      ASSERT_EQ(::poll(&one, 1, 10), 0);
    }
  }
  ASSERT_EQ(held.size(), 2U);
  EXPECT_EQ(std::string(static_cast<char*>(held[0].second.iov_base), 3), "one");
  EXPECT_EQ(std::string(static_cast<char*>(held[1].second.iov_base), 3), "two");
  for (const auto& one : held) {
    EXPECT_EQ(free_one(here(), one.first), 0) << std::strerror(errno);
    EXPECT_EQ(error_of([&] { return free_one(here(), one.first); }), ENOENT) << "twice";
  }
}

TEST_F(TcpCallback, TheWindowOpensAgainForWhatWasHeldOrThrownAt) {
  const int bytes = 60'000;
  ASSERT_EQ(::setsockopt(here(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  const std::string sent = pattern(3'000'000);
  std::vector<void*> held;
  unsigned turn = 0;
  watch([&](const std::string&, vma_info_t& info) -> Decision {
    if (++turn % 3 == 0) throw std::runtime_error("never mind");
    if (turn % 3 == 1) return VMA_PACKET_DROP;
    held.push_back(info.packet_id);
    return VMA_PACKET_HOLD;
  });
  std::thread sends([&] { EXPECT_EQ(pair_.there.send(sent), sent.size()); });
  for (int left = 10'000; left > 0 && seen_.size() < sent.size(); --left) {
    pollfd one{here(), POLLIN, 0};
    try {
      ::poll(&one, 1, 10);
    } catch (const std::runtime_error&) {
    }
    for (void* const id : std::exchange(held, {})) ASSERT_EQ(free_one(here(), id), 0);
  }
  sends.join();
  EXPECT_TRUE(seen_ == sent);
}

// The connection goes to the kernel inside the callback: nothing is lost, and nothing comes twice.
TEST_F(TcpCallback, WhatItLetsThroughIsReadAlsoWhenTheConnectionHasGoneToTheKernelMeanwhile) {
  watch([&](const std::string&, vma_info_t&) {
    go_to_kernel();
    return VMA_PACKET_RECV;
  });
  ASSERT_EQ(pair_.there.send("let through"), 11U);
  ASSERT_EQ(pair_.there.send(", and more"), 10U);
  EXPECT_EQ(pair_.here.receive(21), "let through, and more");
}

TEST_F(TcpCallback, WhatItDropsIsNotReadAlsoWhenTheConnectionHasGoneToTheKernelMeanwhile) {
  watch([&](const std::string&, vma_info_t&) {
    go_to_kernel();
    return VMA_PACKET_DROP;
  });
  ASSERT_EQ(pair_.there.send("dropped"), 7U);
  until_seen(7);
  const std::size_t dropped = seen_.size();
  ASSERT_EQ(pair_.there.send("read"), 4U);
  EXPECT_EQ(dropped, 7U);
  EXPECT_EQ(pair_.here.receive(4), "read");
}

/// The connection goes to the kernel by another thread, at any point of the stream.
class TcpCallbackMoves : public TcpCallback, public testing::WithParamInterface<int> {
 protected:
  /// Reads `sent`, or what the callback leaves of it. Returns what was read.
  std::string read_while_it_moves(const std::string& sent) {
    std::thread sends([&] {
      EXPECT_EQ(pair_.there.send(sent), sent.size());
      pair_.there.shut_down(SHUT_WR);
    });
    std::thread moves([&] {
      ::usleep(static_cast<useconds_t>(GetParam()) * 300);
      go_to_kernel();
    });
    std::string read = pair_.here.receive(sent.size());
    sends.join();
    moves.join();
    return read;
  }
};
INSTANTIATE_TEST_SUITE_P(All, TcpCallbackMoves, testing::Range(0, 10));

TEST_P(TcpCallbackMoves, WhatItLetsThroughIsReadWhole) {
  const std::string sent = pattern(10'000'000);
  watch([](const std::string&, vma_info_t&) { return VMA_PACKET_RECV; });
  EXPECT_TRUE(read_while_it_moves(sent) == sent);
}

TEST_P(TcpCallbackMoves, WhatItDropsIsNotReadAndTheRestIs) {
  const std::string sent = pattern(10'000'000);
  watch([](const std::string&, vma_info_t&) { return VMA_PACKET_DROP; });
  const std::string read = read_while_it_moves(sent);
  EXPECT_TRUE(seen_ + read == sent) << seen_.size() << " + " << read.size();
}

TEST_F(TcpCallback, AShutdownInsideItIsSeenByThePeer) {
  watch([&](const std::string&, vma_info_t&) {
    EXPECT_EQ(::shutdown(here(), SHUT_WR), 0);
    return VMA_PACKET_RECV;
  });
  ASSERT_EQ(pair_.there.send("enough"), 6U);
  EXPECT_EQ(pair_.here.receive(6), "enough");
  EXPECT_EQ(pair_.there.error_of_receive(), 0);
}

TEST_F(TcpCallback, AForkInsideItLeavesTheBytesToBothOnce) {
  pid_t child = -1;
  watch([&](const std::string&, vma_info_t&) {
    child = ::fork();
    if (child == 0) ::_exit(0);
    return VMA_PACKET_DROP;
  });
  ASSERT_EQ(pair_.there.send("dropped"), 7U);
  until_seen(7);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_EQ(pair_.there.send("read"), 4U);
  EXPECT_EQ(pair_.here.receive(4), "read");
}

TEST_F(TcpCallback, TheEndOfTheStreamFollowsWhatItSees) {
  watch([](const std::string&, vma_info_t&) { return VMA_PACKET_DROP; });
  ASSERT_EQ(pair_.there.send("last words"), 10U);
  pair_.there.close();
  EXPECT_EQ(pair_.here.error_of_receive(), 0);
  EXPECT_EQ(seen_, "last words");
}

TEST_F(TcpCallback, WithoutItBytesThatWaitAreRead) {
  watch([](const std::string&, vma_info_t&) { return VMA_PACKET_DROP; });
  ASSERT_EQ(pair_.there.send("unseen"), 6U);
  ASSERT_EQ(api().register_recv_callback(here(), nullptr, nullptr), 0);
  EXPECT_EQ(pair_.here.receive(6), "unseen");
  EXPECT_EQ(seen_, "");
}

TEST_F(TcpCallback, ZeroCopyReadsWhatItLetsThrough) {
  watch([](const std::string& bytes, vma_info_t&) { return bytes == "good" ? VMA_PACKET_RECV : VMA_PACKET_DROP; });
  ASSERT_EQ(pair_.there.send("bad"), 3U);
  until_seen(3);
  ASSERT_EQ(pair_.there.send("good"), 4U);
  std::array<char, 256> list{};
  int flags = 0;
  EXPECT_EQ(api().recvfrom_zcopy(here(), list.data(), list.size(), &flags, nullptr, nullptr), 4)
      << std::strerror(errno);
  auto* const packets = reinterpret_cast<vma_packets_t*>(list.data());
  EXPECT_EQ(api().free_packets(here(), packets->pkts, packets->n_packet_num), 0);
  EXPECT_EQ(seen_, "badgood");
}

TEST(TcpCallbackBefore, OneThatIsSetBeforeTheConnectionIsMadeActs) {
  const Listener listener = over_there([&] { return Listener("10.9.0.2", Calls::kernels); });
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string seen;
  const auto call = [](int, std::size_t, iovec parts[], vma_info_t*, void* context) {
    static_cast<std::string*>(context)->append(static_cast<char*>(parts[0].iov_base), parts[0].iov_len);
    return VMA_PACKET_RECV;
  };
  ASSERT_EQ(api().register_recv_callback(fd, call, &seen), 0);
  ASSERT_EQ(::connect(fd, listener.name().get(), listener.name().length()), 0);
  Stream here(fd, Calls::librarys);
  here.limit_waits();
  ASSERT_TRUE(here.is_on_ring());
  const Stream there = over_there([&] { return listener.accept(); });
  ASSERT_EQ(there.send("hello"), 5U);
  EXPECT_EQ(here.receive(5), "hello");
  EXPECT_EQ(seen, "hello");
}

/// The kernel carries it. Which connections these are the program cannot know.
TEST(TcpCallbackOfKernels, AConnectionThatItsPeerHasEndedTakesItAndUserData) {
  const Listener listener("10.9.0.1", Calls::librarys);
  {
    const Stream there = over_there([&] { return connected_to(listener.name(), Calls::kernels); });
    ASSERT_EQ(there.send("all"), 3U);
  }
  pollfd one{listener.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&one, 1, 10'000), 1);
  const Stream here = listener.accept();
  EXPECT_FALSE(here.is_on_ring());
  const auto never = [](int, std::size_t, iovec[], vma_info_t*, void*) { return VMA_PACKET_DROP; };
  EXPECT_EQ(api().register_recv_callback(here.fd(), never, nullptr), 0);
  std::uint64_t data = 7;
  EXPECT_EQ(::setsockopt(here.fd(), SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), 0);
  EXPECT_EQ(error_of([&] { return ::setsockopt(here.fd(), SOL_SOCKET, SO_VMA_USER_DATA, &data, 4); }), EINVAL);
  socklen_t length = sizeof data;
  EXPECT_EQ(::getsockopt(here.fd(), SOL_SOCKET, SO_VMA_USER_DATA, &data, &length), 0);
  EXPECT_EQ(data, static_cast<std::uint64_t>(here.fd()));
  EXPECT_EQ(here.receive(10), "all");
  const int file = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  EXPECT_EQ(error_of([&] { return api().register_recv_callback(file, never, nullptr); }), EINVAL);
  EXPECT_EQ(error_of([&] { return ::setsockopt(file, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data); }), ENOTSOCK);
  ::close(file);
}

}  // namespace
}  // namespace ringsock::vma_tests
