// What the processes that have inherited a socket over fork(2) know of each other.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ringsock::rs {

/// In memory that all of them share. A process that is killed does not count itself out, so `holders` may be too high,
/// never too low: who relies on it must be content with waiting for the kernel to close the last descriptor, or ask
/// others_live().
struct FamilyRecord {
  /// As `user`: a process that is being made for it, which puts its own number there.
  static constexpr pid_t kHandedOver = -1;

  std::atomic<std::int32_t> holders{1};  ///< processes that have the socket open
  std::atomic<pid_t> user{0};            ///< who moves bytes since the last fork; 0: nobody has so far
  /// Counts the users. The state of the connection is where the last one is, and in what that forked: others have an
  /// old copy, which nobody may use any more.
  std::atomic<std::uint32_t> epoch{0};
  std::atomic<bool> child_listens{false};  ///< of a listener that only the parent has whole: a child uses its copy

  pid_t founder = 0;  ///< the process that had the socket alone

  // By which another process of the family asks the user for the connection, and knows the answer. Nobody else does.
  std::uint64_t id = 0;
  std::uint64_t proof = 0;
  std::atomic<std::uint64_t> door{0};  ///< the name of the user's; 0: it has none yet
  std::atomic<std::uint64_t> key{0};   ///< to that door

  /// This process has the socket open from now on, or no more: only others_live() looks at that.
  void enter() noexcept;
  void leave() noexcept;
  /// Whether a process other than this one has the socket open and has not ended.
  /// @param newborn  also one that was forked and has not come to enter() yet, or was killed before
  [[nodiscard]] bool others_live(bool newborn) const noexcept;

 private:
  static constexpr std::size_t kMembers = 8;
  std::array<std::atomic<pid_t>, kMembers> members_{};
  std::atomic<bool> has_more_members_{false};
};

/// A record for one socket, made before the fork that makes it needed. Records lie many to a page; the page goes, in
/// this process, with the last of them. Errors: nullptr, no memory. Threads: only the forking one.
std::shared_ptr<FamilyRecord> make_family_record();

/// Whether the process is there and no zombie.
bool is_alive(pid_t process) noexcept;

/// This process is about to end: it holds no socket any more, as far as the others are concerned. For signal handlers,
/// too.
void leave_families() noexcept;
/// It goes on, after all.
void rejoin_families() noexcept;

}  // namespace ringsock::rs
