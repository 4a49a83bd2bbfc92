// SocketXtreme for streams: what a program that polls a ring learns of the TCP sockets of that ring.
#pragma once

#include <mellanox/vma_extra.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/unique_fd.h"
#include "core/ethernet/ring.h"
#include "core/runtime/endpoint.h"

namespace ringsock::vma {

class PolledStreams;

/// Played by a part of such a socket. Threads: any.
class PolledStream {
 public:
  /// Fills in the next completion. Returns false when the program knows everything by now. Called without locks.
  virtual bool take_event(vma_completion_t& out) = 0;
  /// The socket. It leaves all PolledStreams before it is destroyed.
  virtual runtime::Endpoint& endpoint() noexcept = 0;

 protected:
  PolledStream() = default;
  PolledStream(const PolledStream&) = delete;
  PolledStream& operator=(const PolledStream&) = delete;
  ~PolledStream() = default;
  /// Takes the stream from whichever list it is in. Called last, when nobody has a reference to the socket any more.
  void unlist() noexcept;
  /// Called in a forked child: the list is the parent's.
  void forget_list() noexcept { listed_in_.store(nullptr, std::memory_order_relaxed); }

 private:
  friend class PolledStreams;
  std::atomic<PolledStreams*> listed_in_{nullptr};  ///< null: it is in no list
};

/// The streams of one ring that have news, and the kernel's sockets that will have some: listeners, and connections
/// that are being made. The object stays valid when the ring ends; another ring may have it then. Threads: any; meant
/// for one that polls.
class PolledStreams {
 public:
  PolledStreams() = default;
  PolledStreams(const PolledStreams&) = delete;
  PolledStreams& operator=(const PolledStreams&) = delete;

  // -- for streams
  /// The stream has news. Does nothing while it is listed already, or without memory for its place: the next news lists
  /// it. A leaf lock is taken.
  void list(PolledStream& stream) noexcept;
  /// From now on the stream is listed whenever its kernel socket has one of these EPOLL* conditions. Errors: those of
  /// epoll_create(2) and epoll_ctl(2).
  Status watch(PolledStream& stream, int kernel_fd, std::uint32_t events);
  /// Ends that, and takes the stream from the list.
  void forget(PolledStream& stream, int kernel_fd) noexcept;
  /// The program is told once, by these EPOLL* bits, of a socket that is the kernel's now, unless it has closed `fd` by
  /// then. Lost without memory.
  void tell_of_kernels(int fd, std::uint64_t user_data, std::uint32_t events) noexcept;
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
  friend class PolledRings;
  struct Watched {
    PolledStream* stream;
    int fd;
  };
  struct Left {
    int fd;
    ino_t inode;  ///< the number may be another socket's by now
    std::uint64_t user_data;
    std::uint32_t events;
  };

  struct First {
    runtime::Ref socket{};
    PolledStream* stream = nullptr;
  };

  void look_at_kernel();
  void list_locked(PolledStream& stream) noexcept;
  First take_first();
  std::size_t tell_left(std::span<vma_completion_t> out);
  [[nodiscard]] std::size_t listed();
  [[nodiscard]] bool is_unused();

  std::weak_ptr<ethernet::Ring> ring_;  ///< guarded by the lock of PolledRings
  Mutex lock_;                          ///< guards these
  std::deque<PolledStream*> ready_;
  std::vector<Watched> watched_;
  std::vector<Left> left_;
  UniqueFd epoll_;

  std::atomic<int> shown_fd_{-1};
  std::atomic<bool> is_watching_{false};
  std::atomic<bool> has_ready_{false};      ///< a hint for collect(): ready_ or left_ is not empty
  std::atomic<bool> looks_at_once_{false};  ///< a sleeper was woken for a kernel's socket
  std::atomic<unsigned> polls_since_look_{0};
  std::atomic<std::uint64_t> polls_{0};
};

/// Returns the object of a ring; makes it at the first call. Errors: std::bad_alloc.
PolledStreams& polled_streams(const std::shared_ptr<ethernet::Ring>& ring);

}  // namespace ringsock::vma
