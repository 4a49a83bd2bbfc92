#include "core/device/rdma/rdma_id.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/log.h"
#include "core/device/rdma/path_data.h"
#include "core/verbs/pages.h"

namespace ringsock::rdma {

using verbs::CmEvent;
using verbs::CmEventType;
using verbs::ConnectionParameters;
using verbs::ConnectionQp;

namespace {

/// The time after which a peer that found no posted receive tries again: InfiniBand's code for 0.64 ms. The kernel uses
/// 0, which means 655 ms.
constexpr std::uint8_t kMinRnrTimer = 12;
/// The time to wait for an acknowledgement before sending again: 4.096 us << 16, 268 ms. Newer kernels use it on
/// Ethernet; older ones wait four times as long.
constexpr std::uint8_t kAckTimeout = 16;
/// Soft-RoCE treats 7, the largest value, as unlimited.
constexpr std::uint8_t kMostRetries = 6;

int to_milliseconds(Nanos time) {
  return static_cast<int>(
      std::clamp<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(time).count(), 1, 1'000'000));
}

SocketAddress from_storage(const sockaddr_storage& storage) {
  auto address = SocketAddress::from_rdma(reinterpret_cast<const sockaddr*>(&storage), sizeof storage);
  return address ? *address : SocketAddress();
}

}  // namespace

Result<std::unique_ptr<verbs::ConnectionId>> RdmaId::create(std::shared_ptr<RdmaDevices> devices, RdmaDevice& front,
                                                            verbs::PortSpace space) {
  if (space != verbs::PortSpace::tcp) return Error{EOPNOTSUPP, "rdma: datagrams"};
  auto channel = EventChannel::create(devices->calls());
  if (!channel) return channel.error();
  rdma_cm_id* id = nullptr;
  if (devices->calls().create_id(channel->get(), &id, nullptr, RDMA_PS_TCP) != 0) {
    return Error::last("rdma_create_id");
  }
  return std::unique_ptr<verbs::ConnectionId>(new RdmaId(std::move(devices), front, *std::move(channel), id));
}

RdmaId::RdmaId(std::shared_ptr<RdmaDevices> devices, RdmaDevice& device, EventChannel channel, rdma_cm_id* id)
    : devices_(std::move(devices)), device_(&device), channel_(std::move(channel)), id_(id), owner_(::getpid()) {}

RdmaId::~RdmaId() {
  if (qp_ != nullptr) device_->forget_owner(qp_, *this);
  // In a forked child the kernel's id belongs to the parent, and librdmacm would destroy it through the shared
  // descriptor.
  if (!abandoned_ && ::getpid() == owner_) calls().destroy_id(id_);
}

Status RdmaId::call_failed_or_ok(int result, const char* where) const {
  return result == 0 ? ok() : Status(Error::last(where));
}

void RdmaId::set_option(int name, void* value, std::size_t length) {
  // Old kernels do not have every option; the connection works without it.
  if (calls().set_option(id_, RDMA_OPTION_ID, name, value, length) != 0) log_debug("rdma_set_option %d refused", name);
}

void RdmaId::shorten_ack_timeout() {
  std::uint8_t timeout = kAckTimeout;
  set_option(RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
}

void RdmaId::prepare_binding() {
  if (std::exchange(options_set_, true)) return;
  int on = 1;
  if (reuse_address_) set_option(RDMA_OPTION_ID_REUSEADDR, &on, sizeof on);
  int v6_only = v6_only_ ? 1 : 0;
  set_option(RDMA_OPTION_ID_AFONLY, &v6_only, sizeof v6_only);
  shorten_ack_timeout();
}

Status RdmaId::bind(const SocketAddress& address) {
  if (address.is_unspecified()) return Error{EAFNOSUPPORT, "bind: family"};
  prepare_binding();
  return call_failed_or_ok(calls().bind_addr(id_, const_cast<sockaddr*>(address.get())), "rdma_bind_addr");
}

Status RdmaId::listen(int backlog) {
  Status listening = call_failed_or_ok(calls().listen(id_, backlog), "rdma_listen");
  if (listening) listening_ = true;
  return listening;
}

Status RdmaId::resolve_addr(const SocketAddress& destination, Nanos timeout) {
  if (destination.is_unspecified()) return Error{EAFNOSUPPORT, "resolve_addr: family"};
  prepare_binding();
  return call_failed_or_ok(
      calls().resolve_addr(id_, nullptr, const_cast<sockaddr*>(destination.get()), to_milliseconds(timeout)),
      "rdma_resolve_addr");
}

Status RdmaId::resolve_route(Nanos timeout) {
  if (!route_.empty()) {
    // The kernel then reports the route as resolved.
    return call_failed_or_ok(calls().set_option(id_, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, route_.data(), route_.size()),
                             "rdma_set_option: path");
  }
  return call_failed_or_ok(calls().resolve_route(id_, to_milliseconds(timeout)), "rdma_resolve_route");
}

std::vector<std::byte> RdmaId::route() const {
  const rdma_route& route = id_->route;
  if (route.path_rec == nullptr || route.num_paths <= 0) return {};
  return path_data_of({route.path_rec, static_cast<std::size_t>(route.num_paths)});
}

Status RdmaId::learn_device() {
  if (id_->verbs == nullptr) return Error{ENODEV, "rdma: no device for the address"};
  auto device = devices_->device_of(*id_->verbs);
  if (!device) return device.error();
  device_ = *device;
  return ok();
}

// -- the queue pair --------------------------------------------------------------------------------

Result<ConnectionQp> RdmaId::create_qp(ibv_pd& pd, ibv_qp_init_attr& attr, verbs::ReceiveBytes receive) {
  if (qp_ != nullptr) return Error{EINVAL, "create_qp: there is one"};
  ConnectionQp out;
  auto qp = device_->create_qp(pd, attr);
  if (!qp) return qp.error();
  if (receive.bytes > 0) {
    auto pages = verbs::Pages::allocate(receive.bytes);
    if (!pages) return pages.error();
    out.receive_memory = pages->bytes().first(receive.bytes);
    device_->keep_until_destroyed(**qp, *std::move(pages));
  }
  out.qp = *std::move(qp);
  if (receive.bytes > 0) {
    auto mr =
        device_->reg_mr(pd, out.receive_memory.data(), receive.bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!mr) return mr.error();
    out.receive_mr = *std::move(mr);
  }
  qp_ = out.qp.get();
  if (Status ready = to_init(); !ready) {
    qp_ = nullptr;
    return ready.error();
  }
  device_->set_owner(*qp_, *this);
  return out;
}

Result<int> RdmaId::attributes_for(ibv_qp_state state, ibv_qp_attr& attr) {
  attr = {};
  attr.qp_state = state;
  int mask = 0;
  if (calls().init_qp_attr(id_, &attr, &mask) != 0) return Error::last("rdma_init_qp_attr");
  return mask;
}

Status RdmaId::to_init() {
  ibv_qp_attr attr;
  auto mask = attributes_for(IBV_QPS_INIT, attr);
  if (!mask) return mask.error();
  return device_->modify_qp(*qp_, attr, *mask);
}

Status RdmaId::to_ready(const ConnectionParameters* parameters) {
  // The kernel's iWARP connection manager moves the queue pair itself.
  if (!device_->has_write_with_immediate()) return ok();
  // Repeated, because the active side's first attributes were made without the connection and did not permit the peer
  // to write.
  if (Status again = to_init(); !again) return again;
  ibv_qp_attr attr;
  auto mask = attributes_for(IBV_QPS_RTR, attr);
  if (!mask) return mask.error();
  attr.min_rnr_timer = kMinRnrTimer;
  if (parameters != nullptr) attr.max_dest_rd_atomic = parameters->responder_resources;
  if (Status moved = device_->modify_qp(*qp_, attr, *mask | IBV_QP_MIN_RNR_TIMER); !moved) return moved;
  mask = attributes_for(IBV_QPS_RTS, attr);
  if (!mask) return mask.error();
  if (parameters != nullptr) attr.max_rd_atomic = parameters->initiator_depth;
  attr.retry_cnt = std::min(attr.retry_cnt, kMostRetries);
  return device_->modify_qp(*qp_, attr, *mask);
}

void RdmaId::to_error() {
  if (qp_ == nullptr || ::getpid() != owner_) return;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  // A removed device refuses, and flushes by itself.
  [[maybe_unused]] const Status moved = device_->modify_qp(*qp_, attr, IBV_QP_STATE);
}

// -- connecting ------------------------------------------------------------------------------------

rdma_conn_param RdmaId::request_parameters(const ConnectionParameters& parameters) const {
  rdma_conn_param out{};
  out.private_data = parameters.private_data.data();
  out.private_data_len = static_cast<std::uint8_t>(parameters.private_data.size());
  out.responder_resources = parameters.responder_resources;
  out.initiator_depth = parameters.initiator_depth;
  out.flow_control = parameters.flow_control;
  out.retry_count = parameters.retry_count;
  out.rnr_retry_count = parameters.rnr_retry_count;
  out.qp_num = qp_->qp_num;
  return out;
}

std::size_t RdmaId::request_header_bytes() const {
  // struct cma_hdr: version, IP version, port, two addresses of 16 bytes. With IP addresses the kernel adds it and
  // hides it from the peer. With AF_IB, whose packets also have it, the kernel does neither.
  constexpr std::size_t kHeaderBytes = 36;
  return id_->route.addr.src_addr.sa_family == AF_IB ? kHeaderBytes : 0;
}

Status RdmaId::connect(const ConnectionParameters& parameters) {
  if (qp_ == nullptr) return Error{EINVAL, "connect: no queue pair"};
  if (parameters.private_data.size() > verbs::kMaxRequestPrivateData) return Error{EINVAL, "connect: private data"};
  rdma_conn_param request = request_parameters(parameters);
  std::vector<std::byte> data(request_header_bytes());
  if (!data.empty()) {
    data.insert(data.end(), parameters.private_data.begin(), parameters.private_data.end());
    request.private_data = data.data();
    request.private_data_len = static_cast<std::uint8_t>(data.size());
  }
  // iWARP's connection set-up may begin with a READ of zero bytes (RFC 6581).
  if (!device_->has_write_with_immediate())
    request.initiator_depth = std::max<std::uint8_t>(request.initiator_depth, 1);
  return call_failed_or_ok(calls().connect(id_, &request), "rdma_connect");
}

Status RdmaId::accept(const ConnectionParameters& parameters) {
  if (qp_ == nullptr) return Error{EINVAL, "accept: no queue pair"};
  if (parameters.private_data.size() > verbs::kMaxReplyPrivateData) return Error{EINVAL, "accept: private data"};
  ConnectionParameters bounded = parameters;
  const auto attr = device_->query_device();
  if (!attr) return attr.error();
  // The peer may ask for more than the device has.
  const auto most = [](int limit) { return static_cast<std::uint8_t>(std::clamp(limit, 0, 255)); };
  bounded.responder_resources = std::min(bounded.responder_resources, most(attr->max_qp_rd_atom));
  bounded.initiator_depth = std::min(bounded.initiator_depth, most(attr->max_qp_init_rd_atom));
  if (Status ready = to_ready(&bounded); !ready) return ready;
  rdma_conn_param reply = request_parameters(bounded);
  return call_failed_or_ok(calls().accept(id_, &reply), "rdma_accept");
}

Status RdmaId::reject(std::span<const std::byte> private_data) {
  if (private_data.size() > verbs::kMaxRejectPrivateData) return Error{EINVAL, "reject: private data"};
  return call_failed_or_ok(calls().reject(id_, private_data.data(), static_cast<std::uint8_t>(private_data.size())),
                           "rdma_reject");
}

Status RdmaId::disconnect() {
  to_error();
  if (ended_) return ok();
  // The call fails when there is no connection, which needs no report.
  calls().disconnect(id_);
  return ok();
}

SocketAddress RdmaId::local_address() const { return from_storage(id_->route.addr.src_storage); }

SocketAddress RdmaId::peer_address() const { return from_storage(id_->route.addr.dst_storage); }

}  // namespace ringsock::rdma
