// Binding and connecting.
#include <fcntl.h>

#include <cerrno>
#include <mutex>
#include <new>

#include "core/base/log.h"
#include "core/verbs/many_devices_id.h"
#include "librsocket/process.h"
#include "librsocket/signal_owner.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

using verbs::CmEventType;

namespace {
/// The time-out of address and route resolution. Addresses of this host resolve at once.
constexpr Nanos kResolveTimeout = std::chrono::seconds(2);
}  // namespace

Result<SocketAddress> StreamSocket::usable_address(const sockaddr* address, socklen_t length) const {
  auto parsed = domain_ == AF_IB ? SocketAddress::from_rdma(address, length) : SocketAddress::from(address, length);
  if (!parsed) return parsed;
  if (domain_ == AF_IB && !parsed->is_infiniband()) return Error{EAFNOSUPPORT, "address: family"};
  if (domain_ == AF_INET && parsed->family() != AF_INET) return Error{EAFNOSUPPORT, "address: family"};
  if (domain_ == AF_INET6 && parsed->family() != AF_INET6) return Error{EINVAL, "address: family"};
  return parsed;
}

SocketAddress StreamSocket::as_seen_here(const SocketAddress& address) const {
  return domain_ == AF_INET6 ? address.mapped() : address;
}

Status StreamSocket::make_id_towards(const SocketAddress& destination) {
  if (id_) return ok();
  auto device = process_.registry.choose_towards(verbs::PortSpace::tcp, destination);
  if (!device) return device.error();
  return prepare_id((*device)->create_id(verbs::PortSpace::tcp));
}

Status StreamSocket::prepare_id(Result<std::unique_ptr<verbs::ConnectionId>> id) {
  if (!id) return id.error();
  id_ = *std::move(id);
  id_->set_reuse_address(options_.get(SOL_SOCKET, SO_REUSEADDR) != 0);
  id_->set_v6_only(options_.get(IPPROTO_IPV6, IPV6_V6ONLY) != 0);
  id_->share_port_with(fd_);
  if (patience_) id_->have_other_way(*patience_);
  return ok();
}

Status StreamSocket::bind(const sockaddr* address, socklen_t length) {
  std::lock_guard guard(setup_lock_);
  auto local = usable_address(address, length);
  if (!local) return local.error();
  if (state() != State::initial) return Error{EINVAL, "rbind: bound already"};
  return bind_locked(*local);
}

Status StreamSocket::bind_locked(const SocketAddress& address) {
  const SocketAddress plain = address.unmapped();
  auto made = prepare_id(verbs::make_id_for_binding(process_.registry, plain, verbs::PortSpace::tcp));
  if (!made) return made;
  if (Status bound = id_->bind(plain); !bound) {
    id_.reset();  // a refused address leaves no state
    return bound;
  }
  hold_port();
  set_state(State::bound);
  return ok();
}

Status StreamSocket::connect(const sockaddr* address, socklen_t length) {
  Status answer = connect_at_once(address, length);
  if (state() == State::connecting) serve_unwatched_listeners();
  return answer;
}

Status StreamSocket::connect_at_once(const sockaddr* address, socklen_t length) {
  std::lock_guard guard(setup_lock_);
  switch (state()) {
    case State::connecting:
      if (drive_to_new_descriptor()) notify_watchers();
      if (is_connected()) {
        owes_connect_answer_ = false;
        return ok();
      }
      if (state() == State::failed) return Error{take_error(), "rconnect"};
      return Error{EALREADY, "rconnect"};
    case State::connected:
      if (std::exchange(owes_connect_answer_, false)) return ok();
      [[fallthrough]];
    case State::listening: return Error{EISCONN, "rconnect"};
    case State::failed:
      if (const int error = take_error()) return Error{error, "rconnect"};
      break;
    case State::initial:
    case State::bound: break;
  }
  auto destination = usable_address(address, length);
  if (!destination) return destination.error();
  owes_connect_answer_ = false;
  if (Status started = start_connect(*destination); !started) return started;
  drive();
  if (state() == State::failed) return Error{take_error(), "rconnect"};
  if (is_connected()) return ok();
  owes_connect_answer_ = true;
  return Error{EINPROGRESS, "rconnect"};
}

Status StreamSocket::start_connect(const SocketAddress& wanted) {
  SocketAddress destination = wanted.unmapped();
  if (destination.is_wildcard()) {  // Linux takes the wildcard for the loopback address
    destination = destination.family() == AF_INET ? SocketAddress::v4(INADDR_LOOPBACK, destination.port())
                                                  : SocketAddress::v6(in6addr_loopback, destination.port());
  }
  const State before = state();
  connect_stamp_ = order_stamp();
  if (Status made = make_id_towards(destination); !made) return made;
  if (Status started = id_->resolve_addr(destination, kResolveTimeout); !started) {
    if (before != State::bound) id_.reset();
    return started;
  }
  destination_ = wanted;
  set_state(State::connecting);
  watch_cm_events();
  return ok();
}

/// Once connected, the queue pair's completions report the same as events would, but in order with the data.
void StreamSocket::drive() {
  if (!claim_locked()) return;
  try {
    while (state() == State::connecting) {
      auto event = id_->next_event();
      if (!event) break;
      handle_cm_event(*event);
    }
  } catch (const std::bad_alloc&) {
    if (state() == State::connecting) fail_connect(ENOMEM);
  }
  const auto next = id_ ? id_->next_deadline() : std::nullopt;
  deadline_.store(next.value_or(Nanos::max()), std::memory_order_relaxed);
}

bool StreamSocket::drive_to_new_descriptor() {
  const int before = id_ ? id_->event_fd() : -1;
  drive();
  return state() == State::connecting && id_->event_fd() != before;
}

void StreamSocket::handle_cm_event(verbs::CmEvent& event) {
  switch (event.type) {
    case CmEventType::addr_resolved:
      if (!route_.empty()) id_->use_route(route_);
      if (Status started = id_->resolve_route(kResolveTimeout); !started) fail_connect(started.error().code);
      return;
    case CmEventType::route_resolved: send_connect_request(); return;
    case CmEventType::established: finish_connect(event); return;
    case CmEventType::rejected: fail_connect(ECONNREFUSED); return;
    case CmEventType::unreachable: fail_connect(event.status != 0 ? event.status : ETIMEDOUT); return;
    case CmEventType::disconnected: fail_connect(ECONNRESET); return;
    case CmEventType::addr_error:
    case CmEventType::route_error:
    case CmEventType::connect_error:
    case CmEventType::device_removal: fail_connect(event.status != 0 ? event.status : ENETUNREACH); return;
    case CmEventType::connect_request: return;
  }
}

void StreamSocket::send_connect_request() {
  auto connection = Connection::create(*id_, settings_);
  if (!connection) {
    fail_connect(connection.error().code);
    return;
  }
  connection_ = *std::move(connection);
  const wire::RsConnect data = connection_->connect_data();
  verbs::ConnectionParameters parameters;
  parameters.private_data = std::as_bytes(std::span(&data, 1));
  if (Status sent = id_->connect(parameters); !sent) fail_connect(sent.error().code);
}

void StreamSocket::finish_connect(const verbs::CmEvent& event) {
  const auto peer = wire::parse_rs_connect(event.data());
  Status started = peer ? connection_->start(*peer) : Status(peer.error());
  if (!started) {
    log_info("rconnect: the peer's answer: %s", started.error().where);
    fail_connect(started.error().code);
    return;
  }
  set_connected();
  remind_peer();
  runtime::process_statistics.count_connected(path());
}

void StreamSocket::set_connected() {
  connection_->announce_if_due();
  if (id_->device().wakes_through_connection()) {
    // The connection's descriptor replaces the kernel socket that held the port, which is no longer needed. An accepted
    // socket has the connection's descriptor from the start.
    if (fd_ < 0) {
      fd_ = id_->event_fd();
      connection_owns_fd_.store(true, std::memory_order_release);
    } else {
      take_number();
    }
  }
  set_state(State::connected);
  note_activity();
  option_changed(SOL_SOCKET, SO_KEEPALIVE);
}

/// Keeps a port that the application has chosen taken as long as the connection, if a descriptor is available.
void StreamSocket::take_number() {
  if (holds_port_) port_holder_ = out_of_the_way(UniqueFd(::fcntl(fd_, F_DUPFD_CLOEXEC, 0)));
  std::optional<SignalOwner> owner;
  if (has_signal_owner.load()) owner = SignalOwner::of(fd_);
  if (id_->move_to_descriptor(fd_)) connection_owns_fd_.store(true, std::memory_order_release);
  if (owner) owner->give_to(fd_);
}

bool StreamSocket::take_cm_events() {
  bool changed = false;
  while (auto event = id_->next_event()) changed |= take_cm_event(*event);
  return changed;
}

bool StreamSocket::take_cm_event(const verbs::CmEvent& event) {
  switch (event.type) {
    case CmEventType::established: {
      peer_confirmed_.store(true, std::memory_order_release);
      connection_->established();
      const std::unique_lock reading(receive_lock_, std::try_to_lock);
      if (reading) connection_->announce_if_due();
      return true;
    }
    case CmEventType::disconnected:
      // Where the queue pair reports the end, it does so in order with the data.
      if (!id_->device().works_in_background()) return false;
      connection_->poll();
      connection_->peer_left();
      return true;
    case CmEventType::device_removal:
    case CmEventType::connect_error:
    case CmEventType::unreachable: connection_->fail(event.status != 0 ? event.status : ECONNRESET); return true;
    default: return false;
  }
}

void StreamSocket::watch_cm_events() {
  if (!id_->device().works_in_background() || cm_watch_) return;
  cm_watch_ = std::make_shared<CmWatch>(id_->event_fd(), [this] { serve_cm_events(); });
  if (Status watched = cm_watch_->start(); !watched) {
    log_debug("a connection is looked after by its application only: %s", watched.error().where);
    cm_watch_.reset();
  }
}

void StreamSocket::serve_cm_events() {
  if (!try_add_ref()) return;  // the destructor waits for us
  const runtime::Ref self(this);
  runtime::Ref listener;
  {
    const std::lock_guard guard(setup_lock_);
    if (state() == State::connecting) {
      drive();
    } else if (is_connected() && take_cm_events()) {
      note_activity(EPOLLIN);
    }
    if (is_connected() && is_peer_decided()) listener = std::move(half_open_listener_);
  }
  if (is_connected()) progress();
  notify_watchers();
  if (listener.get() != nullptr) static_cast<StreamSocket&>(*listener).half_open_changed();
}

void StreamSocket::drop_connection() {
  connection_.reset();
  if (!cm_watch_) return id_.reset();
  // The watch may be calling us and waiting for our lock, so it is stopped on the service thread, where no other
  // callback is running.
  auto leave = [watch = std::move(cm_watch_), id = std::shared_ptr(std::move(id_))] { watch->stop(); };
  cm_watch_.reset();
  if (auto timer = runtime::service_thread().schedule(Nanos::zero(), leave); !timer) {
    log_warn("a failed connection stays: %s", timer.error().where);
    new auto(std::move(leave));
  }
}

void StreamSocket::fail_connect(int error) {
  drop_connection();
  error_.store(error, std::memory_order_release);
  statistics_.count_error();
  set_state(State::failed);
  note_activity();
}

Result<SocketAddress> StreamSocket::local_name() {
  std::lock_guard guard(setup_lock_);
  if (!id_) return SocketAddress::wildcard(domain_, 0);
  const SocketAddress address = id_->local_address();
  return address.is_unspecified() ? SocketAddress::wildcard(domain_, 0) : as_seen_here(address);
}

Result<SocketAddress> StreamSocket::peer_name() {
  look_for_reset();
  if (is_connected() && is_over()) return Error{ENOTCONN, "rgetpeername"};
  return last_peer();
}

Result<SocketAddress> StreamSocket::last_peer() {
  std::lock_guard guard(setup_lock_);
  if (!is_connected()) return Error{ENOTCONN, "rgetpeername"};
  return as_seen_here(id_->peer_address());
}

}  // namespace ringsock::rs
