// The datagrams of a UDP socket that wait outside the kernel's socket when its rings have ended.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "core/base/result.h"
#include "core/device/shm/datagrams/sender_socket.h"
#include "librsocket/datagram/arrivals.h"

namespace ringsock::rs {

/// A queue that a process and its forked children empty together, as they do the kernel's socket: each datagram goes to
/// the one that takes it first. Each of them has the datagrams in memory of its own. They share only the number of
/// those taken, which a process that has given up its rights cannot use for more than taking what it could take anyway.
/// Threads: the caller's lock.
class Backlog {
 public:
  /// Not after share().
  /// @param sender  of a ring; a sender without one has an unknown socket
  void add(const SocketAddress& source, std::span<const std::byte> bytes, const soft::SenderSocket& sender);
  [[nodiscard]] bool empty() const;
  /// The size in bytes of the oldest datagram. Not when empty.
  [[nodiscard]] std::size_t next_bytes() const { return waiting_.front().arrival.bytes.size(); }
  /// Copies the oldest datagram to the caller, as recvmsg(2), and takes it unless `flags` have MSG_PEEK.
  /// Errors: EAGAIN when another process has taken the last one; those of copy_out().
  Result<ssize_t> receive(msghdr& message, int flags, int family);
  void clear();

  /// Called before a fork(2): what waits is the child's, too. Where there is no memory for that it stays this
  /// process's.
  void share();
  /// Called in the forked child.
  void forked();
  /// Gives what waits to the kernel's socket `fd`, for processes that this one cannot tell of it. What does not fit
  /// into its buffer stays here, and that of senders which have ended or may not be traced (ptrace(2)).
  void give_to_kernel(int fd);

 private:
  using Count = std::atomic<std::uint32_t>;
  struct Waiting {
    Arrival arrival;
    soft::SenderSocket sender;
  };
  bool take();
  void follow() const;

  /// The others' takings show when somebody looks.
  mutable std::deque<Waiting> waiting_;
  mutable std::uint32_t taken_ = 0;  ///< since share(): those that are not in `waiting_` any more
  std::shared_ptr<Count> shared_;    ///< how many are taken, by whomever. Null: not shared
};

}  // namespace ringsock::rs
