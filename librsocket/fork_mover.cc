#include "librsocket/fork_mover.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "core/base/log.h"
#include "core/base/own_duplicate.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/statistics/statistics.h"
#include "librsocket/rsocket_process.h"

namespace ringsock::rs {

using runtime::KernelReason;
using transports::Choice;
using ForkSide = runtime::ProcessLife::ForkSide;
using Step = Migration::Step;

namespace {

constexpr std::array<char, 4> kZeros{};
/// How long the server waits for bytes by TCP: a client that is not in fork mode mostly sends some at once.
constexpr Nanos kGrace = std::chrono::milliseconds(5);
/// How long to wait for the section. A process that stays inside for longer hangs, or waits for a client that does not
/// come.
constexpr Nanos kSectionPatience = std::chrono::seconds(5);
/// How long to wait for the port, and for the client.
constexpr Nanos kPortPatience = std::chrono::seconds(30);
constexpr Nanos kClientPatience = std::chrono::seconds(10);
/// How long a client waits for the zeros, which a server that is not in fork mode does not send.
constexpr Nanos kServerPatience = std::chrono::seconds(10);
constexpr Nanos kRetryInterval = std::chrono::milliseconds(1);

constexpr Error kPending{EAGAIN, "fork mode: the connection is moving"};

bool same_host(SocketAddress one, SocketAddress other) {
  one = one.unmapped();
  other = other.unmapped();
  one.set_port(0);
  other.set_port(0);
  return one == other;
}

UniqueFd watch_edges(int fd) {
  UniqueFd set = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  epoll_event every{};
  every.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  if (set && ::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &every) != 0) set.reset();
  return set;
}

}  // namespace

bool ForkMover::concerns(const SocketAddress& local_or_peer) {
  const SocketAddress plain = local_or_peer.unmapped();
  const auto device = stream_.core().process.registry.choose_towards(verbs::PortSpace::tcp, plain);
  return device && !(*device)->traits().survives_fork;
}

void ForkMover::begin(End end, const SocketAddress& where) {
  if (end == End::connecting)
    stream_.connector().have_other_way(kClientPatience);  // the server waits that long for its client
  const std::lock_guard guard(lock_);
  migration_ = std::make_unique<Migration>();
  migration_->step = end == End::connecting ? Step::zeros : Step::grace;
  migration_->where = where;
  if (end == End::accepting) migration_->until = monotonic_now() + kGrace;
  next_look_.store(migration_->until, std::memory_order_relaxed);
  kernel_edges_ = watch_edges(descriptor());
  socket_.choice().set(Choice::State::moving);
}

// -- moving ----------------------------------------------------------------------------------------

Status ForkMover::use() {
  const Status moved = move([](Migration& migration) { migration.used = true; });
  if (moved || moved.error().code != EAGAIN || !socket_.is_closed()) return moved;
  return Error{EBADF, "closed meanwhile"};
}

template <class Before>
Status ForkMover::move(Before before) {
  Status moved = ok();
  bool has_stepped = false;
  {
    const std::lock_guard guard(lock_);
    if (!socket_.choice().is_moving() || !migration_) return ok();
    before(*migration_);
    const Step last = migration_->step;
    moved = move_locked();
    has_stepped = !migration_ || migration_->step != last;
  }
  // Each step has other descriptors to sleep on. Other threads, and this one, may have called arm() before the step.
  if (has_stepped) socket_.notify_watchers();
  return moved;
}

/// Returns ok() when the way is decided, EAGAIN when it is not, and otherwise the error that ended the TCP connection.
Status ForkMover::move_locked() {
  if (migration_->lost) return Error{EIO, "fork mode: another process is moving the connection"};
  switch (migration_->step) {
    case Step::zeros: return wait_for_zeros();
    case Step::connecting: return connect_ring();
    case Step::grace:
    case Step::turn:
    case Step::client: break;
  }
  // In fork mode, the client sends nothing by TCP.
  char byte = 0;
  const ssize_t seen = ::recv(descriptor(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (seen < 0 && errno != EAGAIN) return stay(Error::last("recv"));
  if (seen >= 0) {
    if (migration_->step == Step::client && seen > 0) log_warn("fork mode: a client without it got four zero bytes");
    return stay(std::nullopt);
  }
  if (migration_->step == Step::grace) {
    if (monotonic_now() < migration_->until) return kPending;
    migration_->step = Step::turn;
    migration_->until = monotonic_now() + kSectionPatience;
  }
  return migration_->step == Step::turn ? take_turn() : take_client();
}

Status ForkMover::wait_for_zeros() {
  std::array<char, kZeros.size()> seen{};
  const ssize_t count = ::recv(descriptor(), seen.data(), seen.size(), MSG_PEEK | MSG_DONTWAIT);
  if (count < 0 && errno == EAGAIN) return wait_for_server();
  if (count < 0) return stay(Error::last("recv"));
  const auto end = seen.begin() + count;
  if (count == 0 || std::any_of(seen.begin(), end, [](char byte) { return byte != 0; })) return stay(std::nullopt);
  if (end != seen.end()) return kPending;
  migration_->step = Step::connecting;
  next_look_.store(Nanos::max(), std::memory_order_relaxed);
  migration_->tcp = own_duplicate(descriptor());
  return connect_ring();
}

/// Waits for the zeros once the connection is used. A ringsock server that comes later sees that this end talks by TCP,
/// and does so, too.
Status ForkMover::wait_for_server() {
  if (!migration_->used) return kPending;
  if (migration_->until == Nanos::max()) {
    migration_->until = monotonic_now() + kServerPatience;
    next_look_.store(migration_->until, std::memory_order_relaxed);
  }
  if (monotonic_now() < migration_->until) return kPending;
  log_warn("fork mode: %s does not answer as in fork mode: the connection stays with the kernel",
           migration_->where.to_string().c_str());
  return stay(std::nullopt);
}

Status ForkMover::connect_ring() {
  const Status connected = stream_.connect(migration_->where.get(), migration_->where.length());
  if (connected || connected.error().code == EISCONN) {
    arrive();
    return ok();
  }
  if (connected.error().code == EINPROGRESS || connected.error().code == EALREADY) return kPending;
  log_info("fork mode: connection to %s stays with the kernel: %s: %s", migration_->where.to_string().c_str(),
           connected.error().where, std::strerror(connected.error().code));
  std::array<char, kZeros.size()> zeros{};
  ::recv(descriptor(), zeros.data(), zeros.size(), MSG_DONTWAIT);
  return stay(std::nullopt);
}

Status ForkMover::take_turn() {
  const Nanos now = monotonic_now();
  next_look_.store(now + kRetryInterval, std::memory_order_relaxed);
  if (!migration_->section.try_enter(migration_->where.port())) {
    if (now < migration_->until) return kPending;
    log_info("fork mode: another process has had its turn for too long: without");
    migration_->section.enter_anyway();
  }
  if (Status listening = listen_for_client(); !listening) {
    migration_->section.leave();
    // Another process waits for its client on the port.
    if (listening.error().code == EADDRINUSE && now < migration_->until + kPortPatience) return kPending;
    log_info("fork mode: a connection stays with the kernel: %s: %s", listening.error().where,
             std::strerror(listening.error().code));
    return stay(std::nullopt);
  }
  if (::send(descriptor(), kZeros.data(), kZeros.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
      static_cast<ssize_t>(kZeros.size())) {
    return stay(std::nullopt);
  }
  migration_->step = Step::client;
  migration_->until = now + kClientPatience;
  next_look_.store(migration_->until, std::memory_order_relaxed);
  return kPending;
}

Status ForkMover::listen_for_client() {
  const auto device = stream_.core().process.registry.choose(migration_->where);
  if (!device) return device.error();
  auto id = (*device)->create_id(verbs::PortSpace::tcp);
  if (!id) return id.error();
  (*id)->set_reuse_address(true);
  if (Status bound = (*id)->bind(migration_->where); !bound) return bound;
  if (Status listening = (*id)->listen(1); !listening) return listening;
  migration_->listener = *std::move(id);
  return ok();
}

Status ForkMover::take_client() {
  const auto peer = socket_.peer_name();
  for (;;) {
    auto event = migration_->listener->next_event();
    if (!event) break;
    if (event->type != verbs::CmEventType::connect_request) continue;
    if (!peer || !same_host(*peer, event->request->peer_address())) continue;  // dropping the request refuses it
    migration_->tcp = own_duplicate(descriptor());
    if (Status accepted = stream_.cm_events().become_accepted(*event); !accepted) {
      log_info("fork mode: a client is refused: %s: %s", accepted.error().where, std::strerror(accepted.error().code));
      return stay(std::nullopt);
    }
    arrive();
    return ok();
  }
  if (monotonic_now() < migration_->until) return kPending;
  log_warn("fork mode: a client did not come within %d s: its connection stays with the kernel",
           static_cast<int>(std::chrono::duration_cast<std::chrono::seconds>(kClientPatience).count()));
  return stay(std::nullopt);
}

/// Ends the move: the connection is on the ring. TCP is shut down, in other processes, too. Duplicates of the
/// descriptor become an unconnected socket for the kernel.
void ForkMover::arrive() {
  std::vector<int> numbers;
  runtime::fd_table().for_each([&](int fd, const runtime::Endpoint& endpoint) {
    if (&endpoint == &socket_ && !stream_.numbers().owns_descriptor(fd)) numbers.push_back(fd);
  });
  if (migration_->tcp) ::shutdown(migration_->tcp.get(), SHUT_RDWR);
  kernel_edges_.reset();
  const UniqueFd nothing(::socket(stream_.core().domain, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (const int fd : numbers) {
    const bool closes = (::fcntl(fd, F_GETFD, 0) & FD_CLOEXEC) != 0;
    if (nothing) ::dup3(nothing.get(), fd, closes ? O_CLOEXEC : 0);
  }
  next_look_.store(Nanos::max(), std::memory_order_relaxed);
  migration_.reset();
  socket_.choice().set(Choice::State::on_way);
  socket_.note_activity();
}

/// Leaves the connection to the kernel for good.
Status ForkMover::stay(std::optional<Error> error) {
  if (migration_->step == Step::zeros || migration_->step == Step::connecting) {
    runtime::process_statistics.count_kernel_connected(KernelReason::fork);
  } else {
    runtime::process_statistics.count_accepted(runtime::SocketPath::kernel);
  }
  next_look_.store(Nanos::max(), std::memory_order_relaxed);
  migration_.reset();
  socket_.choice().set(Choice::State::kernel);
  socket_.note_activity();
  return error ? Status(*error) : ok();
}

// -- meanwhile -------------------------------------------------------------------------------------

/// Returns the events while the connection moves. Waiting for an accepted connection counts as use, because its client
/// sends nothing before the move. A connection that was made by connect() has the events of TCP until it is used,
/// except for the zeros.
std::uint32_t ForkMover::events(std::uint32_t events) noexcept {
  bool waits = true;
  const Status moved = move([&](Migration& migration) {
    const bool active = migration.step == Step::zeros || migration.step == Step::connecting;
    waits = !active || migration.used || migration.step == Step::connecting || (events & EPOLLIN) != 0;
  });
  if (!socket_.choice().is_moving()) return socket_.ready();
  if (!moved && moved.error().code != EAGAIN) return EPOLLERR | EPOLLHUP | EPOLLIN | EPOLLOUT;
  const std::uint32_t ended = events & (EPOLLERR | EPOLLHUP);
  return waits && ended == 0 ? 0 : events & ~std::uint32_t{EPOLLIN | EPOLLRDNORM};
}

runtime::WaitFds ForkMover::arm() noexcept {
  const std::lock_guard guard(lock_);
  runtime::WaitFds fds{{kernel_edges_ ? kernel_edges_.get() : -1, -1}};
  if (!migration_) return fds;
  if (migration_->step == Step::connecting) fds.fd[1] = stream_.readiness().arm().fd[1];
  if (migration_->listener) fds.fd[1] = migration_->listener->event_fd();
  return fds;
}

/// Takes the events that have made kernel_edges_ readable.
void ForkMover::woken() noexcept {
  epoll_event event{};
  const int saved_errno = errno;
  if (kernel_edges_) ::epoll_wait(kernel_edges_.get(), &event, 1, 0);
  errno = saved_errno;
}

void ForkMover::end() noexcept {
  const std::lock_guard guard(lock_);
  if (socket_.choice().is_moving() && migration_) [[maybe_unused]]
    const Status stays = stay(std::nullopt);
}

void ForkMover::add_fork_locks(runtime::ForkLocks& locks) { locks.add_outer(lock_); }

void ForkMover::after_fork(runtime::ProcessLife::ForkSide side) noexcept {
  if (side == ForkSide::unprepared_child) new (&lock_) Mutex;
  if (side == ForkSide::parent || !kernel_edges_) return;
  // An edge that one process takes is lost for the other.
  kernel_edges_ = watch_edges(descriptor());
  if (!migration_) return;
  migration_->section.forget();
  migration_->listener.reset();
  migration_->lost = migration_->step == Step::connecting || migration_->step == Step::client;
}

}  // namespace ringsock::rs
