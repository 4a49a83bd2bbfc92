// A TCP socket's life, names and options.
#include "libvmacompat/tcp/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <shared_mutex>

#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/leaving.h"
#include "core/transports/kernel_calls.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/tcp/tcp_clock.h"
#include "libvmacompat/tcp/tcp_settings.h"

namespace ringsock::vma {

namespace tcp = engine::tcp;

namespace {

/// Such calls start again at the kernel's socket.
constexpr Error kKernels{EBADF, "the kernel's by now"};
constexpr Error kOver{EOPNOTSUPP, "tcp: the connection has ended"};

}  // namespace

TcpSocket::TcpSocket(int fd)
    : Endpoint(Carries::bytes),
      fd_(fd),
      events_(*this),
      carried_(*this, events_),
      stream_(carried_),
      lender_(carried_),
      callback_(*this, fd_, setup_lock_, carried_, lender_),
      api_(*this, carried_, stream_, statistics_, lender_, callback_, events_) {
  runtime::fork_registry().enter(*this);
}

TcpSocket::~TcpSocket() {
  const std::shared_lock teardown(runtime::fork_registry().teardown_gate());
  runtime::fork_registry().leave(*this);
}

// -- to the kernel ---------------------------------------------------------------------------------

/// Leaves the descriptors to the kernel, which has the socket. Not inside a read-side section, and without locks.
void TcpSocket::leave() {
  events_.end();
  lender_.leave_to_kernel();
  runtime::leave_descriptors(*this, fd());
}

/// The kernel has the socket for good. Gives the connection back if a ring has it. Returns false when it stays there,
/// because it has ended.
bool TcpSocket::give_back() noexcept {
  const std::lock_guard guard(setup_lock_);
  if (phase() == Phase::on_ring) {
    const Moving moving(moves_);
    const Status given = carried_.give_back(fd());
    if (!given && given.error().code == EBUSY) return false;
    take_over_.note_end_of_life();
    tcp_clock().leave(*this);
  }
  phase_.store(Phase::kernels, std::memory_order_release);
  statistics_.forget();
  return true;
}

bool TcpSocket::become_kernels() noexcept {
  if (has_left_to_kernel()) return true;
  if (phase() == Phase::on_trial) take_over_.note_end_of_life();
  const bool is_told = phase() == Phase::on_ring || phase() == Phase::connecting;
  callback_.begin_leaving();
  if (!give_back()) {
    callback_.stay();
    return false;
  }
  if (is_told) events_.end_and_tell(EPOLLIN);
  leave();
  return true;
}

// -- before the connection -------------------------------------------------------------------------

Status TcpSocket::bind(const sockaddr* address, socklen_t length) {
  if (::bind(fd(), address, length) != 0) return Error::last("bind");
  return ok();
}

Status TcpSocket::listen(int backlog) {
  if (phase() == Phase::on_ring) return Error{EINVAL, "listen: connected"};
  {
    const std::lock_guard guard(setup_lock_);
    if (phase() == Phase::beginning && events_.listen()) phase_.store(Phase::listening, std::memory_order_release);
    if (phase() == Phase::listening && ::listen(fd(), backlog) == 0) return ok();
  }
  if (!become_kernels()) return kOver;
  if (::listen(fd(), backlog) != 0) return Error::last("listen");
  return ok();
}

Result<int> TcpSocket::accept(SocketAddress&, int) {
  if (phase() == Phase::on_ring) return Error{EINVAL, "accept: connected"};
  return become_kernels() ? kKernels : kOver;
}

Status TcpSocket::connect(const sockaddr* address, socklen_t length) {
  if (phase() == Phase::connecting) take_over_.if_connected();
  if (phase() == Phase::kernels) return kKernels;
  if (phase() == Phase::on_ring) {
    if (address->sa_family == AF_UNSPEC) return become_kernels() ? kKernels : kOver;
    // As on Linux, the call that finds the connection made succeeds, even if SO_ERROR has told before.
    return connect_is_open_.exchange(false) ? ok() : Status(Error{EISCONN, "connect"});
  }
  if (phase() == Phase::on_trial && address->sa_family == AF_UNSPEC) return become_kernels() ? kKernels : kOver;
  const Status connected = transports::connect_as_application(fd(), address, length);
  if (phase() == Phase::on_trial) {
    connect_is_open_.store(false);  // the kernel has told
    return connected;
  }
  if (!connected && connected.error().code != EINPROGRESS && connected.error().code != EINTR) return connected;
  const auto peer = SocketAddress::from(address, length);
  take_over_.begin_connecting(peer ? *peer : SocketAddress(), static_cast<bool>(connected));
  return connected;
}

Status TcpSocket::shutdown(int how) {
  if (how < SHUT_RD || how > SHUT_RDWR) return Error{EINVAL, "shutdown"};
  if (const std::lock_guard guard(setup_lock_); phase() != Phase::on_ring) {
    if (::shutdown(fd(), how) != 0) return Error::last("shutdown");
    return ok();
  }
  return become_kernels() ? kKernels : Error{ENOTCONN, "shutdown"};
}

// -- names and options -----------------------------------------------------------------------------

// A socket that is being moved has other names and errors for a moment: the lock keeps that from the application.

Result<SocketAddress> TcpSocket::local_name() {
  const std::lock_guard guard(setup_lock_);
  return name_by(::getsockname, fd(), "getsockname");
}

Result<SocketAddress> TcpSocket::peer_name() {
  take_over_.if_connected();
  if (phase() == Phase::on_ring && stream_.is_over()) return Error{ENOTCONN, "getpeername"};
  const std::lock_guard guard(setup_lock_);
  return name_by(::getpeername, fd(), "getpeername");
}

Status TcpSocket::set_option(int level, int name, const void* value, socklen_t length) {
  if (TcpEvents::is_set_here(level, name)) return events_.set_option(name, value, length);
  const TcpOptionEffect effect = effect_of_tcp_option(level, name);
  if (phase() == Phase::on_ring && effect == TcpOptionEffect::kernel_only) {
    if (become_kernels()) return kKernels;
  }
  {
    const std::lock_guard guard(setup_lock_);
    if (::setsockopt(fd(), level, name, value, length) != 0) return Error::last("setsockopt");
  }
  if (level == IPPROTO_TCP && is_kernels_protocol_option(name))
    has_kernels_option_.store(true, std::memory_order_relaxed);
  if (effect == TcpOptionEffect::endpoint || phase() != Phase::on_ring) learn_stream_values(*this, fd());
  if (phase() != Phase::on_ring) return ok();
  if (effect == TcpOptionEffect::header && !carried_.follow_options(fd())) become_kernels();
  stream_.apply(effect, fd(), name);
  return ok();
}

Status TcpSocket::get_option(int level, int name, void* value, socklen_t* length) {
  if (TcpEvents::is_got_here(level, name)) return events_.get_option(value, length);
  take_over_.if_connected();
  if (phase() == Phase::on_ring && level == IPPROTO_TCP && name == TCP_INFO) return stream_.info(fd(), value, length);
  {
    const std::lock_guard guard(setup_lock_);
    if (::getsockopt(fd(), level, name, value, length) != 0) return Error::last("getsockopt");
    if (phase() != Phase::on_ring) return ok();
  }
  if (level == SOL_SOCKET && name == SO_GET_FILTER) *length = 0;  // the placeholder's is not the application's
  if (*length < sizeof(int)) return ok();
  std::optional<int> number;
  if (level == SOL_SOCKET && name == SO_ERROR) number = stream_.take_error();
  if (level == IPPROTO_TCP && name == TCP_MAXSEG) number = stream_.segment_bytes();
  if (number) std::memcpy(value, &*number, sizeof *number);
  return ok();
}

// -- the life of the process -----------------------------------------------------------------------

/// The kernel ends the connection: it sends what is left, and FIN or RST.
void TcpSocket::closed() noexcept {
  lender_.end();
  if (phase() == Phase::on_trial) take_over_.note_end_of_life();
  if (phase() == Phase::on_ring && !process().config.stats_file.empty()) {
    api_.refresh_statistics();
    statistics_.write_file();
  }
  const bool is_kernels = give_back();
  events_.end();
  if (is_kernels) return;
  statistics_.forget();
  tcp_clock().leave(*this);
  carried_.with_engine([](tcp::TcpConnection& engine, Nanos now) { return engine.abort(now), true; });
  carried_.leave_ring();
}

void TcpSocket::descriptor_closed(int fd) noexcept {
  if (fd == this->fd()) fd_.store(runtime::fd_table().number_of(*this).value_or(-1), std::memory_order_relaxed);
}

/// This runs before the fork locks are taken.
void TcpSocket::add_fork_locks(runtime::ForkLocks& locks) {
  if (phase() != Phase::listening) become_kernels();
  locks.add_outer(setup_lock_);
  locks.add_outer(statistics_.lock());
  locks.add_outer(callback_.lock());
  Endpoint::add_fork_locks(locks);
}

/// What is still on a ring has ended, or was taken over during the fork: it is the parent's.
void TcpSocket::after_fork(ForkSide side) noexcept {
  if (side == ForkSide::unprepared_child) new (&setup_lock_) Mutex;
  Endpoint::after_fork(side);
  if (side == ForkSide::parent) return;
  callback_.forget_after_fork();
  events_.forget_after_fork();
  if (phase() != Phase::on_ring) return;
  carried_.forget_after_fork();
}

void TcpSocket::process_ends() noexcept {
  if (phase() != Phase::on_ring || !setup_lock_.try_lock()) return;
  if (phase() == Phase::on_ring) {
    [[maybe_unused]] const Status given = carried_.give_back(fd());
    phase_.store(Phase::kernels, std::memory_order_release);
  }
  setup_lock_.unlock();
}

bool TcpSocket::look(Nanos now) {
  if (phase() == Phase::on_ring) lender_.packets_freed();  // those of PolledMemory that have not found the socket
  if (phase() == Phase::on_ring && (!carried_.look(now) || carried_.has_detour(fd(), now))) become_kernels();
  const std::uint64_t polls = carried_.polls() + events_.polls();
  return seen_polls_.exchange(polls, std::memory_order_relaxed) != polls;
}

}  // namespace ringsock::vma
