#include "libvmacompat/tcp/take_over.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <mutex>
#include <new>
#include <optional>

#include "core/runtime/fd_table.h"
#include "core/transports/kept_options.h"
#include "core/transports/kernel_calls.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/tcp/tcp_clock.h"
#include "libvmacompat/tcp/tcp_socket.h"

namespace ringsock::vma {

namespace {

constexpr Error kNotConnected{EIO, "tcp: bytes behind a connect(2) that has failed"};
constexpr Error kTakenOverFirst{EINTR, "tcp: the connection is taken over first"};

/// Returns whether rules and options permit that a ring carries the connection of `fd`.
bool is_permitted(config::VmaRole role, int fd, const SocketAddress& local, const SocketAddress& peer) {
  const SocketAddress here = local.unmapped(), there = peer.unmapped();
  auto& rules = process().rules();
  const auto transport =
      role == config::VmaRole::tcp_server ? rules.decide(role, here) : rules.decide(role, there, &here);
  return transport != config::VmaTransport::os && !has_kernels_options(fd);
}

Result<ssize_t> receive_from_kernel(int fd, msghdr& message, int flags) {
  const ssize_t got = ::recvmsg(fd, &message, flags | MSG_DONTWAIT);
  if (got < 0) return Error::last("recvmsg");
  return got;
}

Result<ssize_t> send_by_kernel(int fd, const msghdr& message, int flags) {
  const ssize_t sent = ::sendmsg(fd, &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return Error::last("sendmsg");
  return sent;
}

}  // namespace

bool take_accepted(int fd, int flags, const CarriedConnection* listener) {
  try {
    runtime::Ref socket(new TcpSocket(fd));
    auto& stream = static_cast<TcpSocket&>(*socket);
    stream.set_nonblocking((flags & SOCK_NONBLOCK) != 0);
    if (!stream.take_over().accepted(listener)) return false;
    if (runtime::fd_table().insert(fd, runtime::Ref::share(stream))) return true;
    stream.become_kernels();
  } catch (const std::bad_alloc&) {
  }
  return false;
}

void take_connecting(int fd, const sockaddr* address, socklen_t length, bool stands,
                     const transports::KeptOptions& options) {
  const auto peer = SocketAddress::from(address, length);
  if (!peer) return;
  try {
    runtime::Ref socket(new TcpSocket(fd));
    auto& stream = static_cast<TcpSocket&>(*socket);
    const int flags = ::fcntl(fd, F_GETFL);
    stream.set_nonblocking(flags >= 0 && (flags & O_NONBLOCK) != 0);
    if (runtime::fd_table().insert(fd, runtime::Ref::share(stream)))
      stream.take_over().take_connecting(*peer, stands, options);
  } catch (const std::bad_alloc&) {
  }
}

void TakeOver::begin_connecting(const SocketAddress& peer, bool stands) {
  {
    const std::lock_guard guard(socket_.setup_lock_);
    if (socket_.phase() == TcpSocket::Phase::kernels) return;  // a fork meanwhile
    socket_.connect_is_open_.store(!stands);
    if (!peer.is_unspecified()) place_ = ShortLives::place_of(peer.unmapped());
    socket_.phase_.store(TcpSocket::Phase::connecting, std::memory_order_release);
    if (!stands) socket_.events_.expect_connection();
  }
  if (stands) if_connected();
}

void TakeOver::take_connecting(const SocketAddress& peer, bool stands, const transports::KeptOptions& options) {
  if (options.has_any(IPPROTO_TCP, is_kernels_protocol_option))
    socket_.has_kernels_option_.store(true, std::memory_order_relaxed);
  learn_stream_values(socket_, socket_.fd());
  begin_connecting(peer, stands);
}

/// Called with the setup lock when the connection is established. Returns false when the kernel keeps it.
bool TakeOver::begin(config::VmaRole role) {
  const bool is_server = role == config::VmaRole::tcp_server;
  if (is_server) {
    const auto name = name_by(::getsockname, socket_.fd(), "getsockname");
    if (!name) return false;
    place_ = ShortLives::place_of(name->unmapped());
  }
  const Nanos now = monotonic_now();
  role_ = role;
  exchange_.begin(now);
  // A program that polls the ring makes no calls that a trial counts.
  const bool may_be_short = short_lives().are_expected(place_, now) || short_lives().is_first_of_process();
  if (process().config.socketxtreme || !may_be_short) return move();
  if (is_server)
    learn_stream_values(socket_, socket_.fd());  // of the listener; set_option() has learnt those of a client
  socket_.phase_.store(TcpSocket::Phase::on_trial, std::memory_order_release);
  return true;
}

/// Called with the setup lock. Returns false when the kernel keeps the connection.
bool TakeOver::move() {
  if (socket_.has_kernels_option_.load(std::memory_order_relaxed)) return false;
  const auto local = name_by(::getsockname, socket_.fd(), "getsockname");
  const auto peer = name_by(::getpeername, socket_.fd(), "getpeername");
  if (!local || !peer || !is_permitted(role_, socket_.fd(), *local, *peer) ||
      !socket_.carried_.find_way(socket_.fd(), *local, *peer, role_ == config::VmaRole::tcp_server))
    return false;
  if (!tcp_clock().enter(socket_)) return false;
  socket_.events_.move();
  const Moving moving(socket_.moves_);
  if (!socket_.carried_.take_over(socket_.fd())) {
    tcp_clock().leave(socket_);
    return false;
  }
  short_lives().expect_no_short_process();
  learn_stream_values(socket_, socket_.fd());
  socket_.phase_.store(TcpSocket::Phase::on_ring, std::memory_order_release);
  socket_.events_.moved(role_ == config::VmaRole::tcp_client);
  return true;
}

bool TakeOver::accepted(const CarriedConnection* listener) {
  const std::lock_guard guard(socket_.setup_lock_);
  if (listener != nullptr) socket_.carried_.share_choice(*listener);
  return begin(config::VmaRole::tcp_server);
}

void TakeOver::if_connected() {
  if (socket_.phase() != TcpSocket::Phase::connecting) return;
  const std::uint8_t state = transports::tcp_state(socket_.fd());
  if (state == TCP_SYN_SENT || state == TCP_SYN_RECV) return;
  bool is_taken = false;
  {
    const std::lock_guard guard(socket_.setup_lock_);
    if (socket_.phase() != TcpSocket::Phase::connecting) return;
    is_taken = state == TCP_ESTABLISHED && begin(config::VmaRole::tcp_client);
    if (!is_taken) socket_.phase_.store(TcpSocket::Phase::kernels, std::memory_order_release);
  }
  if (!is_taken) {
    const std::uint32_t failed = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP | EPOLLERR;
    socket_.events_.end_and_tell(state == TCP_ESTABLISHED ? EPOLLIN | EPOLLOUT : failed);
    return socket_.leave();
  }
  socket_.note_activity();
  socket_.notify_watchers();
}

/// Takes over a connection on trial. Not inside a read-side section, and without locks.
void TakeOver::end_trial() {
  {
    const std::lock_guard guard(socket_.setup_lock_);
    if (socket_.phase() != TcpSocket::Phase::on_trial) return;
    if (!move()) socket_.phase_.store(TcpSocket::Phase::kernels, std::memory_order_release);
  }
  if (socket_.phase() != TcpSocket::Phase::on_ring) return socket_.leave();
  socket_.note_activity();
  socket_.notify_watchers();
}

bool TakeOver::count(Exchange::Direction direction, ssize_t bytes) {
  if (has_lasted_.load(std::memory_order_relaxed)) [[likely]]
    return true;
  exchange_.count(direction, bytes);
  const Nanos now = monotonic_now();
  if (!exchange_.lasts(now)) return false;
  if (!has_lasted_.exchange(true, std::memory_order_relaxed)) short_lives().note_long(place_, now);
  return true;
}

void TakeOver::note_end_of_life() {
  if (!count(Exchange::Direction::none, 0)) short_lives().note_short(place_, monotonic_now());
}

runtime::Endpoint& TakeOver::endpoint() noexcept { return socket_; }

void TakeOver::run() {
  if_connected();
  // Otherwise the call that is made again would find it due for ever.
  if (socket_.phase() == TcpSocket::Phase::connecting) socket_.become_kernels();
  if (has_lasted_.load(std::memory_order_relaxed)) end_trial();
}

// -- bytes -----------------------------------------------------------------------------------------

/// Returns what a call that moves bytes behind a non-blocking connect(2) fails with, nothing where the kernel carries
/// it out. Called with the setup lock. A connection that is established is taken over, and the call is made again.
std::optional<Error> TakeOver::why_not_yet() {
  const std::uint8_t state = transports::tcp_state(socket_.fd());
  if (state == TCP_SYN_SENT || state == TCP_SYN_RECV) return std::nullopt;
  return state == TCP_ESTABLISHED && runtime::note_due(*this) ? kTakenOverFirst : kNotConnected;
}

std::optional<Result<int>> TakeOver::ask_kernel(unsigned long request) {
  const std::lock_guard guard(socket_.setup_lock_);
  if (socket_.phase() == TcpSocket::Phase::on_ring) return std::nullopt;
  int bytes = 0;
  if (::ioctl(socket_.fd(), request, &bytes) != 0) return Error::last("ioctl");
  return bytes;
}

// The lock keeps the socket the kernel's until the call has ended: the placeholder of a connection that moves meanwhile
// would swallow the bytes.

Result<ssize_t> TakeOver::receive(msghdr& message, int flags) {
  std::unique_lock guard(socket_.setup_lock_);
  const TcpSocket::Phase phase = socket_.phase();
  if (phase == TcpSocket::Phase::on_ring) return guard.unlock(), socket_.receive(message, flags);
  if (phase == TcpSocket::Phase::connecting)
    if (const auto error = why_not_yet()) return *error;
  auto got = receive_from_kernel(socket_.fd(), message, flags);
  guard.unlock();
  return phase == TcpSocket::Phase::on_trial ? after_receive(got, flags) : got;
}

Result<ssize_t> TakeOver::send(const msghdr& message, int flags) {
  std::unique_lock guard(socket_.setup_lock_);
  const TcpSocket::Phase phase = socket_.phase();
  if (phase == TcpSocket::Phase::on_ring) return guard.unlock(), socket_.send(message, flags);
  if (phase == TcpSocket::Phase::connecting)
    if (const auto error = why_not_yet()) return *error;
  auto sent = send_by_kernel(socket_.fd(), message, flags);
  guard.unlock();
  if (phase == TcpSocket::Phase::on_trial) after_send(sent, total(message));
  return sent;
}

// A connection that has proved to last is taken over where this call ends. A call that waits for more than one look
// brings must not end early for that: it would return a part of the bytes.

Result<ssize_t> TakeOver::after_receive(Result<ssize_t> got, int flags) {
  if (!got && got.error().code != EAGAIN) return got;
  const bool is_peek = (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0;
  const bool lasts = count(Exchange::Direction::received, got && !is_peek ? *got : 0);
  if (!lasts || is_peek || (flags & MSG_WAITALL) != 0 || socket_.receive_low_mark() > 1) return got;
  // Rather while nothing waits for this call than while the peer waits for an answer.
  if (!got) return runtime::note_due(*this) ? Result<ssize_t>(kTakenOverFirst) : got;
  if (exchange_.only_receives()) runtime::note_due(*this);
  return got;
}

void TakeOver::after_send(const Result<ssize_t>& sent, std::size_t wanted) {
  if (!sent || !count(Exchange::Direction::sent, *sent)) return;
  if (static_cast<std::size_t>(*sent) == wanted) runtime::note_due(*this);
}

}  // namespace ringsock::vma
