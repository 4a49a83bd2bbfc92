#include "librsocket/udp/udp_socket.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <mellanox/vma_extra.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <shared_mutex>

#include "core/base/own_duplicate.h"
#include "core/device/shm/names/port_name.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/leaving.h"
#include "core/runtime/library_call.h"
#include "core/transports/kernel_calls.h"
#include "core/transports/way.h"
#include "librsocket/udp/udp_options.h"

namespace ringsock::rs {

using transports::kAskKernel;

UdpSocket::UdpSocket(int domain, int fd)
    : Endpoint(Carries::datagrams), domain_(domain), fd_(fd), outlets_(domain), intake_(domain) {
  describe();
  runtime::fork_registry().enter(*this);
}

UdpSocket::~UdpSocket() {
  const std::shared_lock teardown(runtime::fork_registry().teardown_gate());
  runtime::fork_registry().leave(*this);
}

void UdpSocket::describe() {
  using runtime::SocketPath;
  using runtime::SocketState;
  runtime::SocketDescription out{.descriptor = kept_ ? -1 : fd()};
  if (is_closed()) {
    out.state = SocketState::closed;
    out.descriptor = -1;
  } else if (const auto name = name_by(::getsockname, fd(), "getsockname"); name && name->port() != 0) {
    const auto peer = name_by(::getpeername, fd(), "getpeername");
    out.state = peer ? SocketState::connected : SocketState::bound;
    out.local = *name;
    if (peer) out.peer = *peer;
    out.path = has_rings_.load(std::memory_order_relaxed) ? SocketPath::embedded : SocketPath::kernel;
  }
  statistics_.describe(out);
}

// -- bytes -----------------------------------------------------------------------------------------

void UdpSocket::unlock_and_tell(std::unique_lock<BiasedMutex>& guard) {
  const UdpIntake::News news = intake_.take_news();
  if (news.must_arm || has_rings_.load(std::memory_order_relaxed) != intake_.has_rings())
    has_rings_.store(intake_.has_rings(), std::memory_order_relaxed);
  if (news.shut_door) has_shut_a_door_.store(true, std::memory_order_relaxed);
  guard.unlock();
  if (!news.must_arm) return;
  if (news.new_rings || news.shut_door) describe();
  note_activity(EPOLLIN);
  notify_watchers(EPOLLIN | EPOLLRDNORM);
}

/// Receives from the kernel's socket, without the lock meanwhile. Returns nothing where rings have come.
std::optional<Result<ssize_t>> UdpSocket::receive_by_kernel(std::unique_lock<BiasedMutex>& guard, msghdr& message,
                                                            int flags) {
  ++intake_.calls_in_kernel;
  guard.unlock();
  const ssize_t got = ask_kernel(fd(), message, flags);
  const Error why = Error::last("recvmsg");
  guard.lock();
  --intake_.calls_in_kernel;
  if (got < 0 && why.code == EAGAIN && intake_.found_nothing_in_kernel(fd())) return std::nullopt;
  if (got >= 0 && (flags & MSG_PEEK) == 0) {
    statistics_.count_received(static_cast<std::size_t>(got));
    news_.taken();
    intake_.received_by_waiting(fd());
  }
  unlock_and_tell(guard);
  return got >= 0 ? Result<ssize_t>(got) : Result<ssize_t>(why);
}

Result<ssize_t> UdpSocket::receive(msghdr& message, int flags) {
  if (is_closed()) return Error{EBADF, "recvmsg: closed"};
  turns_.take_if_due();
  if ((flags & MSG_ERRQUEUE) != 0) {
    const ssize_t got = ::recvmsg(fd(), &message, flags | MSG_DONTWAIT);
    return got >= 0 ? Result<ssize_t>(got) : Error::last("recvmsg");
  }
  flags &= ~MSG_OOB;  // as in the kernel
  std::unique_lock guard(receive_lock_);
  if (has_left_rings() && !intake_.has_backlog() && !kept_) return kAskKernel;
  const bool may_wait = !is_nonblocking() && (flags & MSG_DONTWAIT) == 0;
  if (may_wait && intake_.leaves_waiting_to_kernel()) return Error{EAGAIN, "recvmsg: receive_waiting()"};
  if (!may_wait && intake_.leaves_next_to_kernel()) {
    if (const auto got = receive_by_kernel(guard, message, flags)) return *got;
  }
  auto got = intake_.receive(fd(), message, flags, !may_wait);
  if (got && (flags & MSG_PEEK) == 0) {
    statistics_.count_received(static_cast<std::size_t>(*got));
    news_.taken();
  }
  turns_.count(static_cast<bool>(got), intake_.door() != nullptr ? intake_.door()->rings().size() : 0);
  unlock_and_tell(guard);
  return got;
}

namespace {

/// One wait in the kernel's socket, also where the thread is cancelled in it.
class WaitInKernel {
 public:
  WaitInKernel(BiasedMutex& lock, UdpIntake& intake) : lock_(lock), intake_(intake) {
    const std::lock_guard guard(lock_);
    has_begun_ = intake_.begin_waiting_in_kernel();
  }
  WaitInKernel(const WaitInKernel&) = delete;
  WaitInKernel& operator=(const WaitInKernel&) = delete;
  ~WaitInKernel() {
    if (!has_begun_) return;
    const std::lock_guard guard(lock_);
    --intake_.calls_in_kernel;
  }
  [[nodiscard]] bool has_begun() const { return has_begun_; }

 private:
  BiasedMutex& lock_;
  UdpIntake& intake_;
  bool has_begun_;
};

}  // namespace

/// As long as no ring exists a call waits as any other program's does. No ring is taken in meanwhile.
std::optional<Result<ssize_t>> UdpSocket::receive_waiting(msghdr& message, int flags) {
  if (has_left_rings()) return std::nullopt;
  ssize_t got = 0;
  {
    const WaitInKernel wait(receive_lock_, intake_);
    if (!wait.has_begun()) return std::nullopt;
    const runtime::OutsideLibrary handlers_run_at_once;
    got = wait_for_kernel(fd(), message, flags);
  }
  if (got < 0) return Error::last("recvmsg");
  if ((flags & MSG_PEEK) != 0) return got;
  statistics_.count_received(static_cast<std::size_t>(got));
  news_.taken();
  std::unique_lock guard(receive_lock_);
  intake_.received_by_waiting(fd());
  unlock_and_tell(guard);
  return got;
}

namespace {
inline void note_sent(const Result<ssize_t>& sent, runtime::SocketStatistics& statistics,
                      std::atomic<bool>& must_wait) {
  if (sent) [[likely]] {
    statistics.count_sent(static_cast<std::size_t>(*sent));
  } else if (sent.error().code == EAGAIN) {
    must_wait.store(true, std::memory_order_relaxed);
  }
}
}  // namespace

Result<ssize_t> UdpSocket::send(const msghdr& message, int flags) {
  if (is_closed()) return Error{EBADF, "sendmsg: closed"};
  if ((flags & VMA_SND_FLAGS_DUMMY) != 0) [[unlikely]]
    return Error{EINVAL, "sendmsg: a dummy send"};
  // What is sent after MSG_MORE belongs to the same datagram.
  if ((flags & MSG_MORE) != 0 && !has_left_rings()) leave_rings();
  if (has_left_rings()) [[unlikely]] {
    const std::lock_guard guard(receive_lock_);
    if (!intake_.has_backlog() && !kept_) return kAskKernel;
  }
  std::unique_lock guard(send_lock_);
  auto sent = outlets_.send(fd(), message, flags, guard);
  note_sent(sent, statistics_, must_wait_to_send_);
  return sent;
}

/// A socket whose peer takes no part goes a short way: each step counts against what the call costs without the
/// library.
Result<ssize_t> UdpSocket::send_bytes(const void* data, std::size_t length, int flags) {
  constexpr int kForAll = VMA_SND_FLAGS_DUMMY | MSG_MORE;
  if ((flags & kForAll) != 0 || is_closed() || has_left_rings()) [[unlikely]]
    return Endpoint::send_bytes(data, length, flags);
  std::unique_lock guard(send_lock_);
  Result<ssize_t> sent = 0;
  if (outlets_.leaves_peer_to_kernel()) {
    sent = outlets_.send_to_peer(fd(), data, length, flags);
  } else {
    iovec part{const_cast<void*>(data), length};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    sent = outlets_.send(fd(), message, flags, guard);
  }
  note_sent(sent, statistics_, must_wait_to_send_);
  return sent;
}

Result<int> UdpSocket::unread_bytes() {
  std::unique_lock guard(receive_lock_);
  auto bytes = intake_.unread_bytes(fd());
  unlock_and_tell(guard);
  return bytes;
}

Result<int> UdpSocket::unsent_bytes() {
  int bytes = 0;
  if (::ioctl(fd(), SIOCOUTQ, &bytes) != 0) return Error::last("SIOCOUTQ");
  return bytes;
}

// -- readiness -------------------------------------------------------------------------------------

std::uint32_t UdpSocket::ready() noexcept try {
  constexpr std::uint32_t kReadable = EPOLLIN | EPOLLRDNORM;
  constexpr std::uint32_t kWritable = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;
  const auto with_news = [this](std::uint32_t found) {
    if ((found & EPOLLIN) != 0 && news_.is_first_found()) note_activity(EPOLLIN);
    return found;
  };
  if (is_closed()) return EPOLLERR | EPOLLHUP;
  std::uint32_t found = 0;
  {
    const std::lock_guard guard(receive_lock_);
    if (intake_.is_known_readable()) found = kReadable;
    if (found != 0 && !intake_.is_due_for_kernel()) return with_news(found | kWritable);
  }
  const std::uint32_t kernels = transports::kernel_events(fd());
  if ((kernels & EPOLLIN) != 0) found |= EPOLLRDNORM;
  if ((kernels & EPOLLOUT) != 0) {
    found |= kWritable;
    must_wait_to_send_.store(false, std::memory_order_relaxed);
  }
  found |= kernels;
  if ((found & EPOLLIN) != 0) return with_news(found);
  std::unique_lock guard(receive_lock_);
  if (intake_.becomes_readable(fd())) found |= kReadable;
  unlock_and_tell(guard);
  return with_news(found);
} catch (const std::bad_alloc&) {
  return EPOLLERR;
}

runtime::WaitFds UdpSocket::arm() noexcept {
  const std::lock_guard guard(receive_lock_);
  return {{fd(), intake_.arm()}};
}

void UdpSocket::woken() noexcept try {
  statistics_.count_wakeup();
  std::unique_lock guard(receive_lock_);
  intake_.woken();
  unlock_and_tell(guard);
  note_activity();
} catch (const std::bad_alloc&) {
}

/// No descriptor of arm() tells of room in the kernel's send buffer, nor that the kernel has lost a datagram.
Nanos UdpSocket::deadline() noexcept {
  constexpr Nanos kUntilRoom = std::chrono::milliseconds(1);
  const bool must_wait = must_wait_to_send_.load(std::memory_order_relaxed);
  const Nanos room = must_wait ? monotonic_now() + kUntilRoom : Nanos::max();
  const std::lock_guard guard(receive_lock_);
  return std::min(room, intake_.wait_until());
}

// -- names and options -----------------------------------------------------------------------------

Status UdpSocket::bind(const sockaddr* address, socklen_t length) {
  if (::bind(fd(), address, length) != 0) return Error::last("bind");
  if (shares_address_.load(std::memory_order_relaxed)) end_rings_to_port();
  describe();
  return ok();
}

Status UdpSocket::connect(const sockaddr* address, socklen_t length) {
  const std::scoped_lock guard(send_lock_, receive_lock_);
  if (::connect(fd(), address, length) != 0) return Error::last("connect");
  const auto peer = name_by(::getpeername, fd(), "getpeername");
  const SocketAddress name = peer ? soft::canonical_address(*peer) : SocketAddress();
  if (!has_left_rings()) {
    if (intake_.door() != nullptr) has_shut_a_door_.store(true, std::memory_order_relaxed);
    outlets_.set_peer(name);
    intake_.set_peer(fd(), name);
  }
  has_rings_.store(false, std::memory_order_relaxed);
  describe();
  return ok();
}

Status UdpSocket::shutdown(int how) {
  leave_rings();
  const int done = ::shutdown(fd(), how);
  const Error why = Error::last("shutdown");
  // Shutting down a socket that is not connected fails, but nevertheless wakes its readers.
  note_activity();
  notify_watchers();
  return done == 0 ? ok() : Status(why);
}

Result<SocketAddress> UdpSocket::local_name() { return name_by(::getsockname, fd(), "getsockname"); }
Result<SocketAddress> UdpSocket::peer_name() { return name_by(::getpeername, fd(), "getpeername"); }

Status UdpSocket::set_option(int level, int name, const void* value, socklen_t length) {
  const UdpOptionEffect effect = effect_of_udp_option(level, name);
  // Before the kernel has it: nothing that comes afterwards may come by a ring.
  if (effect == UdpOptionEffect::kernel_only) leave_rings();
  if (effect == UdpOptionEffect::shared_port) leave_incoming_rings();
  if (effect == UdpOptionEffect::shared_address) shares_address_.store(true, std::memory_order_relaxed);
  if (::setsockopt(fd(), level, name, value, length) != 0) return Error::last("setsockopt");
  if (effect == UdpOptionEffect::time_outs) {
    set_receive_timeout(time_out_of(fd(), SO_RCVTIMEO));
    set_send_timeout(time_out_of(fd(), SO_SNDTIMEO));
  }
  return ok();
}

Status UdpSocket::get_option(int level, int name, void* value, socklen_t* length) {
  const bool is_of_intake =  // which may have set it
      (level == SOL_SOCKET && name == SO_RXQ_OVFL) ||
      (level == IPPROTO_IP && (name == IP_RECVTTL || name == IP_RECVTOS)) ||
      (level == IPPROTO_IPV6 && (name == IPV6_RECVHOPLIMIT || name == IPV6_RECVTCLASS));
  if (is_of_intake) leave_rings();
  return ::getsockopt(fd(), level, name, value, length) == 0 ? ok() : Status(Error::last("getsockopt"));
}

// -- the end ---------------------------------------------------------------------------------------

/// Sends and receives by the kernel from now on; what waits in rings is read first. Not with the locks held.
void UdpSocket::leave_rings() noexcept try {
  const std::scoped_lock guard(send_lock_, receive_lock_);
  outlets_.leave_rings();
  intake_.leave_rings(fd());
  has_rings_.store(false, std::memory_order_relaxed);
  if (!has_left_rings_.exchange(true)) describe();
} catch (const std::bad_alloc&) {
}

/// Receives by the kernel from now on; what waits in rings is read first.
void UdpSocket::leave_incoming_rings() noexcept try {
  const std::lock_guard guard(receive_lock_);
  intake_.leave_rings(fd());
  has_rings_.store(false, std::memory_order_relaxed);
} catch (const std::bad_alloc&) {
}

/// Called when this socket has got a port that others of this process may have: from now on only the kernel knows which
/// of them gets a datagram. Sockets of other processes are noticed by the senders (UdpOutlets).
void UdpSocket::end_rings_to_port() {
  const auto name = local_name();
  if (!name) return;
  for (const runtime::Ref& endpoint : runtime::fork_registry().endpoints()) {
    auto* const other = dynamic_cast<UdpSocket*>(endpoint.get());
    if (other == nullptr || other == this || !other->shares_address_.load(std::memory_order_relaxed)) continue;
    const auto others = other->local_name();
    if (others && others->port() == name->port()) other->leave_incoming_rings();
  }
}

bool UdpSocket::become_kernels() noexcept {
  if (has_left_to_kernel()) return true;
  leave_rings();
  {
    const std::lock_guard guard(receive_lock_);
    if (intake_.has_backlog()) return false;
  }
  runtime::leave_descriptors(*this, fd());
  return true;
}

void UdpSocket::closed() noexcept {
  const std::scoped_lock guard(send_lock_, receive_lock_);
  outlets_.leave_rings();
  intake_.close();
  describe();
}

void UdpSocket::descriptor_closed(int closed_fd) noexcept {
  if (closed_fd != fd()) return;
  const auto other = runtime::fd_table().number_of(*this);
  fd_.store(other.value_or(-1), std::memory_order_relaxed);
  if (other) notify_watchers();  // a thread that is about to sleep on the number must look again
}

/// Without a duplicate the calls end with EBADF.
void UdpSocket::give_up_descriptor() noexcept {
  const std::scoped_lock guard(send_lock_, receive_lock_);
  kept_ = own_duplicate(fd());
  fd_.store(kept_ ? kept_.get() : -1, std::memory_order_relaxed);
  describe();
}

/// This runs before the fork locks are taken. Both processes have the kernel's socket, and which of them is to read a
/// datagram only the kernel decides.
void UdpSocket::add_fork_locks(runtime::ForkLocks& locks) {
  if (!become_kernels()) {
    const std::lock_guard guard(receive_lock_);
    intake_.backlog().share();
  }
  locks.add_biased(0, send_lock_);
  locks.add_biased(1, receive_lock_);
  Endpoint::add_fork_locks(locks);
}

void UdpSocket::after_fork(ForkSide side) noexcept {
  Endpoint::after_fork(side);
  if (side == ForkSide::parent) return;
  has_left_rings_.store(true);
  if (side == ForkSide::child) return intake_.backlog().forked();
  // Another thread of the parent may have been changing these.
  new (&send_lock_) BiasedMutex;
  new (&receive_lock_) BiasedMutex;
  [[maybe_unused]] auto* const lost = new (&intake_) UdpIntake(domain_);
  new (&outlets_) UdpOutlets(domain_);
  outlets_.leave_rings();
}

/// The kernel gets what waits, because another program that gets the descriptor reads from the kernel only.
void UdpSocket::passed_on() noexcept try {
  leave_rings();
  const std::lock_guard guard(receive_lock_);
  intake_.backlog().give_to_kernel(fd());
} catch (const std::bad_alloc&) {
}

void UdpSocket::before_exec() noexcept {
  {
    const std::lock_guard guard(receive_lock_);
    if (intake_.door() == nullptr && !intake_.has_backlog() && !is_watched()) return;
  }
  bool is_kept = false;
  runtime::fd_table().for_each([&](int number, const Endpoint& endpoint) {
    if (&endpoint != this || is_kept) return;
    const int flags = ::fcntl(number, F_GETFD);
    is_kept = flags >= 0 && (flags & FD_CLOEXEC) == 0;
  });
  if (!is_kept) return;
  passed_on();
  become_kernels();  // an epoll set that the program keeps knows the kernel's sockets only
}

}  // namespace ringsock::rs
