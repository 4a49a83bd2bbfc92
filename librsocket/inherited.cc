// A socket before, during and after fork(2), and the process that may use it.
#include <fcntl.h>
#include <unistd.h>

#include <mutex>
#include <new>
#include <shared_mutex>
#include <vector>

#include "core/base/log.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {

/// have_user_asked()
StreamSocket::NewUserCall call_of_new_user = nullptr;

/// Replaces an object that threads which the child does not have may have locked.
template <class T>
void abandon(std::shared_ptr<T>& object) {
  new std::shared_ptr<T>(std::move(object));
  object.reset();
}

}  // namespace

void StreamSocket::add_fork_locks(runtime::ForkLocks& locks) {
  locks.add_outer(setup_lock_);
  locks.add_biased(0, send_lock_);
  locks.add_biased(1, receive_lock_);
  {
    const std::lock_guard guard(setup_lock_);  // another thread may be making the connection
    if (connection_) connection_->add_fork_locks(locks);
  }
  Endpoint::add_fork_locks(locks);
}

void StreamSocket::before_fork() noexcept {
  const State now = state();
  const bool shares = now == State::connected || now == State::connecting || now == State::listening;
  if (!shares || is_closed()) return;
  if (now != State::listening && id_ && !id_->device().survives_fork()) return;  // stays ours
  if (!family_owner_) family_owner_ = make_family_record();
  FamilyRecord* const family = family_owner_.get();
  family_.store(family, std::memory_order_release);
  if (family == nullptr) {
    log_warn("fork: no memory for what parent and child have to tell each other: the child gets no connection");
    return;
  }
  family->holders.fetch_add(1);
  pid_t user = runtime::fork_registry().forking_process();
  family->user.compare_exchange_strong(user, 0);
  if (now != State::listening) suspend();
}

/// Gives up objects on which a thread that the child does not have was working. They are neither used nor destroyed.
void StreamSocket::lose_half_made() noexcept {
  new (&setup_lock_) Mutex;
  new (&send_lock_) BiasedMutex;
  new (&receive_lock_) BiasedMutex;
  family_.store(nullptr);
  suspended_.store(true);
  half_made_ = lost_ = true;
}

void StreamSocket::after_fork(ForkSide side) noexcept {
  Endpoint::after_fork(side);
  if (side == ForkSide::parent) return;
  queue_fd_.store(-1);
  abandon(listener_watch_);
  abandon(keepalive_);
  abandon(reminders_);
  abandon(cm_watch_);
  abandon(push_watch_);
  push_fd_.reset();
  left_number_.reset();
  if (side == ForkSide::unprepared_child) return lose_half_made();
  watch_again_ = state() == State::listening;
  const bool prepared = family() != nullptr || state() == State::initial || state() == State::bound;
  if (side == ForkSide::child && family() != nullptr) family()->enter();
  if (side == ForkSide::child && prepared && (!watch_again_ || keep_shareable_parts())) return;
  // The socket failed on a ring and has been a kernel socket since. Both processes have the descriptor, which we must
  // not close.
  if (state() == State::failed && asks_kernel()) return;
  // A socket that was not prepared for two processes stays with the parent.
  family_.store(nullptr);
  suspend();
  lost_ = true;
  let_go_silently();
  // The number of a closed socket may refer to another file by now.
  if (!has_descriptors() && !is_closed() && descriptor() >= 0) ::close(descriptor());
}

// -- whose it is

void StreamSocket::suspend() noexcept {
  suspended_.store(true, std::memory_order_release);
  if (connection_) connection_->suspend();
}

void StreamSocket::resume() noexcept {
  if (connection_) connection_->resume();
  suspended_.store(false, std::memory_order_release);
}

bool StreamSocket::claim() noexcept {
  if (!suspended_.load(std::memory_order_acquire)) [[likely]]
    return true;
  {
    const std::lock_guard guard(setup_lock_);
    if (!claim_locked()) return false;
  }
  // A sleeping thread may have looked before the claim.
  if (is_connected() && connection_->must_look_again()) notify_watchers();
  if (is_connected()) push_in_background();
  if (is_connected() && is_shared() && call_of_new_user != nullptr) call_of_new_user(*this);
  return true;
}

/// @param user the process that has it, 0 when only the parent can have it
void StreamSocket::tell_loss(pid_t user) noexcept {
  if (std::exchange(loss_told_, true)) return;
  if (can_follow()) {
    log_info("descriptor %d: process %d uses the connection since the fork: it is asked to go on by the kernel",
             descriptor(), static_cast<int>(user));
  } else if (user != 0) {
    log_warn("descriptor %d: process %d uses the connection since the fork: EIO here", descriptor(),
             static_cast<int>(user));
  } else {
    log_warn("descriptor %d: what is on a device cannot be inherited over fork(2): EIO here", descriptor());
  }
}

/// @param user in: the present user. Out, if false is returned: the process that is the user instead
bool StreamSocket::become_user(FamilyRecord* family, pid_t& user) noexcept {
  if (lost_ || family == nullptr) return false;
  if (family->epoch.load() != epoch_) {
    user = family->user.load();
    return false;
  }
  if (!family->user.compare_exchange_strong(user, ::getpid())) return false;
  if (family->epoch.load() != epoch_) {  // another process was the user in between
    family->user.store(0);
    return false;
  }
  epoch_ = family->epoch.fetch_add(1) + 1;
  return true;
}

bool StreamSocket::claim_locked(pid_t user) noexcept {
  if (!suspended_.load(std::memory_order_relaxed)) return true;
  if (!become_user(family(), user)) {
    // The new user may not have told the peer yet, so access to this process's memory is withdrawn here.
    if (!std::exchange(loss_known_, true) && id_ && !lost_) id_->withdraw_memory();
    if (!has_left_to_kernel()) tell_loss(user);
    return false;
  }
  if (is_connected()) id_->take_over();
  resume();
  if (is_connected() && !keepalive_) option_changed(SOL_SOCKET, SO_KEEPALIVE);
  return true;
}

void StreamSocket::have_user_asked(NewUserCall becomes_user) { call_of_new_user = becomes_user; }

bool StreamSocket::can_follow() const noexcept {
  return call_of_new_user != nullptr && !asked_in_vain.load(std::memory_order_relaxed) && !lost_ && family() != nullptr;
}

bool StreamSocket::hand_on() noexcept {
  if (!claim()) return false;
  // Another thread that hands on the connection forks under the same lock.
  const std::lock_guard guard(setup_lock_);
  if (suspended_.load(std::memory_order_acquire) || is_closed()) return false;
  FamilyRecord* const family = this->family();
  if (family == nullptr) return true;  // the following fork makes it
  pid_t user = ::getpid();
  if (!family->user.compare_exchange_strong(user, FamilyRecord::kHandedOver) && user != 0) return false;
  family->door.store(0);
  return true;
}

void StreamSocket::take_back() noexcept {
  const std::lock_guard guard(setup_lock_);
  pid_t nobody = FamilyRecord::kHandedOver;
  const pid_t user = suspended_.load(std::memory_order_acquire) ? 0 : ::getpid();
  if (FamilyRecord* const family = this->family()) family->user.compare_exchange_strong(nobody, user);
}

bool StreamSocket::claim_handed_on() noexcept {
  const std::lock_guard guard(setup_lock_);
  FamilyRecord* const family = this->family();
  const bool handed_on = family != nullptr && family->user.load() == FamilyRecord::kHandedOver;
  return claim_locked(handed_on ? FamilyRecord::kHandedOver : 0);
}

bool StreamSocket::is_wanted_elsewhere() noexcept {
  FamilyRecord* const family = this->family();
  return is_connected() && family != nullptr && !suspended_.load(std::memory_order_acquire) &&
         family->others_live(false);
}

void StreamSocket::look_if_alone() noexcept {
  if (!is_connected() || (is_shared() && suspended_.load(std::memory_order_acquire))) return;
  if (claim()) progress();
}

bool StreamSocket::is_used_elsewhere() const noexcept {
  if (!suspended_.load(std::memory_order_acquire)) return false;
  return lost_ || family() == nullptr || family()->user.load() != 0 || has_old_state();
}

bool StreamSocket::is_shared() const noexcept {
  return family() != nullptr && family()->holders.load(std::memory_order_relaxed) > 1;
}

// -- the end of this process's use

bool StreamSocket::leave_family() noexcept {
  if (lost_) return false;
  FamilyRecord* const family = family_.exchange(nullptr);
  if (family == nullptr) return true;
  family->leave();
  const bool last = family->holders.fetch_sub(1) <= 1;
  if (state() == State::listening) return last;
  pid_t nobody = 0;
  if (last && suspended_.load(std::memory_order_relaxed) && become_user(family, nobody)) resume();
  if (last && !suspended_.load(std::memory_order_relaxed)) return true;
  suspend();
  lost_ = true;
  return false;
}

void StreamSocket::process_ends() noexcept {
  if (FamilyRecord* const family = family_.exchange(nullptr)) {
    family->leave();
    family->holders.fetch_sub(1);
  }
}

void StreamSocket::process_goes_on() noexcept {
  FamilyRecord* const family = family_owner_.get();
  if (family == nullptr || lost_ || closed_.load(std::memory_order_relaxed) || this->family() != nullptr) return;
  family->holders.fetch_add(1);
  family->enter();
  family_.store(family, std::memory_order_release);
}

void StreamSocket::go_on_as(int kernel_socket) {
  struct Number {
    int fd;
    int flags;
  };
  std::vector<Number> numbers;
  runtime::fd_table().for_each([&](int fd, const Endpoint& endpoint) {
    if (&endpoint != this) return;
    const bool closes = owns_descriptor(fd) ? close_on_exec.load() : (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
    numbers.push_back({fd, closes ? O_CLOEXEC : 0});
  });
  give_up_descriptor();  // the link keeps another number until it is closed
  for (const Number& number : numbers) {
    ::dup3(kernel_socket, number.fd, number.flags);
    runtime::fd_table().let_go(number.fd);
  }
  leave_to_kernel();
  close();
}

/// Gives up the socket without a message to the peer. The caller closes the descriptor.
void StreamSocket::let_go_silently() noexcept {
  if (half_made_ || state() == State::listening || !id_) return;
  const bool owned = connection_owns_fd_.exchange(false, std::memory_order_acq_rel);
  id_->abandon(owned);
  if (owned && has_own_number_) left_number_.reset(descriptor());
}

/// Called by the destructor for a socket that the application has never seen, and so has not closed.
void StreamSocket::end_unseen() noexcept {
  if (closed_.load(std::memory_order_relaxed) || !id_) return;
  if (!leave_family()) {
    id_->abandon(false);
  } else if (is_connected()) {
    [[maybe_unused]] const Status reset = id_->disconnect();
  }
}

}  // namespace ringsock::rs
