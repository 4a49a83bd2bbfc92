#include "core/device/shm/cm/soft_id.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/base/refusals.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/memory/segment_cache.h"
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
      request_(incoming.request),
      peer_(incoming.peer),
      accepted_by_listening_process_(incoming.accepted_by_listening_process),
      peer_segment_(std::move(incoming.segment)),
      peer_memfd_(std::move(incoming.memfd)),
      inbox_(std::move(incoming.inbox)),
      link_(std::move(incoming.link)) {}

SoftId::~SoftId() { drop_link(); }

void SoftId::drop_link() {
  if (!link_) return;
  link_->set_manager(nullptr);
  // A client that died before it was accepted has no next connection.
  if (peer_segment_) {
    link_->drain();
    if (link_->peer_gone()) peer_segment_->forget_peer();
  }
  // While a queue pair also holds the link, the peer would not notice the close, so the link is shut down. Otherwise it
  // is only closed: a forked child may go on with its copy of the connection.
  if (link_.use_count() > 1) {
    link_->hang_up();
    dropped_link_ = link_;
  }
  link_.reset();
}

std::shared_ptr<Link> SoftId::link_with_descriptor() const { return link_ ? link_ : dropped_link_.lock(); }

void SoftId::share_port_with(int kernel_socket) { port_.share_with(kernel_socket); }

void SoftId::have_other_way(Nanos patience) {
  limits_.connect.total = std::min(limits_.connect.total, patience);
  unproven_ = Unproven::refuse;
  if (patience > Nanos::zero()) return;
  if (state_ == State::connecting) return fail_connect(ETIMEDOUT);
  looked_for_reply_at_ = 0;  // work_link() looks for the answer once more
  reply_deadline_ = Nanos::zero();
}

Connector& SoftId::connector() {
  if (!connector_) {
    connector_.emplace(space_, peer_address_, port_.take_named_socket(), limits_.connect, monotonic_now(), unproven_);
  }
  return *connector_;
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
  auto acceptor = Acceptor::open(port_.binding(), backlog, limits_.accept, shares ? kMaxSharingListeners : 1);
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
  auto source = choose_source(target);
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

/// Returns the bound address, or the one that the kernel chooses for this destination, with our port.
Result<SocketAddress> SoftId::choose_source(const SocketAddress& target) {
  if (Status unicast = check_unicast(target); !unicast) return unicast.error();
  if (Status local = check_local(target); !local) return local.error();
  const SocketAddress from = source_towards(target);
  if (!port_.is_bound()) {
    Status bound = port_.bind_ephemeral(space_, from);
    if (!bound) return explain_unreachable(bound.error());
    return port_.binding().address;
  }
  const PortBinding& bound = port_.binding();
  SocketAddress source = from;
  source.set_port(bound.address.port());
  if (overlap(bound, {space_, source, false})) return source;
  if (bound.address.family() != target.family()) return Error{ENETUNREACH, "resolve_addr: bound to the other family"};
  return bound.address;
}

Status SoftId::resolve_route(Nanos) {
  if (state_ != State::addr_resolved) return Error{EINVAL, "resolve_route: state"};
  state_ = State::route_resolved;
  due_.add(CmEventType::route_resolved);
  return ok();
}

/// On the active side the kernel names the process that listens, and within one user the one that answers, which may be
/// a worker of another user.
std::optional<uid_t> SoftId::other_user() const {
  if (!peer_.same_user) return peer_.uid;
  const auto sender = link_ && !is_accepting_ ? link_->sender() : std::nullopt;
  return !sender || is_own_uid(sender->uid) ? std::nullopt : std::optional(sender->uid);
}

Result<ConnectionQp> SoftId::create_qp(ibv_pd& pd, ibv_qp_init_attr& attr, verbs::ReceiveBytes receive) {
  if (qp_ != nullptr || (state_ != State::route_resolved && state_ != State::requested)) {
    return Error{EINVAL, "create_qp: state"};
  }
  auto out = space_ == PortSpace::tcp ? create_rc(pd, attr, receive) : create_ud(pd, attr);
  if (out) qp_ = out->qp.get();
  return out;
}

namespace {
std::uint64_t limit_for_peer(bool same_user, std::uint64_t own_bytes) {
  return same_user ? std::max(own_bytes, kMaxBytesOfOwnUser) : own_bytes + kMaxExtraBytes;
}

/// Returns the bytes of a peer's segment that count: all but quiet memory, which the peer cannot make us touch. The
/// peer's inbox is counted by itself, too, because the room for our own may overlap it.
std::uint64_t reachable_bytes(std::uint64_t bytes, const QueuePairOffer& offer, std::uint64_t own,
                              std::uint64_t own_quiet) {
  const std::uint64_t peers_quiet = std::min(quiet_bytes_of(offer), kMaxQuietBytes);
  const bool has_ours = offer.spare.bytes >= own / 2 + own_quiet;
  const std::uint64_t all = bytes - std::min(bytes, peers_quiet + (has_ours ? own_quiet : 0));
  const std::uint64_t inbox = std::min(bytes, offer.inbox.bytes);
  return std::max(all, inbox - std::min(inbox, peers_quiet) + own / 2);
}
}  // namespace

/// Charges the peer's memory, as far as it exceeds the needs of our own queue pair, to the budget of its user.
Status SoftId::charge_peer(std::uint64_t bytes, std::uint64_t own_bytes) {
  if (bytes > limit_for_peer(peer_.same_user, own_bytes)) {
    count_refusal(Refusal::segment_size);
    return Error{ENOMEM, "peer's memory: larger than needed"};
  }
  if (peer_.same_user || bytes <= own_bytes) return ok();
  auto charge = UserCharge::take(peer_.uid, bytes - own_bytes);
  if (!charge) return Error{ENOMEM, "peer's memory: more than its user may have"};
  charge_.emplace(*std::move(charge));
  return ok();
}

/// The memory is charged before it is mapped, because with mlockall(2) a mapping allocates its memory at once.
Result<std::shared_ptr<MappedSegment>> SoftId::map_peers(UniqueFd memfd, const MemoryName& name, OwnNeeds own,
                                                         std::optional<PeerProcess> maker) {
  const QueuePairOffer& offer = is_accepting_ ? request_.offer : reply_.offer;
  const auto bytes = check_peer_memfd(memfd.get(), name);
  if (!bytes) return bytes.error();
  Status charged = charge_peer(reachable_bytes(*bytes, offer, own.bytes, own.quiet), own.bytes);
  if (!charged) return charged.error();
  return segment_cache().map(std::move(memfd), name, *bytes, maker);
}

Status SoftId::take_requesters_memory(OwnNeeds own) {
  if (peer_segment_) {
    return charge_peer(reachable_bytes(peer_segment_->bytes(), request_.offer, own.bytes, own.quiet), own.bytes);
  }
  auto mapped = map_peers(std::move(peer_memfd_), request_.offer.memory, own, kept_for(peer_));
  if (!mapped) return mapped.error();
  peer_segment_ = *std::move(mapped);
  return ok();
}

Result<ConnectionQp> SoftId::create_rc(ibv_pd& pd, ibv_qp_init_attr& attr, verbs::ReceiveBytes receive) {
  if (state_ == State::requested) {
    const std::uint64_t own_bytes = own_segment_bytes(attr, {receive.bytes, receive.quiet});
    Status taken = take_requesters_memory({own_bytes, receive.quiet});
    if (!taken) return taken.error();
  }
  const SpareRoom spare{peer_segment_, request_.offer.spare};
  const bool has_spare = state_ == State::requested && spare.inbox.bytes != 0;
  if (state_ == State::route_resolved && !connected_early_) connect_early();
  auto made = create_rc_queue_pair(host_.context, pd, attr, {receive.bytes, receive.quiet},
                                   has_spare ? &spare : nullptr, segment_peer_);
  if (!made) return made.error();
  ConnectionQp out;
  out.qp = verbs::Qp(host_.context.device(), made->qp);
  if (made->arena_mr != nullptr) {
    out.receive_mr = verbs::Mr(host_.context.device(), made->arena_mr);
    out.receive_memory = {static_cast<std::byte*>(made->arena), receive.bytes};
  }
  return out;
}

/// Joins the listener's backlog, if that works at once, so that the queue pair can use a segment kept for its process.
/// Failures are left to connect().
void SoftId::connect_early() {
  auto connected = connector().attempt(monotonic_now());
  if (!connected) return;
  listener_ = kept_for(connected->peer);
  if (listener_) segment_peer_ = segment_cache().accepters_of(*listener_, offered_to(connected->peer));
  connected_early_ = *std::move(connected);
}

Result<ConnectionQp> SoftId::create_ud(ibv_pd& pd, ibv_qp_init_attr& attr) {
  if (attr.qp_type != IBV_QPT_UD) return Error{EINVAL, "create_qp: type"};
  auto made = host_.context.device().create_qp(pd, attr);
  if (!made) return made.error();
  // The queue pair is moved to INIT, as rdma_create_qp(3) does.
  ibv_qp_attr change{};
  change.qp_state = IBV_QPS_INIT;
  change.port_num = 1;
  change.qkey = kDefaultUdpQkey;
  Status moved =
      host_.context.device().modify_qp(**made, change, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  change.qp_state = IBV_QPS_RTR;
  if (moved) moved = host_.context.device().modify_qp(**made, change, IBV_QP_STATE);
  change.qp_state = IBV_QPS_RTS;
  if (moved) moved = host_.context.device().modify_qp(**made, change, IBV_QP_STATE | IBV_QP_SQ_PSN);
  if (!moved) return moved.error();
  ConnectionQp out;
  out.qp = std::move(*made);
  return out;
}

Status SoftId::connect(const ConnectionParameters& parameters) {
  if (state_ != State::route_resolved) return Error{EINVAL, "connect: state"};
  if (space_ == PortSpace::tcp && qp_ == nullptr) return Error{EINVAL, "connect: no queue pair"};
  Status taken = request_.private_data.assign(parameters.private_data, verbs::kMaxRequestPrivateData);
  if (!taken) return taken;
  request_.space = space_;
  request_.source = local_address_;
  request_.destination = peer_address_;
  request_.parameters = parameters;
  connector().start(monotonic_now());
  state_ = State::connecting;
  work_connect();
  return ok();
}

Status SoftId::send_request(Connector::Connected connected) {
  peer_ = connected.peer;
  inbox_ = std::make_unique<LinkInbox>();
  link_ = std::make_shared<Link>(std::move(connected.socket));
  if (peer_.same_user) {
    link_->trust_peer();
  } else {
    link_->set_stranger(peer_.uid);
  }
  link_->set_manager(inbox_.get());
  if (space_ == PortSpace::tcp) {
    RcWiring& wiring = wiring_of(*qp_);
    request_.offer = wiring.offer();
    inbox_->offer_memory(wiring.offer_memfd(), *link_);
  }
  link_->ask_for_sender();
  return link_->send(LinkPacket::request, encode_request(request_).view());
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
    inbox_->offer_memory(wiring.offer_memfd(), *link_);
    const pid_t pid = peer_.same_user ? peer_.pid : 0;
    Status attached = wiring.attach(request_.offer, peer_segment_, link_, {{peer_.pid, peer_.uid}, pid},
                                    request_.parameters.rnr_retry_count);
    if (!attached) return attached;
  } else {
    reply.offer.qp_num = qp_->qp_num;
    if (reply.parameters.qkey == 0) reply.parameters.qkey = kDefaultUdpQkey;
  }
  if (Status sent = link_->send(LinkPacket::reply, encode_reply(reply).view()); !sent) {
    return Error{ECONNRESET, "accept: the peer has gone"};
  }
  peer_segment_.reset();
  if (space_ == PortSpace::udp) {
    // The exchange is complete, as with SIDR: datagrams need no connection, and this side gets no more packets.
    drop_link();
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
  drop_link();
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
  drop_link();
  state_ = State::closed;
  due_.add(CmEventType::disconnected);
  return ok();
}

void SoftId::abandon(bool give_away) {
  if (const auto link = link_with_descriptor()) link->abandon(give_away);
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

SocketAddress SoftId::local_address() const { return local_address_; }

}  // namespace ringsock::soft
