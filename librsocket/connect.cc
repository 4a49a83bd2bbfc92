// Binding and connecting.
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/log.h"
#include "core/verbs/many_devices_id.h"
#include "librsocket/rsocket_process.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

using verbs::CmEventType;

namespace {
/// The time-out of address and route resolution. Addresses of this host resolve at once.
constexpr Nanos kResolveTimeout = std::chrono::seconds(2);
}  // namespace

Result<SocketAddress> Connector::usable_address(const sockaddr* address, socklen_t length) const {
  auto parsed =
      core_.domain == AF_IB ? SocketAddress::from_rdma(address, length) : SocketAddress::from(address, length);
  if (!parsed) return parsed;
  if (core_.domain == AF_IB && !parsed->is_infiniband()) return Error{EAFNOSUPPORT, "address: family"};
  if (core_.domain == AF_INET && parsed->family() != AF_INET) return Error{EAFNOSUPPORT, "address: family"};
  if (core_.domain == AF_INET6 && parsed->family() != AF_INET6) return Error{EINVAL, "address: family"};
  return parsed;
}

Status Connector::make_id_towards(const SocketAddress& destination) {
  if (core_.id) return ok();
  auto device = core_.process.registry.choose_towards(verbs::PortSpace::tcp, destination);
  if (!device) return device.error();
  return prepare_id((*device)->create_id(verbs::PortSpace::tcp));
}

Status Connector::prepare_id(Result<std::unique_ptr<verbs::ConnectionId>> id) {
  if (!id) return id.error();
  core_.id = *std::move(id);
  core_.id->set_reuse_address(socket_.options().integer(SOL_SOCKET, SO_REUSEADDR) != 0);
  core_.id->set_v6_only(socket_.options().integer(IPPROTO_IPV6, IPV6_V6ONLY) != 0);
  core_.id->set_type_of_service(socket_.options().type_of_service());
  core_.id->share_port_with(core_.fd);
  if (patience_) core_.id->have_other_way(*patience_);
  return ok();
}

Status Connector::bind(const sockaddr* address, socklen_t length) {
  std::lock_guard guard(core_.setup_lock);
  auto local = usable_address(address, length);
  if (!local) return local.error();
  if (core_.state() != State::initial) return Error{EINVAL, "rbind: bound already"};
  return bind_locked(*local);
}

Status Connector::bind_locked(const SocketAddress& address) {
  const SocketAddress plain = address.unmapped();
  auto made = prepare_id(verbs::make_id_for_binding(core_.process.registry, plain, verbs::PortSpace::tcp));
  if (!made) return made;
  if (Status bound = core_.id->bind(plain); !bound) {
    core_.id.reset();  // a refused address leaves no state
    return bound;
  }
  socket_.numbers().hold_port();
  core_.set_state(State::bound);
  return ok();
}

Status Connector::connect(const sockaddr* address, socklen_t length) {
  Status answer = connect_at_once(address, length);
  if (core_.state() == State::connecting) Listener::serve_unwatched_listeners();
  return answer;
}

Status Connector::connect_at_once(const sockaddr* address, socklen_t length) {
  std::lock_guard guard(core_.setup_lock);
  switch (core_.state()) {
    case State::connecting: return go_on_connecting();
    case State::connected:
      if (std::exchange(owes_connect_answer_, false)) return owed_answer();
      [[fallthrough]];
    case State::listening: return Error{EISCONN, "rconnect"};
    case State::failed:
      if (const int error = core_.take_error()) return Error{error, "rconnect"};
      break;
    case State::initial:
    case State::bound: break;
  }
  auto destination = usable_address(address, length);
  if (!destination) return destination.error();
  owes_connect_answer_ = false;
  if (Status started = start_connect(*destination); !started) return started;
  drive();
  if (core_.state() == State::failed) return Error{core_.take_error(), "rconnect"};
  // Linux never says that it is connected at once, so programs do not expect it.
  if (core_.is_connected()) core_.endpoint.notify_watchers();
  owes_connect_answer_ = true;
  return Error{EINPROGRESS, "rconnect"};
}

/// Returns what the first connect(2) after one that was under way says of the connection: it may have ended since.
Status Connector::owed_answer() {
  if (core_.connection->ends().failure() == 0) return ok();
  const int error = core_.take_error();
  return Error{error != 0 ? error : ECONNABORTED, "rconnect"};
}

Status Connector::go_on_connecting() {
  if (drive_to_new_descriptor()) core_.endpoint.notify_watchers();
  if (core_.state() == State::failed) return Error{core_.take_error(), "rconnect"};
  if (!core_.is_connected()) return Error{EALREADY, "rconnect"};
  owes_connect_answer_ = false;
  return ok();
}

Status Connector::start_connect(const SocketAddress& wanted) {
  if (wanted.is_v4_mapped() && socket_.options().integer(IPPROTO_IPV6, IPV6_V6ONLY) != 0)
    return Error{ENETUNREACH, "rconnect: IPv4, with IPV6_V6ONLY"};
  SocketAddress destination = wanted.unmapped();
  if (destination.is_wildcard()) {  // Linux takes the wildcard for the loopback address
    destination = destination.family() == AF_INET ? SocketAddress::v4(INADDR_LOOPBACK, destination.port())
                                                  : SocketAddress::v6(in6addr_loopback, destination.port());
  }
  const State before = core_.state();
  stamp_ = order_stamp();
  if (Status made = make_id_towards(destination); !made) return made;
  if (Status started = core_.id->resolve_addr(destination, kResolveTimeout); !started) {
    if (before != State::bound) core_.id.reset();
    return started;
  }
  core_.set_state(State::connecting);
  socket_.cm_events().watch();
  return ok();
}

void Connector::drive() {
  if (!socket_.inheritance().claim_locked()) return;
  try {
    while (core_.state() == State::connecting) {
      auto event = core_.id->next_event();
      if (!event) break;
      handle_cm_event(*event);
    }
  } catch (const std::bad_alloc&) {
    if (core_.state() == State::connecting) fail_connect(ENOMEM);
  }
  const auto next = core_.id ? core_.id->next_deadline() : std::nullopt;
  core_.deadline.store(next.value_or(Nanos::max()), std::memory_order_relaxed);
}

bool Connector::drive_to_new_descriptor() {
  const int before = core_.id ? core_.id->event_fd() : -1;
  drive();
  return core_.state() == State::connecting && core_.id->event_fd() != before;
}

void Connector::handle_cm_event(verbs::CmEvent& event) {
  switch (event.type) {
    case CmEventType::addr_resolved:
      if (!socket_.options().route().empty()) core_.id->use_route(socket_.options().route());
      if (Status started = core_.id->resolve_route(kResolveTimeout); !started) fail_connect(started.error().code);
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

void Connector::send_connect_request() {
  auto connection = Connection::create(*core_.id, socket_.options().queues());
  if (!connection) {
    fail_connect(connection.error().code);
    return;
  }
  core_.connection = *std::move(connection);
  core_.connection->overflow().note(OverflowAreas::Acceptance::expected);
  const wire::RsConnectMore data = core_.connection->connect_data();
  verbs::ConnectionParameters parameters;
  parameters.private_data = data.bytes();
  if (Status sent = core_.id->connect(parameters); !sent) fail_connect(sent.error().code);
}

void Connector::finish_connect(const verbs::CmEvent& event) {
  const auto peer = wire::parse_rs_connect(event.data());
  Status started = peer ? core_.connection->start(*peer, wire::find_rs_overflow(event.data())) : Status(peer.error());
  if (!started) {
    log_info("rconnect: the peer's answer: %s", started.error().where);
    fail_connect(started.error().code);
    return;
  }
  socket_.cm_events().set_connected();
  socket_.proofs_of_life().remind_peer();
  runtime::process_statistics.count_connected(core_.path());
}

void Connector::fail_connect(int error) {
  socket_.cm_events().drop_connection();
  core_.pending_error.store(error, std::memory_order_release);
  core_.statistics.count_error();
  core_.set_state(State::failed);
  core_.endpoint.note_activity();
}

namespace {
constexpr Nanos kBetweenLooks{200'000};
}

void Connector::give_up() {
  if (!drive_to_end(true)) return;
  // The listener had decided to answer. The id waits for that for some time.
  do {
    sleep_for(kBetweenLooks);
  } while (drive_to_end(false));
}

/// Returns whether the connect is still under way.
bool Connector::drive_to_end(bool give_up) {
  const std::lock_guard guard(core_.setup_lock);
  if (core_.state() != State::connecting || !socket_.inheritance().claim_locked()) return false;
  if (give_up) core_.id->have_other_way(Nanos::zero());
  drive();
  return core_.state() == State::connecting;
}

void Connector::give_up_after(Nanos patience) {
  const Nanos end = monotonic_now() + patience;
  while (core_.state() == State::connecting && monotonic_now() < end) {
    [[maybe_unused]] const std::uint32_t events = socket_.readiness().ready();
    if (core_.state() == State::connecting) sleep_for(kBetweenLooks);
  }
  give_up();
}

bool Connector::leave_unshareable_devices() {
  const std::lock_guard guard(core_.setup_lock);
  socket_.listener().forget_queue_fd();
  return !core_.id || core_.id->drop_unshareable_parts();
}

}  // namespace ringsock::rs
