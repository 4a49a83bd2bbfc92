// A UDP socket around fork(2), exec(2) and the end of the process.
#include <fcntl.h>

#include <mutex>
#include <new>

#include "core/ethernet/bursts.h"
#include "core/runtime/fork_registry.h"
#include "libvmacompat/udp/udp_socket.h"

namespace ringsock::vma {

void UdpSocket::add_fork_locks(runtime::ForkLocks& locks) {
  ethernet::bursts().send_all();
  // This runs before the fork locks are taken, because a delivery to this socket may have to finish first.
  {
    const std::lock_guard guard(flows_.setup_lock());
    inheritance_.before_fork();
  }
  locks.add_outer(flows_.setup_lock());
  locks.add_biased(0, sender_.lock());
  locks.add_biased(1, queue_.fork_lock());
  locks.add_outer(callback_.lock());
  locks.add_outer(sender_.pacer().lock());
  Endpoint::add_fork_locks(locks);
}

/// The rings are the parent's: a child has only the kernel's socket.
void UdpSocket::after_fork(ForkSide side) noexcept {
  Endpoint::after_fork(side);
  if (side == ForkSide::parent) return;
  if (side == ForkSide::unprepared_child) {
    // Another thread of the parent may have had them.
    new (&flows_.setup_lock()) Mutex;
    new (&sender_.lock()) BiasedMutex;
    new (&queue_.fork_lock()) BiasedMutex;
    new (&callback_.lock()) Mutex;
    new (&sender_.pacer().lock()) Mutex;
  }
  flows_.forget_after_fork();
  rings_.forget_after_fork();
  sender_.forget_after_fork();
  queue_.forget_after_fork();
  callback_.forget_after_fork();
  if (side == ForkSide::child) inheritance_.enter_child();
}

void UdpSocket::before_exec() noexcept {
  const std::lock_guard guard(flows_.setup_lock());
  const int flags = ::fcntl(kernel_.fd(), F_GETFD);
  if (flags >= 0 && (flags & FD_CLOEXEC) == 0) inheritance_.leave_rings();
}

void UdpSocket::passed_on() noexcept {
  const std::lock_guard guard(flows_.setup_lock());
  inheritance_.add_stranger();
}

void UdpSocket::process_ends() noexcept {
  ethernet::bursts().send_last();
  const int flags = ::fcntl(kernel_.fd(), F_GETFD);
  if ((flags & FD_CLOEXEC) != 0) inheritance_.leave();
}

}  // namespace ringsock::vma
