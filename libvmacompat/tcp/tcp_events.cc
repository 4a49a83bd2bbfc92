#include "libvmacompat/tcp/tcp_events.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "core/base/abandon.h"
#include "core/base/user_memory.h"
#include "core/ethernet/ethernet.h"
#include "core/ethernet/interface.h"
#include "core/extra_api/ring_alloc_logic.h"
#include "core/runtime/fd_table.h"
#include "core/transports/kernel_calls.h"
#include "libvmacompat/process/kernel_options.h"
#include "libvmacompat/process/rings_of_process.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/tcp/tcp_socket.h"

namespace ringsock::vma {

namespace tcp = engine::tcp;

namespace {

bool is_wanted() { return process().config.socketxtreme; }

using Rings = std::vector<std::shared_ptr<ethernet::Ring>>;

/// Collects the rings of the embedded device, each once. `bound`: the only interface of the socket; 0: any.
void add_ring(ethernet::Ethernet& ethernet, const net::InterfaceAddress& place, int bound, runtime::RingChoice& choice,
              Rings& out) {
  if (place.address.is_loopback() || place.is_tentative() || (bound != 0 && bound != place.ifindex)) return;
  if (ethernet.is_left_to_netfilter(place.address.family(), place.ifindex)) return;
  auto ring = ethernet.ring_on(place.ifindex, choice.key(place.address.with_port(0)));
  if (!ring || !(*ring)->interface().is_embedded()) return;
  if (std::find(out.begin(), out.end(), *ring) == out.end()) out.push_back(*std::move(ring));
}

/// Returns the rings of the interfaces that have this host's address `name`: all interfaces for the wildcard.
Rings rings_at(int fd, const SocketAddress& name, runtime::RingChoice& choice) {
  const auto ethernet = ethernet::Ethernet::of_socket(fd, rings_of_process());
  if (!ethernet) return {};
  Rings out;
  net::NetworkState& network = (*ethernet)->network();
  const SocketAddress local = name.unmapped();
  const int bound = bound_interface_of(fd);
  if (!local.is_wildcard()) {
    const int scope = local.family() == AF_INET6 ? static_cast<int>(local.in6().sin6_scope_id) : 0;
    if (const auto place = network.find_address(net::IpAddress::of(local), scope))
      add_ring(**ethernet, *place, bound, choice, out);
    return out;
  }
  for (const net::InterfaceAddress& one : network.addresses()) {
    if (one.address.is_v4() || local.family() == AF_INET6) add_ring(**ethernet, one, bound, choice, out);
  }
  return out;
}

/// Accepts from a listener of the kernel, which may be blocking. Errors: EAGAIN, and those of accept4(2).
Result<UniqueFd> accept_now(int listener, SocketAddress& peer) {
  const int flags = ::fcntl(listener, F_GETFL);
  const bool may_wait = flags >= 0 && (flags & O_NONBLOCK) == 0;
  if (may_wait) transports::set_kernel_nonblocking(listener, true);
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  UniqueFd accepted(::accept4(listener, reinterpret_cast<sockaddr*>(&storage), &length, 0));
  const int error = errno;
  if (may_wait) transports::set_kernel_nonblocking(listener, false);
  if (!accepted) return Error{error, "accept4"};
  if (const auto name = SocketAddress::from(reinterpret_cast<const sockaddr*>(&storage), length)) peer = *name;
  return accepted;
}

}  // namespace

runtime::Endpoint& TcpEvents::endpoint() noexcept { return socket_; }

// -- joining rings ---------------------------------------------------------------------------------

bool TcpEvents::listen() {
  if (!is_wanted()) return false;
  const auto local = name_by(::getsockname, socket_.fd(), "getsockname");
  if (!local || process().rules().decide(config::VmaRole::tcp_server, local->unmapped()) == config::VmaTransport::os)
    return false;
  rings_ = rings_at(socket_.fd(), *local, socket_.carried_.choice());
  return watch(EPOLLIN);
}

void TcpEvents::expect_connection() noexcept {
  if (!is_wanted()) return;
  const auto local = name_by(::getsockname, socket_.fd(), "getsockname");
  if (!local) return;
  try {
    rings_ = rings_at(socket_.fd(), *local, socket_.carried_.choice());
    watch(EPOLLOUT);
  } catch (const std::bad_alloc&) {  // it is found when a call of the program finds it
  }
}

/// Has the rings' programs look at the kernel's socket. Returns false when none can.
bool TcpEvents::watch(std::uint32_t events) {
  bool is_any = false;
  for (const auto& ring : rings_) {
    WatchedStreams& streams = streams_of(ring);
    if (!streams.watch(*this, socket_.fd(), events)) continue;
    streams_.store(&streams, std::memory_order_relaxed);
    is_any = true;
    WatchedStreams::wake(*ring);
  }
  return is_any;
}

void TcpEvents::forget(int fd) noexcept {
  for (const auto& ring : std::exchange(rings_, {})) streams_of(ring).forget(*this, fd);
  if (WatchedStreams* const streams = streams_.exchange(nullptr, std::memory_order_relaxed)) streams->forget(*this, fd);
}

void TcpEvents::move() {
  if (!is_wanted()) return;
  forget(socket_.fd());
  streams_.store(&streams_of(socket_.carried_.shared_ring()), std::memory_order_relaxed);
}

void TcpEvents::moved(bool has_connected) noexcept {
  WatchedStreams* const streams = streams_.load(std::memory_order_relaxed);
  if (streams == nullptr) return;
  socket_.carried_.with_engine([&](tcp::TcpConnection&, Nanos) { return is_connect_new_ = has_connected, true; });
  streams->list(*this);
}

void TcpEvents::end() noexcept {
  Rings last;  // their end may take time
  const std::lock_guard guard(socket_.setup_lock_);
  last = rings_;
  forget(socket_.fd());
}

void TcpEvents::end_and_tell(std::uint32_t events) noexcept {
  WatchedStreams* streams = nullptr;
  std::shared_ptr<ethernet::Ring> ring;
  {
    const std::lock_guard guard(socket_.setup_lock_);
    streams = streams_.load(std::memory_order_relaxed);
    ring = rings_.empty() ? socket_.carried_.shared_ring() : rings_.front();
  }
  end();
  if (streams == nullptr) return;
  streams->tell_of_kernels(socket_.fd(), user_data(), events);
  if (ring) WatchedStreams::wake(*ring);
}

void TcpEvents::forget_after_fork() noexcept {
  streams_.store(nullptr, std::memory_order_relaxed);
  forget_list();
  abandon(rings_);
}

std::vector<std::shared_ptr<ethernet::Ring>> TcpEvents::rings() {
  const std::lock_guard guard(socket_.setup_lock_);
  const bool is_new = rings_.empty() && socket_.phase() == TcpSocket::Phase::beginning;
  if (is_new && is_wanted() && bound_interface_of(socket_.fd()) != 0) {
    const auto local = name_by(::getsockname, socket_.fd(), "getsockname");
    if (local) rings_ = rings_at(socket_.fd(), *local, socket_.carried_.choice());
  }
  return rings_;
}

// -- news ------------------------------------------------------------------------------------------

void TcpEvents::note_news(std::uint32_t events) noexcept {
  WatchedStreams* const streams = streams_.load(std::memory_order_relaxed);
  if (streams == nullptr) [[likely]]
    return;
  if ((events & EPOLLIN) != 0 || tells_of_room_) streams->list(*this);
}

void TcpEvents::wake() noexcept {
  if (is_polled()) WatchedStreams::wake(socket_.carried_.ring());
}

void TcpEvents::note_sent(const Result<ssize_t>& sent, std::size_t wanted) noexcept {
  const bool is_short = sent ? static_cast<std::size_t>(*sent) < wanted : sent.error().code == EAGAIN;
  if (!is_short) return;
  socket_.carried_.with_engine([this](const tcp::TcpConnection& engine, Nanos) {
    tells_of_room_ = true;
    if (engine.is_writable()) note_news(EPOLLOUT);
    return true;
  });
}

std::uint64_t TcpEvents::polls() const noexcept {
  const WatchedStreams* const streams = streams_.load(std::memory_order_relaxed);
  return streams != nullptr ? streams->polls() : 0;
}

// -- what the program is told ----------------------------------------------------------------------

bool TcpEvents::take_event(vma_completion_t& out) {
  switch (socket_.phase()) {
    case TcpSocket::Phase::listening: return accept_one(out);
    case TcpSocket::Phase::connecting: socket_.take_over_.if_connected(); return false;  // listed again, or told
    case TcpSocket::Phase::on_ring: break;
    default: return false;
  }
  out = {};
  const auto taken = socket_.carried_.with_engine(
      [&](tcp::TcpConnection& engine, Nanos now) { return take_from_engine(engine, now, out); });
  if (!taken.value_or(false)) return false;
  out.user_data = user_data();
  return true;
}

/// The listener must not be closed, nor go to the kernel, between two of these calls.
bool TcpEvents::accept_one(vma_completion_t& out) {
  SocketAddress peer;
  UniqueFd fd;
  {
    const std::lock_guard guard(socket_.setup_lock_);
    if (socket_.phase() != TcpSocket::Phase::listening || socket_.is_closed()) return false;
    auto accepted = accept_now(socket_.fd(), peer);
    if (!accepted) return false;
    fd = *std::move(accepted);
  }
  out = {};
  out.events = VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED;
  out.listen_fd = socket_.fd();
  out.user_data = static_cast<std::uint64_t>(fd.get());
  tell_source(peer, out.src);
  runtime::fd_table().drop_stale(fd.get());
  if (!take_accepted(fd.get(), 0, &socket_.carried_)) {  // the kernel carries it; perhaps it has ended already
    constexpr std::uint32_t kEnd = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
    out.events |= EPOLLIN | (transports::kernel_events(fd.get()) & kEnd);
  }
  static_cast<void>(fd.release());
  return true;
}

bool TcpEvents::take_from_engine(tcp::TcpConnection& engine, Nanos now, vma_completion_t& out) {
  const bool is_hidden = socket_.callback_.hides(engine);
  if (engine.readable() != 0 && !is_hidden) {
    if (lend(engine, now, out.packet)) {
      out.events = VMA_SOCKETXTREME_PACKET;
      tell_source(socket_.carried_.peer(), out.src);
      return true;
    }
    note_news(EPOLLIN);  // no memory: tried again by the next poll
  }
  out.events = news(engine);
  return out.events != 0;
}

bool TcpEvents::lend(tcp::TcpConnection& engine, Nanos now, vma_packet_desc_t& out) {
  return lend_packet(out, [&](std::size_t most) -> LentPacket* {
           return engine.readable() != 0 ? socket_.lender_.lend_to_poll(engine, now, most, socket_.fd()) : nullptr;
         }) > 0;
}

/// Returns what has become true since the last call. The end of the stream, and of the connection, is told behind its
/// bytes, once.
std::uint32_t TcpEvents::news(const tcp::TcpConnection& engine) {
  std::uint32_t out = 0;
  if (std::exchange(is_connect_new_, false)) out |= EPOLLOUT;
  if (tells_of_room_ && engine.is_writable()) {
    tells_of_room_ = false;
    out |= EPOLLOUT;
  }
  std::uint32_t lasting = engine.has_urgent_byte() ? std::uint32_t{EPOLLPRI} : 0U;
  if (engine.readable() == 0) {
    if (engine.state() != tcp::State::established) lasting |= EPOLLIN | EPOLLRDHUP;
    if (engine.state() == tcp::State::closed) lasting |= EPOLLHUP;
    if (engine.error() != 0) lasting |= EPOLLERR;
  }
  out |= lasting & ~told_;
  told_ = lasting;
  return out;
}

// -- options ---------------------------------------------------------------------------------------

std::uint64_t TcpEvents::user_data() const noexcept { return user_data_.of(socket_.fd()); }

/// A connection has one ring, for both directions. One that is on its ring stays there.
Status TcpEvents::set_ring_logic(const void* value, socklen_t length) {
  if (value != nullptr && !is_readable(value, length)) return Error{EFAULT, "SO_VMA_RING_ALLOC_LOGIC"};
  const auto wish = parse_ring_alloc_logic(value, length);
  if (!wish) return wish.error();
  if (wish->profile_key != 0 && !process().profiles.find(wish->profile_key))
    return Error{EINVAL, "SO_VMA_RING_ALLOC_LOGIC: profile"};
  const std::lock_guard guard(socket_.setup_lock_);
  if (wish->for_receiving) socket_.carried_.choice().set(wish->logic, wish->user_id);
  return ok();
}

Status TcpEvents::set_option(int name, const void* value, socklen_t length) {
  if (name == SO_VMA_RING_ALLOC_LOGIC) return set_ring_logic(value, length);
  return user_data_.set_option(value, length);
}

Status TcpEvents::get_option(void* value, socklen_t* length) const {
  return user_data_.get_option(value, length, socket_.fd());
}

}  // namespace ringsock::vma
