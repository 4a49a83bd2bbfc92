// The kernel's socket under a UDP socket: what it has to receive, and what it sends.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "core/base/result.h"
#include "libvmacompat/statistics/vma_statistics.h"

namespace ringsock::vma {

/// Locks: none; the fields are atomic, and each is a hint or an option of its own. Threads: any.
class KernelSocket {
 public:
  /// @param polls_per_look  looks are due after so many polls of the rings; 0: only after a sleep
  KernelSocket(int domain, int fd, unsigned polls_per_look, runtime::VmaSocketStatistics& statistics);

  [[nodiscard]] int fd() const { return fd_.load(std::memory_order_relaxed); }
  /// Called when the descriptor was closed and another one refers to the socket.
  void set_fd(int fd) { fd_.store(fd, std::memory_order_relaxed); }
  [[nodiscard]] int domain() const { return domain_; }
  /// No other socket has this inode as long as this object lives.
  [[nodiscard]] ino_t inode() const { return inode_; }

  /// Returns whether a socket that also has rings should look here. Called once per poll.
  [[gnu::always_inline]] bool is_due() noexcept {
    if (hint_.load(std::memory_order_relaxed)) return true;
    const unsigned polls = polls_.load(std::memory_order_relaxed) + 1;
    polls_.store(polls, std::memory_order_relaxed);
    return polls >= polls_per_look_ && polls_per_look_ != 0;
  }
  /// Makes the next look due: there may be a datagram.
  void expect_datagram() noexcept { hint_.store(true, std::memory_order_relaxed); }
  /// recvmsg(2) without waiting.
  Result<ssize_t> receive(msghdr& message, int flags);
  /// Returns the events of poll(2).
  std::uint32_t events() noexcept;

  /// sendmsg(2) without waiting and without SIGPIPE.
  Result<ssize_t> send(const msghdr& message, int flags);
  /// Returns whether a sender may wait for room.
  [[nodiscard]] bool is_full() const { return is_full_.load(std::memory_order_relaxed); }
  /// Returns whether it was full; from now on it is not.
  bool end_full() { return is_full_.exchange(false, std::memory_order_relaxed); }

  /// From now on the drops that the kernel counts include copies of datagrams that rings have received.
  void count_copies() { counts_copies_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool counts_copies() const { return counts_copies_.load(std::memory_order_relaxed); }

 private:
  runtime::VmaSocketStatistics& statistics_;
  const int domain_;
  const ino_t inode_;
  const unsigned polls_per_look_;
  std::atomic<int> fd_;
  std::atomic<bool> hint_{true};  ///< there may be a datagram
  std::atomic<unsigned> polls_{0};
  std::atomic<bool> is_full_{false};
  std::atomic<bool> counts_copies_{false};
};

}  // namespace ringsock::vma
