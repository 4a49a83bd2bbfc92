#include "librsocket/inheritance.h"

#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "core/base/lock_until.h"
#include "core/base/log.h"
#include "core/base/sleep_while.h"
#include "core/runtime/fork_registry.h"
#include "core/transports/chosen_socket.h"
#include "core/wire/rs_message.h"
#include "librsocket/rsocket_process.h"
#include "librsocket/saved_connection.h"
#include "librsocket/stream_api.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {

/// Returns whether a reader waits for a message with this immediate data: for bytes, or for the end.
bool concerns_reader(std::uint32_t immediate) {
  const wire::RsMessage message = wire::rs_message_of(immediate);
  return message.opcode == wire::RsOpcode::data ||
         (message.opcode == wire::RsOpcode::ctrl &&
          message.value != static_cast<std::uint32_t>(wire::RsControl::keepalive));
}

/// have_user_asked()
Inheritance::NewUserCall call_of_new_user = nullptr;

/// Makes this process, the user, answer the questions of others that have the connection.
void let_others_ask(StreamSocket& socket, bool is_new) noexcept {
  const FamilyRecord* const family = socket.inheritance().family();
  if (call_of_new_user == nullptr || family == nullptr || !socket.inheritance().is_shared()) return;
  if (is_new || family->door_owner.load() != own_member()) call_of_new_user(socket);
}

/// Returns whether it is a kernel socket with this way beside it that is neither connected nor listens.
bool is_undecided(const StreamCore& core) {
  auto* const chosen = core.endpoint.as_chosen_socket();
  return core.state() == StreamCore::State::initial && chosen != nullptr && chosen->choice().is_undecided();
}

/// Saves what the socket knows beside its connection, which has been saved.
void save_rest(const StreamCore& core, SavedSocket& saved) {
  saved.read_shut = core.read_shut.load(std::memory_order_relaxed);
  saved.write_shut = core.write_shut.load(std::memory_order_relaxed);
  saved.sent_into_the_void = core.sent_into_the_void.load(std::memory_order_relaxed);
  saved.failure_taken = core.failure_taken.load(std::memory_order_relaxed);
  saved.pending_error = core.pending_error.load(std::memory_order_relaxed);
}

/// Returns false, without effect, while work is under way. The locks of sender and reader must be held, or the
/// connection is suspended.
bool save_state(const StreamCore& core, SavedSocket& saved) {
  if (!StateOf(*core.connection).save(saved.connection)) return false;
  save_rest(core, saved);
  return true;
}

/// Saves the state of the user, which has claimed the connection, for the case that it is killed before its call ends.
void save_beginning(StreamCore& core, std::uint32_t epoch, FamilyRecord* family) {
  const std::lock_guard guard(core.setup_lock);
  const std::lock_guard sending(core.send_lock);
  const std::lock_guard reading(core.receive_lock);
  const bool is_user = family != nullptr && family->user.load() == own_member() && family->epoch.load() == epoch;
  if (!is_user || core.is_suspended() || family->unsaved_for.load() == epoch) return;
  if (save_state(core, family->next_saved())) family->publish(epoch);
}

/// Saves the state of the user `us`, which forks: it, and the process that it forks, may end before they use the
/// connection again. Of a user that others wait for, and of one that hands the connection on. All locks are held.
void save_for_fork(const StreamCore& core, std::uint32_t epoch, Member us, FamilyRecord& family) {
  const Member user = family.user.load();
  if ((user != us && user != FamilyRecord::kHandedOver) || family.epoch.load() != epoch) return;
  if (!family.others_live(true) || !core.is_connected() || core.is_suspended()) return;
  SavedSocket& saved = family.next_saved();
  if (!StateOf(*core.connection).save_locked(saved.connection)) return family.unsaved_for.store(epoch);
  save_rest(core, saved);
  family.publish(epoch);
  family.unsaved_for.store(0);
}

/// Returns the user, if it has been killed and this process may know the state with which it began, 0 otherwise.
/// @param own_epoch  FamilyRecord::epoch of the state in this process
Member killed_user(const StreamCore& core, std::uint32_t own_epoch, const FamilyRecord& family) {
  const Member user = family.user.load();
  const Member process = user == FamilyRecord::kHandedOver ? family.last_user.load() : user;
  const std::uint32_t epoch = family.epoch.load();
  if (process == 0 || own_epoch == epoch || !core.is_connected() || family.unsaved_for.load() == epoch) return 0;
  const bool is_known = family.has_beginning_of(epoch) || own_epoch + 1 == epoch;
  return is_known && !may_live(process) ? user : 0;
}

/// Returns the state with which a user began that has been killed since. Nothing if the peer can have noticed that
/// user's work: nobody goes on then. This process is the user now.
std::optional<SavedSocket> beginning_of_killed(StreamCore& core, FamilyRecord& family) {
  const std::uint32_t epoch = family.epoch.load();
  SavedSocket state;
  const bool is_saved = family.has_beginning_of(epoch);
  if (is_saved) state = family.saved();
  if ((is_saved || save_state(core, state)) && StateOf(*core.connection).is_untouched_since(state.connection))
    return state;
  family.unsaved_for.store(epoch);
  return std::nullopt;
}

/// Waits for the end of this process, which another thread has begun: the caller must not see an error that the kernel
/// would not give. Not for long, because something may wait for the caller in between. Returns at once when exec(2)
/// has failed and the process goes on.
void wait_for_end_of_process(const std::atomic<bool>& ends) {
  constexpr Nanos kPatience = std::chrono::milliseconds(500);
  constexpr Nanos kBetweenLooks = std::chrono::milliseconds(1);
  sleep_while([&ends] { return ends.load(); }, kPatience, kBetweenLooks);
}

/// Called in a child, which does not have the threads of the parent.
void forget_threads(StreamSocket& socket, bool is_listening) {
  socket.listener().forget_threads(is_listening);
  socket.proofs_of_life().forget();
  socket.transfer().corking().forget();
  socket.cm_events().forget_watch();
  socket.direct().forget_pushes();
  socket.numbers().forget_left_number();
  if (StreamApi* const api = socket.core().api()) {
    api->callback().forget_threads();
    api->events().forget_after_fork();
  }
}

}  // namespace

void Inheritance::add_fork_locks(runtime::ForkLocks& locks) {
  locks.add_outer(core_.setup_lock);
  locks.add_biased(0, core_.send_lock);
  locks.add_biased(1, core_.receive_lock);
  locks.add_inner(socket_.kept_options.lock());
  locks.add_within(connection_locks_);
}

void Inheritance::before_fork() noexcept {
  is_copied_ = false;
  const State now = core_.state();
  const bool shares = now == State::connected || now == State::connecting || now == State::listening;
  if ((!shares && !is_undecided(core_)) || core_.endpoint.is_closed()) return;
  if (core_.endpoint.references.retires_later()) return;
  if (now != State::listening && core_.id && !core_.id->device().traits().survives_fork) return;  // stays ours
  if (!family_owner_) family_owner_ = make_family_record();
  FamilyRecord* const family = family_owner_.get();
  family_.store(family, std::memory_order_release);
  if (family == nullptr) {
    log_warn("fork: no memory for what parent and child have to tell each other: the child gets no connection");
    return;
  }
  family->holders.fetch_add(1);
  is_copied_ = true;
  if (!shares) socket_.listener().of_family.prepare();
  if (now == State::listening) core_.process.share_counts();
  const Member us = member_of_this(runtime::fork_registry().forking_process());
  if (now != State::listening && shares) {
    if (now == State::connected) socket_.transfer().corking().let_go();
    save_for_fork(core_, epoch_.load(), us, *family);
    suspend();
  }
  // A connection that is handed on is reserved for the process that is forked: a thread of this one may wait in a call,
  // and would claim it.
  const Member next = handing_on.goes_on() ? FamilyRecord::kHandedOver : 0;
  Member user = us;
  if (family->user.compare_exchange_strong(user, next)) return;
  user = 0;  // of a new family
  family->user.compare_exchange_strong(user, next);
}

bool Inheritance::is_alone() noexcept {
  const std::lock_guard guard(core_.setup_lock);
  FamilyRecord* const record = family();
  if (record == nullptr) return true;
  if (record->others_live(true)) return false;
  if (record->ring_ended.load()) socket_.listener().of_family.drop();
  socket_.listener().of_family.family_has_ended();
  record->ring_ended.store(false);
  family_.store(nullptr);
  return true;
}

/// Gives up objects on which a thread that the child does not have was working. They are neither used nor destroyed.
void Inheritance::lose_half_made() noexcept {
  new (&core_.setup_lock) Mutex;
  new (&core_.send_lock) BiasedMutex;
  new (&core_.receive_lock) BiasedMutex;
  family_.store(nullptr);
  core_.suspended.store(true);
  half_made_ = true;
  lost_ = true;
}

void Inheritance::after_fork(ForkSide side) noexcept {
  if (side == ForkSide::parent) return;
  handing_on.end();
  ends_.store(false);
  forget_threads(socket_, core_.state() == State::listening);
  turns_.store(0);
  if (side == ForkSide::unprepared_child) return lose_half_made();
  socket_.listener().ahead.leave_to_parent();
  if (core_.endpoint.references.retires_later() || core_.endpoint.is_closed()) {
    // The application has closed it; only a call of a thread of the parent keeps it, or the close itself.
    loss_told_ = true;
    if (is_copied_ && family() != nullptr) family()->holders.fetch_sub(1);
    return lose();
  }
  const bool listens = core_.state() == State::listening;
  const bool prepared = family() != nullptr || core_.state() == State::initial || core_.state() == State::bound;
  if (side == ForkSide::child && family() != nullptr) family()->enter();
  if (side == ForkSide::child && prepared && (!listens || socket_.listener().parts().keep_shareable())) return;
  // The socket failed on a ring and has been a kernel socket since. Both processes have the descriptor, which we must
  // not close.
  if (core_.state() == State::failed && core_.endpoint.asks_kernel()) return;
  // A socket that was not prepared for two processes stays with the parent.
  lose();
}

/// Leaves the socket to the parent.
void Inheritance::lose() noexcept {
  family_.store(nullptr);
  suspend();
  lost_ = true;
  socket_.numbers().let_go_silently();
  // The number of a closed socket may refer to another file by now.
  if (!core_.endpoint.has_descriptors() && !core_.endpoint.is_closed() && socket_.descriptor() >= 0)
    ::close(socket_.descriptor());
}

// -- whose it is

void Inheritance::suspend() noexcept {
  core_.suspended.store(true, std::memory_order_release);
  if (core_.connection) core_.connection->suspend();
}

void Inheritance::resume() noexcept {
  if (core_.connection) core_.connection->resume();
  core_.suspended.store(false, std::memory_order_release);
}

bool Inheritance::claim_suspended() noexcept {
  const bool is_new = !was_last_user();
  {
    std::unique_lock guard(core_.setup_lock);
    if (ends_.load()) {
      guard.unlock();
      wait_for_end_of_process(ends_);
      guard.lock();
    }
    if (!claim_locked()) return false;
  }
  if (!core_.is_connected()) return true;
  // A sleeping thread may have looked before the claim.
  if (core_.connection->completions().must_look_again()) core_.endpoint.notify_watchers();
  socket_.direct().push_in_background();
  if (gives_back_.load()) {
    // What waited is taken first: a user that is killed leaves what it took to nobody.
    socket_.progress().poll();
    save_beginning(core_, epoch_.load(), family());
  }
  let_others_ask(socket_, is_new);
  return true;
}

bool Inheritance::take() noexcept {
  const std::lock_guard guard(core_.setup_lock);
  takes_.store(true);
  const bool claimed = claim_locked();
  takes_.store(false);
  return claimed;
}

/// @param user the process that has it, 0 when only the parent can have it
void Inheritance::tell_loss(Member user) noexcept {
  if (core_.endpoint.is_closed() || std::exchange(loss_told_, true)) return;
  if (can_follow()) {
    log_info("descriptor %d: process %d uses the connection since the fork: it is asked to go on by the kernel",
             socket_.descriptor(), static_cast<int>(user));
  } else if (user != 0) {
    log_warn("descriptor %d: process %d uses the connection since the fork: EIO here", socket_.descriptor(),
             static_cast<int>(user));
  } else {
    log_warn("descriptor %d: what is on a device cannot be inherited over fork(2): EIO here", socket_.descriptor());
  }
}

/// Returns whether this process has the state, or may go on from what is saved.
bool Inheritance::may_use(const FamilyRecord& family) const noexcept {
  const std::uint32_t epoch = family.epoch.load();
  if (epoch == epoch_.load()) return true;
  if (family.saved_for() != epoch || !core_.is_connected()) return false;
  if (takes_.load()) return true;
  const Member last = family.last_user.load();
  return last == 0 || !may_live(last);
}

/// Goes on from what another user has saved. This process is the user.
/// @param saved  a copy, because other processes may write to the shared memory at any time
bool Inheritance::restore(SavedSocket saved) noexcept {
  std::unique_lock sending(core_.send_lock, std::defer_lock);
  if (!is_closing_) sending.lock();
  const std::lock_guard reading(core_.receive_lock);
  if (const Status gone_on = StateOf(*core_.connection).restore(saved.connection); !gone_on) {
    log_warn("descriptor %d: %s: EIO here", socket_.descriptor(), gone_on.error().where);
    lost_ = true;
    return false;
  }
  core_.read_shut.store(saved.read_shut != 0, std::memory_order_release);
  core_.write_shut.store(saved.write_shut != 0, std::memory_order_release);
  core_.sent_into_the_void.store(saved.sent_into_the_void != 0, std::memory_order_release);
  core_.failure_taken.store(saved.failure_taken != 0, std::memory_order_release);
  core_.pending_error.store(saved.pending_error, std::memory_order_release);
  resume();
  return true;
}

/// @param user in: the present user. Out, if false is returned: the process that is, or was, the user instead
bool Inheritance::become_user(FamilyRecord* family, Member& user) noexcept {
  if (lost_ || family == nullptr) return false;
  const Member killed = killed_user(core_, epoch_.load(), *family);
  if (killed != 0) {
    user = killed;
  } else if (!may_use(*family)) {
    user = family->user.load();
    if (user == 0) user = family->last_user.load();
    return false;
  }
  if (!family->user.compare_exchange_strong(user, own_member())) return false;
  bool is_complete = false;
  if (killed != 0) {
    const auto state = beginning_of_killed(core_, *family);
    is_complete = state && restore(*state);
  } else if (may_use(*family)) {  // another process may have been the user in between
    const std::uint32_t epoch = family->epoch.load();
    is_complete = epoch == epoch_.load() || restore(family->saved());
  }
  if (!is_complete) {
    family->user.store(killed);
    return false;
  }
  epoch_.store(family->epoch.fetch_add(1) + 1);
  family->last_user.store(own_member());
  gives_back_.store(!keeps_ && core_.is_connected() && is_wanted_by_others());
  if (!gives_back_.load()) family->unsaved_for.store(epoch_.load());
  return true;
}

// -- turns

/// Returns whether another process that lives has the connection. The answer may be old.
bool Inheritance::is_wanted_by_others() noexcept {
  constexpr Nanos kBetweenLooks = std::chrono::milliseconds(100);
  if (!is_shared()) return false;
  const Nanos now = monotonic_now();
  if (now < looks_for_others_at_) return true;
  if (!family()->others_live(true)) return false;
  looks_for_others_at_ = now + kBetweenLooks;
  return true;
}

void Inheritance::turn_ends() noexcept {
  const bool is_last = turns_.fetch_sub(1) == 1;
  if (!gives_back_.load()) return;
  if (is_last) {
    give_back();
  } else if (FamilyRecord* const family = this->family()) {
    family->unsaved_for.store(epoch_.load());
  }
}

void Inheritance::give_back() noexcept {
  if (core_.is_suspended()) return;
  socket_.progress().poll();
  const std::lock_guard guard(core_.setup_lock);
  const std::lock_guard sending(core_.send_lock);
  const std::lock_guard reading(core_.receive_lock);
  FamilyRecord* const family = this->family();
  // Another thread may be handing the connection on, or closing it.
  if (family == nullptr || !gives_back_.load()) return;
  // What the program has of the ring stays as it is as long as this process is the user.
  if (core_.connection->receiving().window().is_holding()) return family->unsaved_for.store(epoch_.load());
  put_down(*family);
}

/// Saves the state and suspends the connection, if this process is the user and no work is under way. All locks of the
/// socket must be held.
void Inheritance::put_down(FamilyRecord& family) noexcept {
  if (family.user.load() != own_member() || core_.is_suspended()) return;
  const std::uint32_t epoch = epoch_.load();
  SavedSocket& saved = family.next_saved();
  if (!StateOf(*core_.connection).save_and_suspend(saved.connection)) return family.unsaved_for.store(epoch);
  save_rest(core_, saved);
  core_.suspended.store(true, std::memory_order_release);
  family.publish(epoch);
  family.unsaved_for.store(0);
  gives_back_.store(false);
  Member us = own_member();
  family.user.compare_exchange_strong(us, 0);
}

bool Inheritance::is_saved() const noexcept {
  const FamilyRecord* const record = family();
  return record != nullptr && record->user.load() == 0 && record->saved_for() == record->epoch.load();
}

bool Inheritance::was_last_user() const noexcept {
  const FamilyRecord* const record = family();
  return record != nullptr && !has_old_state() && record->last_user.load() == own_member();
}

bool Inheritance::is_free() const noexcept {
  const FamilyRecord* const record = family();
  return record != nullptr &&
         ((record->user.load() == 0 && may_use(*record)) || killed_user(core_, epoch_.load(), *record) != 0);
}

// -- claims

bool Inheritance::claim_locked(Member user) noexcept {
  if (!core_.suspended.load(std::memory_order_relaxed)) return true;
  if (!become_user(family(), user)) {
    // The new user may not have told the peer yet, so access to this process's memory is withdrawn here.
    if (!std::exchange(loss_known_, true) && core_.id && !lost_) core_.id->withdraw_memory();
    if (!core_.endpoint.has_left_to_kernel()) tell_loss(user);
    return false;
  }
  if (core_.is_connected()) core_.id->take_over();
  resume();
  if (core_.is_connected()) socket_.proofs_of_life().start();
  return true;
}

void Inheritance::have_user_asked(NewUserCall becomes_user) { call_of_new_user = becomes_user; }

bool Inheritance::can_follow() const noexcept {
  return call_of_new_user != nullptr && !asked_in_vain_.load(std::memory_order_relaxed) && !lost_ &&
         family() != nullptr;
}

bool Inheritance::hand_on() noexcept {
  if (!claim()) return false;
  // Another thread that hands on the connection forks under the same lock.
  const std::lock_guard guard(core_.setup_lock);
  if (core_.is_suspended() || core_.endpoint.is_closed()) return false;
  if (FamilyRecord* const family = this->family()) {  // otherwise the following fork makes it
    Member user = own_member();
    if (!family->user.compare_exchange_strong(user, FamilyRecord::kHandedOver) && user != 0) return false;
    family->door_owner.store(0);
  }
  handing_on.begin();
  return true;
}

void Inheritance::take_back() noexcept {
  const Turn gives_it_back_in_the_end(*this);
  {
    const std::lock_guard guard(core_.setup_lock);
    Member nobody = FamilyRecord::kHandedOver;
    FamilyRecord* const family = this->family();
    if (family != nullptr && core_.is_suspended()) {  // by a fork, and no other process has this state
      static_cast<void>(claim_locked(FamilyRecord::kHandedOver));
    } else if (family != nullptr) {
      family->user.compare_exchange_strong(nobody, own_member());
    }
    handing_on.end();
  }
  let_others_ask(socket_, false);
}

bool Inheritance::claim_handed_on() noexcept {
  const std::lock_guard guard(core_.setup_lock);
  FamilyRecord* const family = this->family();
  const bool handed_on = family != nullptr && family->user.load() == FamilyRecord::kHandedOver;
  keeps_ = true;
  if (core_.is_connected()) core_.connection->receiving().take_all_back();
  return claim_locked(handed_on ? FamilyRecord::kHandedOver : 0);
}

bool Inheritance::is_used_elsewhere() const noexcept {
  if (!core_.is_suspended()) return false;
  return lost_ || family() == nullptr || family()->user.load() != 0 || has_old_state();
}

bool Inheritance::is_left_unread() const noexcept {
  if (!core_.is_connected() || !core_.is_suspended() || is_used_elsewhere()) return false;
  return core_.connection->receiving().readable() > 0 || core_.id->has_waiting(concerns_reader);
}

bool Inheritance::is_shared() const noexcept {
  return family() != nullptr && family()->holders.load(std::memory_order_relaxed) > 1;
}

// -- the end of this process's use

namespace {
/// Tells the peer how the connection ends if no other process goes on. This process has its state.
void tell_end(StreamCore& core, bool is_alone) {
  if (core.is_connected()) core.connection->tell_end(*core.id, is_alone);
}

/// Sends what a corked socket lets wait, unless another thread stays in the middle of a call.
void uncork(StreamSocket& socket, Nanos until) {
  StreamCore& core = socket.core();
  if (!core.is_connected() || core.is_suspended() || !core.connection->sending().core().corks()) return;
  if (const auto sending = lock_until(core.send_lock, until)) socket.transfer().corking().let_go();
}
}  // namespace

bool Inheritance::leave_family() noexcept {
  if (lost_) return false;
  const bool is_old = has_old_state();
  FamilyRecord* const family = family_.exchange(nullptr);
  if (family == nullptr) return true;
  // A socket that is left to the kernel stays this process's: the others ask whether it lives.
  auto* const chosen = core_.endpoint.as_chosen_socket();
  if (core_.state() == State::initial && chosen != nullptr && !chosen->choice().is_undecided()) return true;
  family->leave();
  const bool last = family->holders.fetch_sub(1) <= 1;
  if (core_.state() == State::listening) return last;
  is_closing_ = true;
  Member nobody = 0;
  if (last && core_.suspended.load(std::memory_order_relaxed) && become_user(family, nobody)) resume();
  if (last && !core_.suspended.load(std::memory_order_relaxed)) return true;
  if (core_.is_connected() && !core_.is_suspended()) {
    core_.connection->poll();
    const std::lock_guard reading(core_.receive_lock);
    put_down(*family);
  }
  if (!is_old) tell_end(core_, false);
  suspend();
  lost_ = true;
  return false;
}

void Inheritance::process_ends() noexcept {
  constexpr Nanos kPatience = std::chrono::milliseconds(50);
  const bool tells = !lost_ && !has_old_state() && !core_.closed.load(std::memory_order_relaxed);
  const bool is_alone = !is_shared();
  if (tells) uncork(socket_, monotonic_now() + kPatience);
  ends_.store(true);  // no thread becomes the user any more, once setup_lock is free
  FamilyRecord* const record = family();
  if (!is_alone && record != nullptr) {
    const Nanos until = monotonic_now() + kPatience;
    const auto setup = lock_until(core_.setup_lock, until);
    // Another thread may be in a call.
    const bool is_user = setup && record->user.load() == own_member() && !core_.is_suspended();
    if (is_user && core_.is_connected()) {
      core_.connection->poll();
      const auto sending = lock_until(core_.send_lock, until);
      const auto reading = lock_until(core_.receive_lock, until);
      if (sending && reading) put_down(*record);
    }
  }
  if (tells) tell_end(core_, is_alone);
  if (FamilyRecord* const family = family_.exchange(nullptr)) {
    family->leave();
    family->holders.fetch_sub(1);
  }
}

void Inheritance::process_goes_on() noexcept {
  FamilyRecord* const family = family_owner_.get();
  const bool is_ours = !lost_ && !core_.closed.load(std::memory_order_relaxed);
  if (family != nullptr && is_ours && this->family() == nullptr) {
    family->holders.fetch_add(1);
    family->enter();
    family_.store(family, std::memory_order_release);
  }
  ends_.store(false);
}

}  // namespace ringsock::rs
