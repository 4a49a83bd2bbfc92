// The processes that have one kernel socket open after fork(2), as far as is known.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

namespace ringsock::vma {

/// In a page that all of them share. Who ends, however he ends, is found to be gone; who closes his copy says so; what
/// a program does that was executed with one, or got one by SCM_RIGHTS, is not known: it has the socket as long as it
/// lives, or for ever. Threads: any, but before_fork() and enter_child().
class SocketFamily {
 public:
  /// With this process in it. nullptr: no memory.
  static std::shared_ptr<SocketFamily> create();

  /// A child is to come, which will call enter_child().
  void before_fork() noexcept { page_->expected.fetch_add(1, std::memory_order_relaxed); }
  void enter_child() noexcept;
  void leave() noexcept;
  /// Somebody has it of whom nothing will be heard.
  void add_stranger() noexcept { before_fork(); }

  /// Whether nobody else has the socket. Some 20 us for each other process.
  [[nodiscard]] bool is_alone() noexcept;

 private:
  struct Page {
    std::atomic<std::uint32_t> expected;  ///< children
    std::atomic<std::uint32_t> entered;
    std::array<std::atomic<pid_t>, 256> members;  ///< 0: free
  };
  explicit SocketFamily(std::shared_ptr<Page> page) : page_(std::move(page)) {}
  bool enter() noexcept;

  std::shared_ptr<Page> page_;
};

}  // namespace ringsock::vma
