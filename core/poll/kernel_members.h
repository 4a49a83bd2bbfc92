// The kernel's epoll file behind an epoll set, with the members that are no endpoints.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <span>
#include <utility>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/poll/doorbells.h"

namespace ringsock::runtime {

/// The epoll file behind the caller's descriptor: it holds the set's kernel descriptors just as the caller added them.
/// In an adopted set, whose file threads may have been sleeping on before, the doorbells are *nested*: a member of this
/// file, too, so that they wake those threads. Threads: any.
class KernelMembers {
 public:
  explicit KernelMembers(UniqueFd file) : file_(std::move(file)) {}

  /// Returns the epoll file, under a number of our own.
  [[nodiscard]] int file() const { return file_.get(); }
  /// epoll_ctl(2).
  Status control(int op, int fd, const epoll_event* event);
  /// Adds a file that was a member under the number `fd`. As in the kernel it stays one when the number is closed, or
  /// gets another file, while a duplicate is open: it is added under a number that no call uses then.
  /// @param open_fd  a number that the file has
  Status add_left(int fd, int open_fd, const epoll_event& event);

  // -- adoption, before others know the set
  /// The file may have members that we have not added.
  void may_have_some() { has_some_.store(true, std::memory_order_relaxed); }
  /// Makes the doorbells wake threads that sleep on the epoll file. Errors: those of epoll_ctl(2).
  Status nest(const Doorbells& doorbells);
  /// Returns the kernel's error for removing a descriptor that is not a member.
  [[nodiscard]] Status require_epoll_file(const Doorbells& doorbells) const;
  [[nodiscard]] bool has_nested() const { return has_nested_; }
  /// Returns whether threads may still sleep on the epoll file that they entered before the set was adopted: the caller
  /// rings for them. Is true for a number of times only.
  bool take_ring_for_earlier_sleepers() { return rings_left_.load() > 0 && rings_left_.fetch_sub(1) > 0; }
  /// Returns the event of a member of which nothing is reported: its EPOLLONESHOT has fired. The kernel reports errors
  /// and hang-ups of each member that is added, so these come once, and are forgotten as the doorbells' are.
  static epoll_event disabled_event();
  /// Removes the events of nested doorbells, and of disabled members, from what the kernel has reported.
  /// @return how many of the `count` events are left.
  static int forget_wake_up(epoll_event* events, int count);

  // -- looks
  /// Counts a round, and returns whether the kernel is to be asked before the endpoints.
  /// @param hits  after how many rounds that have found something; KernelLooks::kAutomatic: as the kernel had events
  bool is_turn(unsigned hits);
  void look_next_time();
  /// Reports what the kernel has. Errors: EINTR when nothing is ready and `mask` lets a pending signal through.
  /// @param doorbells_rang  becomes false when the nested doorbells are known not to have rung
  Result<int> look(std::span<epoll_event> events, const sigset_t* mask, bool& doorbells_rang);
  /// Returns whether the kernel has something to report, without taking it.
  [[nodiscard]] bool is_ready() const;

 private:
  Result<int> take(std::span<epoll_event> events, bool& doorbells_rang);

  const UniqueFd file_;
  bool has_nested_ = false;
  std::atomic<bool> has_some_{false};
  std::atomic<bool> had_events_{false};      ///< at the latest look
  std::atomic<std::uint32_t> looked_at_{0};  ///< order_stamp() of that look
  std::atomic<unsigned> rounds_since_look_{0};
  std::atomic<int> rings_left_{0};
};

}  // namespace ringsock::runtime
