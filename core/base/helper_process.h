// Processes that the library makes, and that a program must not find among its children.
//
// A process that has lost its parent becomes a child of the next subreaper (PR_SET_CHILD_SUBREAPER) or of PID 1. If
// that process runs a program with this library, the program's wait(2) must not return the helper, and must not wait
// for it.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace ringsock {

/// The name of a relay (librsocket/hand_over) and of the process that makes it: PR_SET_NAME.
inline constexpr char kRelayName[] = "ringsock-relay";

/// Returns whether a child of this process is a helper. The child may have ended; nobody has waited for it yet. Helpers
/// are known by their names in /proc; without /proc the answer is false. Allocates nothing.
[[nodiscard]] bool is_helper(pid_t child) noexcept;

/// The children for which a call of wait(2) waits.
struct ChildFilter {
  pid_t group = 0;          ///< 0: all groups
  bool any_signal = false;  ///< __WALL
  bool clones = false;      ///< __WCLONE: children whose end raises no SIGCHLD, instead of the others
};
struct ChildrenSeen {
  bool helper = false;  ///< a helper is among them
  pid_t other = 0;      ///< a child that is no helper; 0: there is none
};
/// Reads /proc, until the first child that is no helper. Allocates nothing.
[[nodiscard]] ChildrenSeen look_at_children(const ChildFilter& filter) noexcept;

/// Returns whether processes that lose their parent may become children of this process. The first call in a process
/// asks the kernel.
[[nodiscard]] bool adopts_orphans() noexcept;
/// Called after PR_SET_CHILD_SUBREAPER.
void note_subreaper(bool is_one) noexcept;

/// A child that the library makes and waits for. A thread of the program that waits for any child may find it first.
class PassingChild {
 public:
  /// Call this before the child can end.
  static void expect(pid_t child) noexcept;
  /// Returns when the child has ended. Its status may be lost: another thread may wait for it, or the program ignores
  /// SIGCHLD.
  static void wait(pid_t child) noexcept;
  /// Returns whether wait(2) has returned such a child, which the caller must not see. Costs one load where there was
  /// none.
  [[nodiscard]] static bool is_found(pid_t child) noexcept;
};

}  // namespace ringsock
