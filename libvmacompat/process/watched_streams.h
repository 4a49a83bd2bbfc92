// SocketXtreme for streams: what a program that polls an Ethernet ring learns of the TCP sockets of that ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/ethernet/ring.h"
#include "core/extra_api/polled_streams.h"

namespace ringsock::vma {

/// The streams of one ring that have news, and the kernel's sockets that will have some: listeners, and connections
/// that are being made. The object stays valid when the ring ends; another ring may have it then. Threads: any; meant
/// for one that polls.
class WatchedStreams final : public PolledStreams {
 public:
  // -- for streams
  /// From now on the stream is listed whenever its kernel socket has one of these EPOLL* conditions. Errors: those of
  /// epoll_create(2) and epoll_ctl(2).
  Status watch(PolledStream& stream, int kernel_fd, std::uint32_t events);
  /// Ends that, and takes the stream from the list.
  void forget(PolledStream& stream, int kernel_fd) noexcept;
  /// Has threads that sleep on the ring's descriptor look. Called without locks.
  static void wake(ethernet::Ring& ring);

  // -- for programs that poll the ring
  /// Fills in completions, at most as many as there is room. Called without locks.
  std::size_t collect(std::span<vma_completion_t> out);
  /// Returns whether streams come before datagrams this time: every other time, so that both get their turn.
  bool come_first() noexcept { return polls_.fetch_add(1, std::memory_order_relaxed) % 2 == 0; }
  /// Returns the number of calls of come_first().
  [[nodiscard]] std::uint64_t polls() const noexcept { return polls_.load(std::memory_order_relaxed); }
  /// Returns whether collect() would find something. Costs a system call while sockets are watched.
  [[nodiscard]] bool has_news() noexcept;
  /// Becomes readable when a watched socket has news; -1: none was ever watched.
  [[nodiscard]] int fd() const noexcept { return shown_fd_.load(std::memory_order_acquire); }

 private:
  friend class RingsWithStreams;
  struct Watched {
    PolledStream* stream;
    int fd;
  };

  void look_at_kernel();
  [[nodiscard]] bool is_unused();

  std::weak_ptr<ethernet::Ring> ring_;  ///< guarded by the lock of RingsWithStreams
  // With lock_:
  std::vector<Watched> watched_;
  UniqueFd epoll_;

  std::atomic<int> shown_fd_{-1};
  std::atomic<bool> is_watching_{false};
  std::atomic<bool> looks_at_once_{false};  ///< a sleeper was woken for a kernel's socket
  std::atomic<unsigned> polls_since_look_{0};
  std::atomic<std::uint64_t> polls_{0};
};

/// Returns the object of a ring; makes it at the first call. Errors: std::bad_alloc.
WatchedStreams& streams_of(const std::shared_ptr<ethernet::Ring>& ring);

}  // namespace ringsock::vma
