// The processes that have one kernel socket open after fork(2), as far as they are known.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/unique_fd.h"

namespace ringsock::vma {

/// A list of processes in a page that all of them share. A process that has ended, in any way, is noticed; a process
/// that closes its copy removes itself. A program that was executed with the socket, or has received it by SCM_RIGHTS,
/// is not followed: it counts as having the socket as long as it lives, or for ever. Threads: any, except for
/// before_fork() and enter_child().
class SocketFamily {
 public:
  /// Makes a family of this process alone. Returns nullptr when there is no memory.
  static std::shared_ptr<SocketFamily> create();

  /// Must be called before any family is made, and not during fork(2).
  static void install_fork_handlers();
  /// Keeps a place for a child. The child calls enter_child() in its ForkRegistry's handler, unless it dies before, or
  /// the fork fails.
  void before_fork();
  void enter_child() noexcept;
  void leave() noexcept;
  /// Notes a process that cannot be followed.
  void add_stranger() noexcept { page_->strangers.fetch_add(1, std::memory_order_relaxed); }

  /// Returns whether no other process has the socket. Costs about 20 us for each other process.
  [[nodiscard]] bool is_alone() noexcept;

 private:
  struct Page {
    std::atomic<std::uint32_t> strangers;
    std::array<std::atomic<pid_t>, 256> members;  ///< 0: free; kUnborn: kept for a child
  };
  static constexpr pid_t kUnborn = -1;
  /// A place kept for a child, and a pipe that ends when the child has entered, or has died.
  struct Birth {
    std::size_t place;
    std::shared_ptr<UniqueFd> end;
  };
  explicit SocketFamily(std::shared_ptr<Page> page) : page_(std::move(page)) {}
  /// Returns the place, or the number of places when none is free.
  std::size_t enter(pid_t process) noexcept;
  void look_at_births() noexcept;

  std::shared_ptr<Page> page_;
  std::vector<Birth> births_;  ///< children of this process
};

}  // namespace ringsock::vma
