// The state that the processes with an inherited socket share.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "librsocket/saved_connection.h"

namespace ringsock::rs {

/// What a process leaves to the others, beside the values of the open file description.
struct SavedSocket {
  SavedConnection connection;
  std::int32_t pending_error;
  std::uint8_t read_shut;
  std::uint8_t write_shut;
  std::uint8_t sent_into_the_void;
  std::uint8_t failure_taken;
};

/// A process of those that share a socket: its number, below a mark of its PID namespace, in which another process may
/// have the same number. 0: none.
using Member = std::int64_t;
/// Returns this process.
/// @param number  its number, to save a system call
Member member_of_this(pid_t number) noexcept;
inline Member own_member() noexcept { return member_of_this(::getpid()); }

/// In memory shared by all of them. A process that is killed does not decrement `holders`, which may thus be too high
/// but never too low. Code that relies on it must either accept waiting until the kernel closes the last descriptor, or
/// ask others_live().
struct FamilyRecord {
  /// The value of `user` for a process that is being forked, which will store itself there.
  static constexpr Member kHandedOver = -1;

  std::atomic<std::int32_t> holders{1};  ///< processes that have the socket open
  std::atomic<Member> user{0};           ///< the process that moves bytes now; 0: none
  /// Counts the users. The last user and the processes that it forked have the state of the connection; other processes
  /// have an old copy, which must not be used any more.
  std::atomic<std::uint32_t> epoch{0};
  /// The epoch whose user has finished calls, or begun work, of which no saved state knows; 0: none. When that user is
  /// killed, nobody can go on.
  std::atomic<std::uint32_t> unsaved_for{0};
  /// The process that was the user last, has the connection still, and may sleep on it; 0: none.
  std::atomic<Member> last_user{0};
  std::atomic<bool> child_listens{false};  ///< of a listener that is complete only in the parent: a child uses its copy
  std::atomic<bool> ring_ended{false};     ///< of a listener: all further clients use the kernel
  std::atomic<bool> kernel_blocks{false};  ///< of a listener: another program may accept() at the kernel's

  Member founder = 0;  ///< the process that had the socket before it was shared

  // Secrets by which another process of the family asks the user for the connection and recognises the answer.
  std::uint64_t id = 0;
  std::uint64_t proof = 0;
  std::atomic<std::uint64_t> door{0};  ///< the name of a door
  std::atomic<std::uint64_t> key{0};   ///< the key of that door
  /// The process that answers at that door; 0: none. A new user opens its door a moment after it has become the user.
  std::atomic<Member> door_owner{0};

  /// Record that this process has the socket open, or no longer has. Only others_live() uses that.
  void enter() noexcept;
  void leave() noexcept;
  /// Returns whether a process other than this one has the socket open and has not ended.
  /// @param newborn include a process that was forked but has not called enter() yet, or was killed before
  [[nodiscard]] bool others_live(bool newborn) const noexcept;

 private:
  static constexpr std::size_t kMembers = 8;
  std::array<std::atomic<Member>, kMembers> members_{};
  std::atomic<bool> has_more_members_{false};

 public:
  /// Returns the epoch whose state is saved; 0: none.
  [[nodiscard]] std::uint32_t saved_for() const noexcept { return static_cast<std::uint32_t>(saved_.load() >> 1); }
  /// Returns whether the state with which the user of that epoch began is saved: by itself, or by the user before.
  [[nodiscard]] bool has_beginning_of(std::uint32_t of_epoch) const noexcept {
    const std::uint32_t known = saved_for();
    return known != 0 && (known == of_epoch || known + 1 == of_epoch);
  }
  [[nodiscard]] const SavedSocket& saved() const noexcept { return places_[saved_.load() & 1]; }
  /// Returns the place where the user saves its next state. Nobody reads it before publish(), so a user that is killed
  /// while it writes leaves what was saved before.
  [[nodiscard]] SavedSocket& next_saved() noexcept { return places_[~saved_.load() & 1]; }
  /// Makes the state in next_saved() the saved one.
  void publish(std::uint32_t epoch) noexcept { saved_.store(std::uint64_t{epoch} << 1 | (~saved_.load() & 1)); }

 private:
  std::atomic<std::uint64_t> saved_{0};  ///< saved_for(), and in the last bit the index of saved()
  /// Without an initial value, so that its pages take no memory before it is used.
  SavedSocket places_[2];
};

/// Makes a record for one socket, before the fork for which it is needed. Returns nullptr without memory. Threads: only
/// the forking one.
std::shared_ptr<FamilyRecord> make_family_record() noexcept;

/// Returns whether the process exists and is no zombie.
bool is_alive(pid_t process) noexcept;
/// The same of a member. The kernel does not say it of processes of another PID namespace: true.
bool may_live(Member member) noexcept;
/// Returns whether the process exists and is stopped, so that it answers nobody. False in another PID namespace.
bool is_stopped(Member member) noexcept;

/// Records that this process, which is about to end, holds no sockets any more. May be called in signal handlers.
void leave_families() noexcept;
/// Undoes leave_families(), when the process does not end.
void rejoin_families() noexcept;

}  // namespace ringsock::rs
