#include "core/device/shm/cm/soft_id.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/device/shm/names/connect_target.h"
#include "core/device/shm/names/port_owner.h"
#include "core/device/shm/queue/rc_wiring.h"

namespace ringsock::soft {

using verbs::CmEventType;
using verbs::ConnectionParameters;
using verbs::ConnectionQp;
using verbs::PortSpace;

namespace {

constexpr std::uint32_t kDefaultUdpQkey = 0x01234567;  // RDMA_UDP_QKEY

/// Returns the bound address, or the one that the kernel chooses for this destination, with our port.
Result<SocketAddress> choose_source(PortReservation& port, PortSpace space, const SocketAddress& target) {
  if (Status unicast = check_unicast(target); !unicast) return unicast.error();
  if (Status local = check_local(target); !local) return local.error();
  const SocketAddress from = source_towards(target);
  if (!port.is_bound()) {
    Status bound = port.bind_ephemeral(space, from);
    if (!bound) return explain_unreachable(bound.error());
    return port.binding().address;
  }
  const PortBinding& bound = port.binding();
  SocketAddress source = from;
  source.set_port(bound.address.port());
  if (overlap(bound, {space, source, false})) return source;
  if (bound.address.family() != target.family()) return Error{ENETUNREACH, "resolve_addr: bound to the other family"};
  return bound.address;
}

Result<ConnectionQp> create_ud(verbs::Device& device, ibv_pd& pd, ibv_qp_init_attr& attr) {
  if (attr.qp_type != IBV_QPT_UD) return Error{EINVAL, "create_qp: type"};
  auto made = device.create_qp(pd, attr);
  if (!made) return made.error();
  // The queue pair is moved to INIT, as rdma_create_qp(3) does.
  ibv_qp_attr change{};
  change.qp_state = IBV_QPS_INIT;
  change.port_num = 1;
  change.qkey = kDefaultUdpQkey;
  Status moved = device.modify_qp(**made, change, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  change.qp_state = IBV_QPS_RTR;
  if (moved) moved = device.modify_qp(**made, change, IBV_QP_STATE);
  change.qp_state = IBV_QPS_RTS;
  if (moved) moved = device.modify_qp(**made, change, IBV_QP_STATE | IBV_QP_SQ_PSN);
  if (!moved) return moved.error();
  ConnectionQp out;
  out.qp = std::move(*made);
  return out;
}

}  // namespace

std::unique_ptr<verbs::ConnectionId> make_soft_id(SoftIdHost host, PortSpace space) {
  return std::make_unique<SoftId>(host, space, SoftIdLimits{});
}

SoftId::SoftId(SoftIdHost host, PortSpace space, SoftIdLimits limits) : host_(host), space_(space), limits_(limits) {}

SoftId::SoftId(SoftIdHost host, IncomingRequest incoming, SoftIdLimits limits)
    : host_(host),
      space_(incoming.request.space),
      limits_(limits),
      state_(State::requested),
      is_accepting_(true),
      local_address_(incoming.request.destination),
      peer_address_(incoming.request.source),
      request_(std::make_unique<ConnectRequest>(incoming.request)),
      peer_(incoming.peer),
      accepted_by_listening_process_(incoming.accepted_by_listening_process),
      peer_segment_(std::move(incoming.segment), std::move(incoming.memfd)),
      link_(std::move(incoming.inbox), std::move(incoming.link)) {}

SoftId::~SoftId() { link_.drop(peer_segment_.mapping().get()); }

void SoftId::have_other_way(Nanos patience) {
  const bool has_begun = state_ != State::idle && state_ != State::addr_resolved && state_ != State::route_resolved;
  if (has_begun && state_ != State::connecting) return;
  if (!active_) active_ = std::make_unique<ActiveSide>(host_.silent_ports, link_, space_, limits_.connect);
  active_->have_other_way(patience);
  if (patience > Nanos::zero() || state_ != State::connecting) return;
  active_->stop_waiting();
  follow_active_side();
}

Status SoftId::bind(const SocketAddress& address) {
  if (state_ != State::idle || port_.is_bound()) return Error{EINVAL, "bind: state"};
  if (address.is_unspecified()) return Error{EAFNOSUPPORT, "bind: family"};
  Status bound = port_.bind(space_, address, options_);
  if (bound) local_address_ = port_.binding().address;
  return bound;
}

Status SoftId::listen(int backlog) {
  if (state_ == State::listening) return acceptor_->set_backlog(backlog);
  if (state_ != State::idle || !port_.is_bound()) return Error{EINVAL, "listen: not bound"};
  const bool shares = port_.shares_port();
  // A name that nobody listens under would take clients' attempts from the listeners that share the port.
  if (backlog == kNotYet && shares) return Error{EOPNOTSUPP, "listen: a shared port"};
  auto acceptor = backlog == kNotYet
                      ? Acceptor::prepare(port_.binding(), limits_.accept)
                      : Acceptor::open(port_.binding(), backlog, limits_.accept, shares ? kMaxSharingListeners : 1);
  if (!acceptor) return acceptor.error();
  if (port_.reuses_address() && !shares) {
    // The kernel let several bind the port; only one may listen.
    Status alone = port_.check_no_other_listener(listening_name(port_.binding()));
    if (!alone) return alone;
  }
  acceptor_ = std::move(*acceptor);
  // From here on the listening socket marks the port as taken.
  port_.take_named_socket().reset();
  state_ = State::listening;
  return ok();
}

void SoftId::check_requests_by(bool (*check)(std::span<const std::byte>)) {
  if (acceptor_) acceptor_->set_private_data_check(check);
}

Status SoftId::resolve_addr(const SocketAddress& destination, Nanos) {
  if (state_ != State::idle) return Error{EINVAL, "resolve_addr: state"};
  if (destination.is_unspecified()) return Error{EAFNOSUPPORT, "resolve_addr: family"};
  const SocketAddress target = connect_target(destination);
  auto source = choose_source(port_, space_, target);
  if (!source) {
    due_.add(CmEventType::addr_error, source.error().code);
    return ok();
  }
  local_address_ = *source;
  peer_address_ = target;
  state_ = State::addr_resolved;
  due_.add(CmEventType::addr_resolved);
  return ok();
}

Status SoftId::resolve_route(Nanos) {
  if (state_ != State::addr_resolved) return Error{EINVAL, "resolve_route: state"};
  if (!active_) active_ = std::make_unique<ActiveSide>(host_.silent_ports, link_, space_, limits_.connect);
  state_ = State::route_resolved;
  due_.add(CmEventType::route_resolved);
  return ok();
}

/// On the active side the kernel names the process that listens, and within one user the one that answers, which may be
/// a worker of another user.
std::optional<uid_t> SoftId::other_user() const {
  const PeerIdentity& peer = active_ ? active_->peer() : peer_;
  if (!peer.same_user) return peer.uid;
  const auto sender = link_ && !is_accepting_ ? link_->sender() : std::nullopt;
  return !sender || is_own_uid(sender->uid) ? std::nullopt : std::optional(sender->uid);
}

Result<ConnectionQp> SoftId::create_qp(ibv_pd& pd, ibv_qp_init_attr& attr, verbs::ReceiveBytes receive) {
  if (qp_ != nullptr || (state_ != State::route_resolved && state_ != State::requested)) {
    return Error{EINVAL, "create_qp: state"};
  }
  auto out = space_ == PortSpace::tcp ? create_rc(pd, attr, receive) : create_ud(host_.context.device(), pd, attr);
  if (out) qp_ = out->qp.get();
  return out;
}

Result<ConnectionQp> SoftId::create_rc(ibv_pd& pd, ibv_qp_init_attr& attr, verbs::ReceiveBytes receive) {
  if (state_ == State::requested) {
    const std::uint64_t own_bytes = own_segment_bytes(attr, {receive.bytes, receive.quiet});
    Status taken = peer_segment_.take(peer_, request_->offer, {own_bytes, receive.quiet});
    if (!taken) return taken.error();
  }
  const SpareRoom spare{peer_segment_.mapping(), request_ ? request_->offer.spare : InboxLayout{}};
  const bool has_spare = state_ == State::requested && spare.inbox.bytes != 0;
  if (state_ == State::route_resolved) active_->join_early(peer_address_, port_);
  auto made = create_rc_queue_pair(host_.context, pd, attr, {receive.bytes, receive.quiet},
                                   has_spare ? &spare : nullptr, active_ ? active_->segment_peer() : std::nullopt);
  if (!made) return made.error();
  ConnectionQp out;
  out.qp = verbs::Qp(host_.context.device(), made->qp);
  if (made->arena_mr != nullptr) {
    out.receive_mr = verbs::Mr(host_.context.device(), made->arena_mr);
    out.receive_memory = {static_cast<std::byte*>(made->arena), made->arena_mr->length};
  }
  return out;
}

Status SoftId::connect(const ConnectionParameters& parameters) {
  if (state_ != State::route_resolved) return Error{EINVAL, "connect: state"};
  if (space_ == PortSpace::tcp && qp_ == nullptr) return Error{EINVAL, "connect: no queue pair"};
  ConnectRequest request;
  Status taken = request.private_data.assign(parameters.private_data, verbs::kMaxRequestPrivateData);
  if (!taken) return taken;
  request.space = space_;
  request.source = local_address_;
  request.destination = peer_address_;
  request.parameters = parameters;
  state_ = State::connecting;
  active_->connect(request, qp_, port_);
  follow_active_side();
  return ok();
}

Status SoftId::accept(const ConnectionParameters& parameters) {
  if (state_ != State::requested || qp_ == nullptr) return Error{EINVAL, "accept: state"};
  ConnectReply reply;
  Status taken = reply.private_data.assign(parameters.private_data, verbs::kMaxReplyPrivateData);
  if (!taken) return taken;
  reply.parameters = parameters;
  reply.from_listening_process = accepted_by_listening_process_;
  if (space_ == PortSpace::tcp) {
    RcWiring& wiring = wiring_of(*qp_);
    reply.offer = wiring.offer();
    link_.offer_memory(wiring.offer_memfd());
    const pid_t pid = peer_.same_user ? peer_.pid : 0;
    Status attached = wiring.attach(request_->offer, peer_segment_.mapping(), link_.shared(),
                                    {{peer_.pid, peer_.uid}, pid}, request_->parameters.rnr_retry_count);
    if (!attached) return attached;
    if (!peer_segment_.mapping()->settle_request(RequestState::accepted))
      return Error{ECONNRESET, "accept: the client has given up"};
  } else {
    reply.offer.qp_num = qp_->qp_num;
    if (reply.parameters.qkey == 0) reply.parameters.qkey = kDefaultUdpQkey;
  }
  if (Status sent = link_->send(LinkPacket::reply, encode_reply(reply).view()); !sent) {
    return Error{ECONNRESET, "accept: the peer has gone"};
  }
  static_cast<void>(peer_segment_.release());
  if (space_ == PortSpace::udp) {
    // The exchange is complete, as with SIDR: datagrams need no connection, and this side gets no more packets.
    link_.drop(peer_segment_.mapping().get());
    state_ = State::established;
    return ok();
  }
  establish();
  return ok();
}

Status SoftId::reject(std::span<const std::byte> private_data) {
  if (state_ != State::requested) return Error{EINVAL, "reject: state"};
  PrivateData data;
  if (Status taken = data.assign(private_data, verbs::kMaxRejectPrivateData); !taken) return taken;
  // A failure means that the peer has gone, which then needs no answer.
  [[maybe_unused]] const Status sent = link_->send(LinkPacket::reject, encode_reject(data).view());
  link_.drop(peer_segment_.mapping().get());
  state_ = State::closed;
  return ok();
}

Status SoftId::disconnect() {
  if (state_ == State::closed) return ok();
  if (state_ != State::established || space_ != PortSpace::tcp) return Error{EINVAL, "disconnect: state"};
  ibv_qp_attr change{};
  change.qp_state = IBV_QPS_ERR;
  if (Status flushed = host_.context.device().modify_qp(*qp_, change, IBV_QP_STATE); !flushed) return flushed;
  [[maybe_unused]] const Status sent = link_->send(LinkPacket::disconnect, {});
  link_->hang_up();
  link_.drop(peer_segment_.mapping().get());
  state_ = State::closed;
  due_.add(CmEventType::disconnected);
  return ok();
}

void SoftId::abandon(bool give_away) {
  link_.abandon(give_away);
  if (qp_ != nullptr && space_ == PortSpace::tcp) wiring_of(*qp_).abandon();
}

void SoftId::take_over() {
  if (qp_ != nullptr && space_ == PortSpace::tcp) wiring_of(*qp_).take_over();
}

void SoftId::withdraw_memory() {
  if (qp_ != nullptr && space_ == PortSpace::tcp) wiring_of(*qp_).withdraw_memory();
}

bool SoftId::has_waiting(bool (*is_wanted)(std::uint32_t)) const {
  return qp_ != nullptr && space_ == PortSpace::tcp && wiring_of(*qp_).has_waiting(is_wanted);
}

}  // namespace ringsock::soft
