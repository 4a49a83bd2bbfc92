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
    : devices_(std::move(devices)),
      device_(&device),
      channel_(std::move(channel)),
      id_(id),
      owner_(::getpid()),
      options_(devices_->calls(), id),
      qp_(devices_->calls(), id) {}

RdmaId::~RdmaId() {
  // First, because a report uses the id.
  qp_.leave();
  // In a forked child the kernel's id belongs to the parent, and librdmacm would destroy it through the shared
  // descriptor.
  if (!abandoned_ && ::getpid() == owner_) calls().destroy_id(id_);
}

Status RdmaId::call_failed_or_ok(int result, const char* where) const {
  return result == 0 ? ok() : Status(Error::last(where));
}

Status RdmaId::bind(const SocketAddress& address) {
  if (address.is_unspecified()) return Error{EAFNOSUPPORT, "bind: family"};
  options_.set_once();
  return call_failed_or_ok(calls().bind_addr(id_, const_cast<sockaddr*>(address.get())), "rdma_bind_addr");
}

Status RdmaId::listen(int backlog) {
  Status listening = call_failed_or_ok(calls().listen(id_, backlog), "rdma_listen");
  if (listening) listening_ = true;
  return listening;
}

Status RdmaId::resolve_addr(const SocketAddress& destination, Nanos timeout) {
  if (destination.is_unspecified()) return Error{EAFNOSUPPORT, "resolve_addr: family"};
  options_.set_once();
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
  if (qp_.get() != nullptr) return Error{EINVAL, "create_qp: there is one"};
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
  if (Status used = qp_.use(*out.qp, *device_, *this); !used) return used.error();
  return out;
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
  out.qp_num = qp_.get()->qp_num;
  return out;
}

std::size_t RdmaId::request_header_bytes() const {
  // struct cma_hdr: version, IP version, port, two addresses of 16 bytes. With IP addresses the kernel adds it and
  // hides it from the peer. With AF_IB, whose packets also have it, the kernel does neither.
  constexpr std::size_t kHeaderBytes = 36;
  return id_->route.addr.src_addr.sa_family == AF_IB ? kHeaderBytes : 0;
}

Status RdmaId::connect(const ConnectionParameters& parameters) {
  if (qp_.get() == nullptr) return Error{EINVAL, "connect: no queue pair"};
  if (parameters.private_data.size() > verbs::kMaxRequestPrivateData) return Error{EINVAL, "connect: private data"};
  rdma_conn_param request = request_parameters(parameters);
  std::vector<std::byte> data(request_header_bytes());
  if (!data.empty()) {
    data.insert(data.end(), parameters.private_data.begin(), parameters.private_data.end());
    request.private_data = data.data();
    request.private_data_len = static_cast<std::uint8_t>(data.size());
  }
  // iWARP's connection set-up may begin with a READ of zero bytes (RFC 6581).
  if (!device_->traits().has_write_with_immediate)
    request.initiator_depth = std::max<std::uint8_t>(request.initiator_depth, 1);
  return call_failed_or_ok(calls().connect(id_, &request), "rdma_connect");
}

Status RdmaId::accept(const ConnectionParameters& parameters) {
  if (qp_.get() == nullptr) return Error{EINVAL, "accept: no queue pair"};
  if (parameters.private_data.size() > verbs::kMaxReplyPrivateData) return Error{EINVAL, "accept: private data"};
  ConnectionParameters bounded = parameters;
  const auto attr = device_->query_device();
  if (!attr) return attr.error();
  // The peer may ask for more than the device has.
  const auto most = [](int limit) { return static_cast<std::uint8_t>(std::clamp(limit, 0, 255)); };
  bounded.responder_resources = std::min(bounded.responder_resources, most(attr->max_qp_rd_atom));
  bounded.initiator_depth = std::min(bounded.initiator_depth, most(attr->max_qp_init_rd_atom));
  if (Status ready = qp_.to_ready(&bounded); !ready) return ready;
  rdma_conn_param reply = request_parameters(bounded);
  return call_failed_or_ok(calls().accept(id_, &reply), "rdma_accept");
}

Status RdmaId::reject(std::span<const std::byte> private_data) {
  if (private_data.size() > verbs::kMaxRejectPrivateData) return Error{EINVAL, "reject: private data"};
  return call_failed_or_ok(calls().reject(id_, private_data.data(), static_cast<std::uint8_t>(private_data.size())),
                           "rdma_reject");
}

Status RdmaId::disconnect() {
  qp_.to_error();
  if (ended_) return ok();
  // The call fails when there is no connection, which needs no report.
  calls().disconnect(id_);
  return ok();
}

SocketAddress RdmaId::local_address() const { return from_storage(id_->route.addr.src_storage); }

SocketAddress RdmaId::peer_address() const { return from_storage(id_->route.addr.dst_storage); }

}  // namespace ringsock::rdma
