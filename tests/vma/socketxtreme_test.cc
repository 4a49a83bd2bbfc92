// SocketXtreme of VMA's Extra API (VMA_SOCKETXTREME=1). Runs beside the echo service (two_hosts.sh), with libvma;
// packets_vma.sh sets the variables.
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/vma/packets_world.h"

namespace ringsock::vma_tests {
namespace {

class SocketXtreme : public Packets {
 protected:
  SocketXtreme() { ring_ = ring_of(socket_); }
  ~SocketXtreme() override {
    for (vma_completion_t& one : taken_) EXPECT_EQ(api().socketxtreme_free_vma_packets(&one.packet, 1), 0);
  }
  static int ring_of(const Socket& socket) {
    int ring = -1;
    EXPECT_EQ(api().get_socket_rings_fds(socket, &ring, 1), 1);
    return ring;
  }
  /// Polls until there are so many packets more.
  void take(std::size_t count) {
    const std::size_t wanted = taken_.size() + count;
    until([&] {
      std::array<vma_completion_t, 8> some;
      const int found = api().socketxtreme_poll(ring_, some.data(), some.size(), 0);
      EXPECT_GE(found, 0) << std::strerror(errno);
      for (int i = 0; i < found; ++i) {
        const auto& one = some[static_cast<std::size_t>(i)];
        (one.events & VMA_SOCKETXTREME_PACKET) != 0 ? taken_.push_back(one) : others_.push_back(one);
      }
      return taken_.size() >= wanted;
    });
  }
  static std::string text_of(const vma_completion_t& one) {
    EXPECT_EQ(one.packet.num_bufs, 1U);
    EXPECT_EQ(one.packet.total_len, one.packet.buff_lst->len);
    EXPECT_EQ(one.packet.buff_lst->next, nullptr);
    return {static_cast<const char*>(one.packet.buff_lst->payload), one.packet.buff_lst->len};
  }
  void free_all() {
    for (vma_completion_t& one : std::exchange(taken_, {}))
      EXPECT_EQ(api().socketxtreme_free_vma_packets(&one.packet, 1), 0);
  }

  int ring_ = -1;
  std::vector<vma_completion_t> taken_, others_;
};

TEST_F(SocketXtreme, TheMaskHasIt) {
  const std::uint64_t all = VMA_EXTRA_API_SOCKETXTREME_POLL | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS |
                            VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF;
  EXPECT_EQ(api().vma_extra_supported_mask & all, all);
}

TEST_F(SocketXtreme, APacketTellsItsSocketItsSenderAndItsPayload) {
  send("hello");
  take(1);
  ASSERT_EQ(taken_.size(), 1U);
  EXPECT_EQ(text_of(taken_[0]), "hello");
  EXPECT_EQ(taken_[0].user_data, static_cast<std::uint64_t>(socket_));
  EXPECT_EQ(taken_[0].events, VMA_SOCKETXTREME_PACKET);
  EXPECT_EQ(taken_[0].src.sin_family, AF_INET);
  EXPECT_EQ(taken_[0].src.sin_addr.s_addr, inet_addr("10.9.0.2"));
  EXPECT_EQ(ntohs(taken_[0].src.sin_port), far_.name().port());
}

TEST_F(SocketXtreme, SocketsOfOneRingAreToldApartAndTheOrderIsThatOfArrival) {
  std::vector<Socket> sockets;
  for (int i = 0; i < 20; ++i) {
    sockets.emplace_back(AF_INET);
    bind_here(sockets.back());
    ASSERT_EQ(ring_of(sockets.back()), ring_);
    void* data = reinterpret_cast<void*>(std::uintptr_t{0xABC00000000} + static_cast<unsigned>(i));
    ASSERT_EQ(::setsockopt(sockets.back(), SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), 0);
  }
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 20; ++i) send_to(sockets[static_cast<std::size_t>(i)], std::to_string(round * 20 + i));
  }
  take(60);
  ASSERT_EQ(taken_.size(), 60U);
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    EXPECT_EQ(text_of(taken_[i]), std::to_string(i));
    EXPECT_EQ(taken_[i].user_data, 0xABC00000000 + i % 20);
  }
}

TEST_F(SocketXtreme, WhatHasComeBeforeTheFirstPollIsFound) {
  const Socket other(AF_INET);
  bind_here(other);
  send("early");
  send_to(other, "others");
  EXPECT_EQ(other.receive(), "others") << "takes what has come before, too";
  take(1);
  ASSERT_EQ(taken_.size(), 1U);
  EXPECT_EQ(text_of(taken_[0]), "early");
}

TEST_F(SocketXtreme, WhatWasReadOtherwiseDoesNotComeAgain) {
  const Socket other(AF_INET);
  bind_here(other);
  other.limit_waits();
  for (const char* text : {"1", "2", "3"}) send(text);
  send_to(other, "x");
  EXPECT_EQ(other.receive(), "x");
  EXPECT_EQ(socket_.receive(), "1");
  take(2);
  ASSERT_EQ(taken_.size(), 2U);
  EXPECT_EQ(text_of(taken_[0]), "2");
  EXPECT_EQ(text_of(taken_[1]), "3");
}

TEST_F(SocketXtreme, ABufferIsFreeWithItsLastReference) {
  send("shared");
  take(1);
  ASSERT_EQ(taken_.size(), 1U);
  vma_buff_t* const buffer = taken_[0].packet.buff_lst;
  EXPECT_EQ(api().socketxtreme_ref_vma_buff(buffer), 2);
  EXPECT_EQ(api().socketxtreme_ref_vma_buff(buffer), 3);
  EXPECT_EQ(api().socketxtreme_free_vma_buff(buffer), 2);
  EXPECT_EQ(api().socketxtreme_free_vma_packets(&taken_[0].packet, 1), 0);
  EXPECT_EQ(text_of(taken_[0]), "shared");
  EXPECT_EQ(api().socketxtreme_free_vma_buff(buffer), 0);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_free_vma_buff(buffer); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_ref_vma_buff(buffer); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_free_vma_packets(&taken_[0].packet, 1); }), EINVAL);
  taken_.clear();
}

TEST_F(SocketXtreme, BadArgumentsAreRefused) {
  vma_completion_t one{};
  vma_buff_t own{};
  void* const garbage = reinterpret_cast<void*>(0x1234567890000);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_poll(ring_, nullptr, 1, 0); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_poll(ring_, &one, 0, 0); }), EINVAL);
  for (const int fd : {-1, 1'000'000, static_cast<int>(socket_)})
    EXPECT_EQ(error_of([&] { return api().socketxtreme_poll(fd, &one, 1, 0); }), EBADFD);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_poll(ring_, static_cast<vma_completion_t*>(garbage), 1, 0); }),
            EFAULT);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_free_vma_packets(nullptr, 1); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_free_vma_packets(&one.packet, -1); }), EINVAL);
  EXPECT_EQ(error_of([&] { return api().socketxtreme_free_vma_packets(static_cast<vma_packet_desc_t*>(garbage), 1); }),
            EFAULT);
  one.packet.num_bufs = 1;
  for (vma_buff_t* const bad : {&own, static_cast<vma_buff_t*>(garbage), static_cast<vma_buff_t*>(nullptr)}) {
    one.packet.buff_lst = bad;
    EXPECT_EQ(error_of([&] { return api().socketxtreme_free_vma_packets(&one.packet, 1); }), EINVAL);
    EXPECT_EQ(error_of([&] { return api().socketxtreme_ref_vma_buff(bad); }), EINVAL);
    EXPECT_EQ(error_of([&] { return api().socketxtreme_free_vma_buff(bad); }), EINVAL);
  }
  send("whole");
  take(1);
  ASSERT_EQ(taken_.size(), 1U);
  EXPECT_EQ(error_of([&] { return free_one(socket_, taken_[0].packet.buff_lst); }), ENOENT) << "another kind of packet";
}

TEST_F(SocketXtreme, ADatagramOfTheKernelIsAnEvent) {
  const Socket local(AF_INET);
  bind_here(local);
  ASSERT_EQ(local.send_to(socket_.name(), "from this host"), 14);
  vma_completion_t one{};
  until([&] { return api().socketxtreme_poll(ring_, &one, 1, 0) == 1; });
  EXPECT_EQ(one.events, EPOLLIN);
  EXPECT_EQ(one.user_data, static_cast<std::uint64_t>(socket_));
  EXPECT_EQ(socket_.receive(), "from this host");
}

TEST_F(SocketXtreme, HeldPacketsOutliveTheirSocket) {
  {
    Socket other(AF_INET);
    bind_here(other);
    send_to(other, "of a closed socket");
    take(1);
  }
  ASSERT_EQ(taken_.size(), 1U);
  EXPECT_EQ(text_of(taken_[0]), "of a closed socket");
}

TEST_F(SocketXtreme, AllBuffersMayBeHeldAndThenReturnToThePool) {
  for (int round = 0; round < 3; ++round) {
    std::array<vma_completion_t, 16> some;
    for (int i = 0; i < 2000; ++i) {
      send("all");
      const int found = api().socketxtreme_poll(ring_, some.data(), some.size(), 0);
      ASSERT_GE(found, 0);
      for (int k = 0; k < found; ++k) {
        if ((some[static_cast<std::size_t>(k)].events & VMA_SOCKETXTREME_PACKET) != 0)
          taken_.push_back(some[static_cast<std::size_t>(k)]);
      }
    }
    EXPECT_GE(taken_.size(), 600U) << "round " << round;
    EXPECT_LE(taken_.size(), 1400U);
    free_all();
    send("and on");
    take(1);
    EXPECT_EQ(text_of(taken_.back()), "and on");
    free_all();
  }
}

TEST_F(SocketXtreme, EachThreadMayHaveARingOfItsOwn) {
  constexpr int kThreads = 3, kDatagrams = 200;
  std::atomic<int> total{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Socket own(AF_INET);
      vma_ring_alloc_logic_attr logic{};
      logic.comp_mask = VMA_RING_ALLOC_MASK_RING_USER_ID | VMA_RING_ALLOC_MASK_RING_INGRESS;
      logic.ring_alloc_logic = RING_LOGIC_PER_USER_ID;
      logic.user_id = static_cast<std::uint32_t>(t + 1);
      logic.ingress = 1;
      ASSERT_EQ(::setsockopt(own, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof logic), 0);
      bind_here(own);
      const int ring = ring_of(own);
      EXPECT_NE(ring, ring_);
      const Address name = own.name();
      int received = 0;
      for (int i = 0; i < kDatagrams; ++i) {
        ASSERT_GT(far_.send(name, std::to_string(i)), 0);
        until([&] {
          vma_completion_t one{};
          if (api().socketxtreme_poll(ring, &one, 1, 0) != 1) return false;
          EXPECT_EQ(text_of(one), std::to_string(i));
          EXPECT_EQ(one.user_data, static_cast<std::uint64_t>(own));
          EXPECT_EQ(api().socketxtreme_free_vma_packets(&one.packet, 1), 0);
          ++received;
          return true;
        });
      }
      total += received;
    });
  }
  for (std::thread& one : threads) one.join();
  EXPECT_EQ(total, kThreads * kDatagrams);
}

TEST_F(SocketXtreme, AForkedChildHasNoRingAndMayFreeItsCopies) {
  send("held");
  take(1);
  ASSERT_EQ(taken_.size(), 1U);
  const pid_t child = ::fork();
  if (child == 0) {
    vma_completion_t one{};
    const bool has_none = error_of([&] { return api().socketxtreme_poll(ring_, &one, 1, 0); }) == EBADFD;
    const bool is_freed = api().socketxtreme_free_vma_packets(&taken_[0].packet, 1) == 0;
    ::_exit(has_none && is_freed ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text_of(taken_[0]), "held");
}

}  // namespace
}  // namespace ringsock::vma_tests
