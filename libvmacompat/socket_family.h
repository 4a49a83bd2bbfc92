// The processes that have one kernel socket open after fork(2), as far as is known.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/unique_fd.h"

namespace ringsock::vma {

/// In a page that all of them share. Who ends, however he ends, is found to be gone; who closes his copy says so; what
/// a program does that was executed with one, or got one by SCM_RIGHTS, is not known: it has the socket as long as it
/// lives, or for ever. Threads: any, but before_fork() and enter_child().
class SocketFamily {
 public:
  /// With this process in it. nullptr: no memory.
  static std::shared_ptr<SocketFamily> create();

  /// To be called before any family is made, outside of fork(2).
  static void install_fork_handlers();
  /// A child is to come, which will call enter_child() in its ForkRegistry's handler, unless it dies before, or the
  /// fork fails.
  void before_fork();
  void enter_child() noexcept;
  void leave() noexcept;
  /// Somebody has it of whom nothing will be heard.
  void add_stranger() noexcept { page_->strangers.fetch_add(1, std::memory_order_relaxed); }

  /// Whether nobody else has the socket. Some 20 us for each other process.
  [[nodiscard]] bool is_alone() noexcept;

 private:
  struct Page {
    std::atomic<std::uint32_t> strangers;
    std::array<std::atomic<pid_t>, 256> members;  ///< 0: free; kUnborn: kept for a child
  };
  static constexpr pid_t kUnborn = -1;
  /// A place kept for a child, and a pipe that is at its end when the child has entered, or is gone.
  struct Birth {
    std::size_t place;
    std::shared_ptr<UniqueFd> end;
  };
  explicit SocketFamily(std::shared_ptr<Page> page) : page_(std::move(page)) {}
  /// The place; the number of places when all are taken.
  std::size_t enter(pid_t process) noexcept;
  void look_at_births() noexcept;

  std::shared_ptr<Page> page_;
  std::vector<Birth> births_;  ///< this process's children
};

}  // namespace ringsock::vma
