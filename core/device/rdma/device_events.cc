#include "core/device/rdma/device_events.h"

#include <cerrno>

#include "core/base/log.h"

namespace ringsock::rdma {

void AsyncEvents::enter(ibv_qp& qp, QueuePairOwner& owner) {
  const std::lock_guard guard(lock_);
  owners_.insert_or_assign(&qp, &owner);
}

void AsyncEvents::leave(ibv_qp* qp, const QueuePairOwner* owner) {
  const std::lock_guard guard(lock_);
  const auto found = owners_.find(qp);
  if (found != owners_.end() && (owner == nullptr || found->second == owner)) owners_.erase(found);
}

bool AsyncEvents::take_all() {
  for (;;) {
    ibv_async_event event{};
    if (calls_.get_async_event(&context_, &event) != 0) break;
    // The event is handled before it is acknowledged: until then its object cannot be destroyed.
    handle(event);
    calls_.ack_async_event(&event);
  }
  if (errno == EAGAIN || errno == EINTR) return true;
  fail_device();
  return false;
}

void AsyncEvents::handle(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL: return fail_all(EIO, [&](const ibv_qp& qp) { return &qp == event.element.qp; });
    // The peer made a request that is not permitted.
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return fail_all(ECONNRESET, [&](const ibv_qp& qp) { return &qp == event.element.qp; });
    case IBV_EVENT_CQ_ERR:
      return fail_all(
          EIO, [&](const ibv_qp& qp) { return qp.send_cq == event.element.cq || qp.recv_cq == event.element.cq; });
    case IBV_EVENT_SRQ_ERR: return fail_all(EIO, [&](const ibv_qp& qp) { return qp.srq == event.element.srq; });
    case IBV_EVENT_DEVICE_FATAL: return fail_device();
    case IBV_EVENT_COMM_EST: {
      const std::lock_guard guard(lock_);
      if (const auto found = owners_.find(event.element.qp); found != owners_.end()) found->second->peer_has_sent();
      return;
    }
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
      log_info("RDMA device %s: port %d is %s", context_.device->name, event.element.port_num,
               event.event_type == IBV_EVENT_PORT_ACTIVE ? "active" : "down");
      return;
    // Events of a shared receive queue, of path migration, or of tables that librdmacm reads itself end no connection.
    default: log_debug("RDMA device %s: event %d", context_.device->name, static_cast<int>(event.event_type));
  }
}

template <class Predicate>
void AsyncEvents::fail_all(int error, Predicate concerns) {
  const std::lock_guard guard(lock_);
  for (const auto& [qp, owner] : owners_) {
    if (concerns(*qp)) owner->queue_pair_failed(*qp, error);
  }
}

void AsyncEvents::fail_device() {
  if (device_failed_.exchange(true, std::memory_order_acq_rel)) return;
  log_warn("RDMA device %s has failed or was removed: its connections end", context_.device->name);
  // The connection manager reports the same error for a device that is removed.
  fail_all(ENETDOWN, [](const ibv_qp&) { return true; });
}

}  // namespace ringsock::rdma
