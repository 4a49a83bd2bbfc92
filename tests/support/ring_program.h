// A program that polls a ring for its sockets (VMA_SOCKETXTREME=1), as the stories of SocketXtreme use it.
#pragma once

#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/extra_api.h"

namespace ringsock::support {

/// Returns the ring's descriptor of a socket, -1 if it has none.
inline int ring_of(int fd) {
  int ring = -1;
  return api().get_socket_rings_fds(fd, &ring, 1) == 1 ? ring : -1;
}

/// Returns the bytes of a packet, after a look at its list of buffers.
inline std::string bytes_of(const vma_packet_desc_t& packet) {
  std::string out;
  std::size_t buffers = 0;
  for (const vma_buff_t* one = packet.buff_lst; one != nullptr; one = one->next, ++buffers) {
    EXPECT_GT(one->len, 0);
    out.append(static_cast<const char*>(one->payload), one->len);
  }
  EXPECT_EQ(buffers, packet.num_bufs);
  EXPECT_EQ(out.size(), packet.total_len);
  return out;
}

/// Sorts what a ring tells by its sockets. Frees packets as it reads them, unless it holds them.
class RingProgram {
 public:
  explicit RingProgram(int ring, unsigned at_once = 32) : ring_(ring), room_(at_once) {}
  ~RingProgram() { free_held(); }
  RingProgram(const RingProgram&) = delete;
  RingProgram& operator=(const RingProgram&) = delete;

  struct Told {
    std::string bytes{};
    std::vector<std::uint64_t> events{};  ///< other than packets, in order
    [[nodiscard]] std::uint64_t all() const {
      std::uint64_t out = 0;
      for (const std::uint64_t one : events) out |= one;
      return out;
    }
  };
  struct Accepted {
    int fd, listener;
    sockaddr_in from;
  };

  /// Polls once. Returns the number of completions.
  int poll() {
    const int count = api().socketxtreme_poll(ring_, room_.data(), static_cast<unsigned>(room_.size()), 0);
    EXPECT_GE(count, 0) << std::strerror(errno);
    for (int i = 0; i < count; ++i) note(room_[static_cast<std::size_t>(i)]);
    return count;
  }
  /// Polls until `done`. Returns false after ten seconds.
  bool until(const std::function<bool()>& done) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done()) {
      if (poll() == 0 && std::chrono::steady_clock::now() > limit) return false;
    }
    return true;
  }
  /// Polls for so long.
  void poll_for(std::chrono::milliseconds time) {
    const auto limit = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < limit) poll();
  }
  /// Polls until the ring has told of one more connection than this has returned. Returns it.
  Accepted accept() {
    EXPECT_TRUE(until([&] { return accepted.size() > returned_; }));
    return accepted.size() > returned_ ? accepted[returned_++] : Accepted{-1, -1, {}};
  }
  Told& operator[](int fd) { return told[static_cast<std::uint64_t>(fd)]; }

  void hold() { holds_ = true; }
  void free_held() {
    for (vma_packet_desc_t& one : std::exchange(held, {}))
      EXPECT_EQ(api().socketxtreme_free_vma_packets(&one, 1), 0) << std::strerror(errno);
    holds_ = false;
  }

  std::map<std::uint64_t, Told> told;  ///< by user_data
  std::vector<Accepted> accepted;
  std::vector<vma_packet_desc_t> held;
  std::size_t packets = 0, most_buffers = 0;
  vma_completion_t last{};  ///< the last one with a packet

 private:
  void note(vma_completion_t& one) {
    if ((one.events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED) != 0)
      accepted.push_back({static_cast<int>(one.user_data), one.listen_fd, one.src});
    Told& socket = told[one.user_data];
    if ((one.events & VMA_SOCKETXTREME_PACKET) == 0) {
      socket.events.push_back(one.events);
      return;
    }
    EXPECT_EQ(one.events, VMA_SOCKETXTREME_PACKET) << "data and the end are told one after the other";
    EXPECT_EQ(socket.all() & EPOLLRDHUP, 0U) << "data behind the end";
    ++packets;
    most_buffers = std::max(most_buffers, one.packet.num_bufs);
    last = one;
    socket.bytes += bytes_of(one.packet);
    if (holds_) {
      held.push_back(one.packet);
    } else {
      EXPECT_EQ(api().socketxtreme_free_vma_packets(&one.packet, 1), 0) << std::strerror(errno);
    }
  }
  const int ring_;
  std::vector<vma_completion_t> room_;
  bool holds_ = false;
  std::size_t returned_ = 0;  ///< by accept()
};

}  // namespace ringsock::support
