// Translates RDMA CM's events to those of a ConnectionId.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/log.h"
#include "core/device/rdma/rdma_id.h"

namespace ringsock::rdma {

using verbs::CmEvent;
using verbs::CmEventType;

namespace {

constexpr Error kNothing{EAGAIN, "rdma: no event"};

/// rdma_cm_event::status is a negative errno value, or a reject reason.
int error_of(const rdma_cm_event& raw, int otherwise) {
  return raw.status < 0 && raw.status > -4096 ? -raw.status : otherwise;
}

/// Copies the peer's parameters and private data. The length of the latter is claimed by the peer, or that of the
/// packet's padded field.
void copy_parameters(const rdma_cm_event& raw, std::size_t header_bytes, CmEvent& event) {
  const rdma_conn_param& from = raw.param.conn;
  if (from.private_data != nullptr && from.private_data_len > header_bytes) {
    event.private_data_bytes = std::min<std::size_t>(from.private_data_len - header_bytes, event.private_data.size());
    std::memcpy(event.private_data.data(), static_cast<const std::byte*>(from.private_data) + header_bytes,
                event.private_data_bytes);
  }
  event.parameters.responder_resources = from.responder_resources;
  event.parameters.initiator_depth = from.initiator_depth;
  event.parameters.flow_control = from.flow_control;
  event.parameters.retry_count = from.retry_count;
  event.parameters.rnr_retry_count = from.rnr_retry_count;
}

CmEvent failure(CmEventType type, int error) {
  CmEvent event;
  event.type = type;
  event.status = error;
  return event;
}

/// @param header_bytes length of the header before the private data
CmEvent with_parameters(CmEventType type, const rdma_cm_event& raw, std::size_t header_bytes = 0) {
  CmEvent event;
  event.type = type;
  copy_parameters(raw, header_bytes, event);
  return event;
}

CmEvent plain(CmEventType type) { return failure(type, 0); }

CmEvent rejected(const rdma_cm_event& raw) {
  log_info("rdma: rejected, reason %d", raw.status);
  CmEvent event = with_parameters(CmEventType::rejected, raw);
  event.status = ECONNREFUSED;
  return event;
}

}  // namespace

Result<CmEvent> RdmaId::next_event() {
  if (const int error = device_error_.exchange(0, std::memory_order_acq_rel); error != 0) {
    if (!std::exchange(ended_, true)) return failure(CmEventType::connect_error, error);
  }
  if (listening_ && !spare_channel_) {
    // Made before the request is taken: without a channel its client stays in the kernel's queue.
    auto channel = EventChannel::create(calls());
    if (!channel) return channel.error();
    spare_channel_ = *std::move(channel);
  }
  // Some events are ignored. A few are handled at a time, so that many of them do not hold up the caller.
  for (int looked_at = 0; looked_at < 16; ++looked_at) {
    rdma_cm_event* raw = nullptr;
    if (calls().get_cm_event(channel_.get(), &raw) != 0) return kNothing;
    auto event = take(*raw);
    if (event || event.error().code != EAGAIN) return event;
  }
  return kNothing;
}

/// Error: EAGAIN for an event that is ignored.
Result<CmEvent> RdmaId::translate(const rdma_cm_event& raw) const {
  switch (raw.event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      return with_parameters(CmEventType::connect_request, raw, request_header_bytes());
    case RDMA_CM_EVENT_ADDR_RESOLVED: return plain(CmEventType::addr_resolved);
    case RDMA_CM_EVENT_ADDR_ERROR: return failure(CmEventType::addr_error, error_of(raw, EHOSTUNREACH));
    case RDMA_CM_EVENT_ROUTE_RESOLVED: return plain(CmEventType::route_resolved);
    case RDMA_CM_EVENT_ROUTE_ERROR: return failure(CmEventType::route_error, error_of(raw, EHOSTUNREACH));
    case RDMA_CM_EVENT_CONNECT_ERROR: return failure(CmEventType::connect_error, error_of(raw, ECONNABORTED));
    case RDMA_CM_EVENT_UNREACHABLE: return failure(CmEventType::unreachable, error_of(raw, ETIMEDOUT));
    case RDMA_CM_EVENT_REJECTED: return rejected(raw);
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
    case RDMA_CM_EVENT_ESTABLISHED: return with_parameters(CmEventType::established, raw);
    case RDMA_CM_EVENT_DISCONNECTED: return plain(CmEventType::disconnected);
    case RDMA_CM_EVENT_DEVICE_REMOVAL: return failure(CmEventType::device_removal, ENETDOWN);
    default: return kNothing;
  }
}

/// Acknowledges `raw`, which is not valid afterwards. It is acknowledged first, because handling it may require that no
/// event is unacknowledged.
Result<CmEvent> RdmaId::take(rdma_cm_event& raw) {
  auto event = translate(raw);
  const rdma_cm_event_type type = raw.event;
  rdma_cm_id* const id = raw.id;
  calls().ack_cm_event(&raw);
  if (!event) return event;
  switch (type) {
    case RDMA_CM_EVENT_CONNECT_REQUEST: return on_request(*std::move(event), id);
    case RDMA_CM_EVENT_ADDR_RESOLVED: return on_address(*std::move(event));
    case RDMA_CM_EVENT_CONNECT_RESPONSE: return on_response(*std::move(event));
    case RDMA_CM_EVENT_ESTABLISHED: return on_established(*std::move(event));
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL: return on_disconnected(*std::move(event));
    default: return event;
  }
}

Result<CmEvent> RdmaId::on_request(CmEvent event, rdma_cm_id* id) {
  event.request = adopt_request(id);
  if (!event.request) return kNothing;
  return event;
}

Result<CmEvent> RdmaId::on_address(CmEvent event) {
  if (Status learned = learn_device(); !learned) return failure(CmEventType::addr_error, learned.error().code);
  return event;
}

/// Returns null when the request was refused.
std::unique_ptr<RdmaId> RdmaId::adopt_request(rdma_cm_id* id) {
  if (!listening_ || calls().migrate_id(id, spare_channel_.get()) != 0) {
    log_info("rdma: a request is refused: %s", std::strerror(errno));
    calls().destroy_id(id);
    return nullptr;
  }
  std::unique_ptr<RdmaId> request(new RdmaId(devices_, *device_, std::move(spare_channel_), id));
  spare_channel_ = {};
  if (Status learned = request->learn_device(); !learned) {
    log_info("rdma: a request is refused: %s: %s", learned.error().where, std::strerror(learned.error().code));
    return nullptr;
  }
  request->options_.shorten_ack_timeout();
  return request;
}

/// librdmacm does not manage the queue pair, so it leaves the rest of the handshake to this library.
Result<CmEvent> RdmaId::on_response(CmEvent event) {
  if (qp_.get() == nullptr || established_) return kNothing;
  Status ready = qp_.to_ready(nullptr);
  if (ready) ready = call_failed_or_ok(calls().establish(id_), "rdma_establish");
  if (!ready) {
    calls().disconnect(id_);
    return failure(CmEventType::connect_error, ready.error().code);
  }
  established_ = true;
  return event;
}

Result<CmEvent> RdmaId::on_established(CmEvent event) {
  if (std::exchange(established_, true)) return kNothing;
  return event;
}

Result<CmEvent> RdmaId::on_disconnected(CmEvent event) {
  if (std::exchange(ended_, true)) return kNothing;
  // Completes the posted requests, which also wakes threads that wait for the completion queue.
  qp_.to_error();
  if (event.type == CmEventType::disconnected) calls().disconnect(id_);  // the peer waits for this answer
  return event;
}

// -- reports of the device, on the thread that takes its events ------------------------------------

void RdmaId::queue_pair_failed(ibv_qp& qp, int error) {
  // Stored before the flush, so that a thread that it wakes finds the reason.
  device_error_.store(error, std::memory_order_release);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  calls().modify_qp(&qp, &attr, IBV_QP_STATE);
  // Tells the peer. The resulting event here wakes threads that wait for events, which a dead device would not do.
  // Several threads may call librdmacm's functions.
  calls().disconnect(id_);
}

void RdmaId::peer_has_sent() { calls().notify(id_, IBV_EVENT_COMM_EST); }

}  // namespace ringsock::rdma
