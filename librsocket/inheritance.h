// A stream socket before, during and after fork(2), and the process that may use it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/base/clock.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/roles.h"
#include "librsocket/family_record.h"
#include "librsocket/handing_on.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// The locks of the connection that a socket has: another thread may make it at any moment before setup_lock is held,
/// or destroy one that could not be established.
class ConnectionLocks final : public runtime::LocksWithin {
 public:
  explicit ConnectionLocks(const StreamCore& core) : core_(core) {}
  void add_locks_within(runtime::ForkLocks& locks) override {
    if (core_.connection) core_.connection->add_fork_locks(locks);
  }

 private:
  const StreamCore& core_;
};

/// After a fork(2) a connection is suspended in both processes, and belongs to the one that uses it. As long as another
/// process has it, too, the user gives it back at the end of each call (Turn): it saves the state to the FamilyRecord,
/// so that others can go on whatever becomes of the user. A process that comes second asks the last user to go on by
/// the kernel (can_follow()) if that process lives and may sleep on the connection, and takes the connection otherwise.
/// Functions take setup_lock where they change anything, except those named _locked and those of the end, which need
/// it. Questions may be asked by any thread.
class Inheritance final : public runtime::ProcessLife, public StreamPart {
 public:
  Inheritance(StreamSocket& socket, StreamCore& core) : StreamPart(socket, core), connection_locks_(core) {}

  void add_fork_locks(runtime::ForkLocks& locks) override;
  void before_fork() noexcept override;
  void after_fork(ForkSide side) noexcept override;
  void process_ends() noexcept override;
  void process_goes_on() noexcept override;
  /// For a socket that was forked before it was connected or listened. If it is alone, there is no family any more.
  bool is_alone() noexcept override;

  /// Returns the record shared by all processes that have the socket, null if no other process ever had it.
  [[nodiscard]] FamilyRecord* family() const noexcept { return family_.load(std::memory_order_acquire); }
  /// Returns whether other processes may have it open; never false when they have.
  [[nodiscard]] bool is_shared() const noexcept;
  /// Returns whether another process has used it since a fork, so that calls may have to ask that process.
  [[nodiscard]] bool is_used_elsewhere() const noexcept;
  /// Returns whether another process has used it since the fork, so that the state here is outdated.
  [[nodiscard]] bool has_old_state() const noexcept {
    const FamilyRecord* const record = family();
    return record != nullptr && record->epoch.load() != epoch_.load();
  }
  /// Returns whether bytes or the end have come, and no process has used the connection since the fork. Threads: the
  /// only one of its process.
  [[nodiscard]] bool is_left_unread() const noexcept;

  /// Returns whether the state is saved, and no process is the user now.
  [[nodiscard]] bool is_saved() const noexcept;
  /// Returns whether this process was the user last, so that a claim takes nothing from another one.
  [[nodiscard]] bool was_last_user() const noexcept;
  /// Returns whether the connection can be taken without asking: no process has used it since the fork, or the one that
  /// has used it last has saved it, and does not have it any more.
  [[nodiscard]] bool is_free() const noexcept;

  /// A call on the connection. Its end gives the connection back if other processes have it, too, unless another call
  /// is inside. Threads: any, without locks of the socket at the end.
  class Turn {
   public:
    explicit Turn(Inheritance& inheritance) : inheritance_(inheritance.family() != nullptr ? &inheritance : nullptr) {
      if (inheritance_ != nullptr) [[unlikely]]
        inheritance_->turns_.fetch_add(1);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      if (inheritance_ != nullptr) [[unlikely]]
        inheritance_->turn_ends();
    }

   private:
    Inheritance* inheritance_;
  };

  /// Makes this process the user, before it moves bytes or asks about the peer. Returns false when another process is
  /// the user.
  bool claim() noexcept {
    if (!core_.suspended.load(std::memory_order_acquire)) [[likely]]
      return true;
    return claim_suspended();
  }
  /// Claims the connection where that takes nothing from another process. Returns whether this process is the user.
  bool is_ours() noexcept { return !core_.is_suspended() || (was_last_user() && claim()); }
  bool claim_locked(Member user = 0) noexcept;
  /// claim() although the last user lives, which has saved the state and does not answer.
  bool take() noexcept;
  /// Reserves the connection, which this process may use, for a process that is about to be forked and calls
  /// claim_handed_on(). No other process can claim it meanwhile, and a close waits until handing_on has ended. Returns
  /// false when another process is the user.
  bool hand_on() noexcept;
  /// Undoes hand_on(), when the process was not made.
  void take_back() noexcept;
  bool claim_handed_on() noexcept;

  /// For a library whose processes can ask each other for a connection. The call is made by a process that has become
  /// the user of a connection that others also have, without locks, but possibly inside a read-side section. Set it
  /// before the first socket is made.
  using NewUserCall = void (*)(StreamSocket& connection) noexcept;
  static void have_user_asked(NewUserCall becomes_user);
  /// Returns whether this process can continue a connection that another process uses, after asking that process.
  [[nodiscard]] bool can_follow() const noexcept;
  /// That process could not be asked.
  void note_asked_in_vain() noexcept { asked_in_vain_.store(true, std::memory_order_relaxed); }

  // The end of this process's use
  /// Returns false when another process continues the connection, which must not be disturbed.
  bool leave_family() noexcept;
  /// Returns whether this is an object on which a thread that the child does not have was working. It is also lost.
  [[nodiscard]] bool is_half_made() const noexcept { return half_made_; }

 private:
  bool claim_suspended() noexcept;
  bool become_user(FamilyRecord* family, Member& user) noexcept;
  [[nodiscard]] bool may_use(const FamilyRecord& family) const noexcept;
  bool restore(SavedSocket saved) noexcept;
  void turn_ends() noexcept;
  void give_back() noexcept;
  void put_down(FamilyRecord& family) noexcept;
  bool is_wanted_by_others() noexcept;
  void tell_loss(Member user) noexcept;
  void suspend() noexcept;
  void resume() noexcept;
  void lose_half_made() noexcept;
  void lose() noexcept;

  ConnectionLocks connection_locks_;
  std::atomic<FamilyRecord*> family_{nullptr};  ///< null: never inherited, or not any more
  std::atomic<std::uint32_t> epoch_{0};         ///< FamilyRecord::epoch of the state here
  std::atomic<int> turns_{0};
  std::atomic<bool> gives_back_{false};  ///< this process is the user until the last Turn ends
  std::atomic<bool> keeps_{false};       ///< this process is a relay, which stays the user
  std::atomic<bool> takes_{false};       ///< take()
  std::atomic<bool> is_closing_{false};  ///< the caller of leave_family() has send_lock
  Nanos looks_for_others_at_{0};
  bool is_copied_ = false;         ///< the fork under way gives the child a copy that counts
  std::atomic<bool> lost_{false};  ///< this process has lost the connection
  bool half_made_ = false;
  bool loss_told_ = false;   ///< the loss was logged
  bool loss_known_ = false;  ///< the peer does not access this process's memory any more
  std::shared_ptr<FamilyRecord> family_owner_;
  std::atomic<bool> asked_in_vain_{false};
  std::atomic<bool> ends_{false};  ///< this process ends, or executes a program

 public:
  HandingOn handing_on;
};

/// Returns whether no other process that lives has the connection open, also where others were killed. Asks the kernel.
[[nodiscard]] inline bool is_alone_now(const Inheritance& connection) noexcept {
  return connection.family() == nullptr || !connection.family()->others_live(true);
}

}  // namespace ringsock::rs
