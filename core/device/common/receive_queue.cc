#include "core/device/common/receive_queue.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include "core/device/common/device_context.h"
#include "core/device/common/protection_domain.h"

namespace ringsock::soft {

std::uint32_t total_length(const ibv_sge* sges, std::size_t count) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count; ++i) total += sges[i].length;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(total, UINT32_MAX));
}

ReceiveQueue::ReceiveQueue(std::uint32_t capacity, std::uint32_t max_sge)
    : mask_(std::bit_ceil(std::max(capacity, 1U)) - 1), capacity_(capacity), max_sge_(max_sge) {}

ReceiveQueue::~ReceiveQueue() {
  delete[] slots_.load(std::memory_order_relaxed);
  delete[] sges_;
}

/// Makes slots for all receives, those that were only counted included. Returns false when there is no memory.
bool ReceiveQueue::make_slots() {
  // Not initialised, so that pages of a large queue are touched only when used.
  sges_ = new (std::nothrow) ibv_sge[std::size_t{mask_ + 1} * max_sge_];
  auto* const slots = sges_ != nullptr ? new (std::nothrow) Slot[mask_ + 1] : nullptr;
  if (slots == nullptr) {
    delete[] std::exchange(sges_, nullptr);
    return false;
  }
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  // The consumer may take some of these meanwhile.
  for (std::uint32_t i = head_.load(std::memory_order_acquire); i != tail; ++i) slots[i & mask_] = {id_, 0};
  slots_.store(slots, std::memory_order_release);
  return true;
}

int ReceiveQueue::post(const ibv_recv_wr& wr) {
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > max_sge_) return EINVAL;
  if (tail - head_.load(std::memory_order_acquire) >= capacity_) return ENOMEM;
  if (slots_.load(std::memory_order_relaxed) == nullptr && !make_slots()) return ENOMEM;
  const std::uint32_t slot = tail & mask_;
  slots_.load(std::memory_order_relaxed)[slot] = {wr.wr_id, static_cast<std::uint32_t>(wr.num_sge)};
  std::copy_n(wr.sg_list, wr.num_sge, sges_ + std::size_t{slot} * max_sge_);
  tail_.store(tail + 1, std::memory_order_release);
  return 0;
}

int ReceiveQueue::post_counted(std::uint64_t wr_id, std::uint32_t count) {
  if (slots_.load(std::memory_order_relaxed) == nullptr && !has_id_) set_id(wr_id);
  if (slots_.load(std::memory_order_relaxed) == nullptr && wr_id == id_) {
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    const std::uint32_t room = head_.load(std::memory_order_acquire) + capacity_ - tail;
    tail_.store(tail + std::min(count, room), std::memory_order_release);
    return count <= room ? 0 : ENOMEM;
  }
  ibv_recv_wr one{};
  one.wr_id = wr_id;
  int error = 0;
  for (; count != 0 && error == 0; --count) error = post(one);
  return error;
}

SharedReceiveQueue::SharedReceiveQueue(DeviceContext& device, ibv_pd& domain, const ibv_srq_attr& attr, void* srq_user)
    : ibv_srq{}, device_(device), receives_(attr.max_wr, attr.max_sge), attr_(attr) {
  ibv_srq::context = &device.context();
  ibv_srq::pd = &domain;
  srq_context = srq_user;
  attr_.srq_limit = 0;
  static_cast<ProtectionDomain&>(domain).add_child();
}

SharedReceiveQueue::~SharedReceiveQueue() {
  device_.async_events().forget(static_cast<ibv_srq*>(this));
  static_cast<ProtectionDomain*>(ibv_srq::pd)->drop_child();
}

int SharedReceiveQueue::post(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  std::lock_guard guard(lock_);
  for (; wr != nullptr; wr = wr->next) {
    if (const int error = receives_.post(*wr)) {
      *bad = wr;
      return error;
    }
  }
  return 0;
}

bool SharedReceiveQueue::take(PostedReceive& out, std::vector<ibv_sge>& sges) {
  std::lock_guard guard(lock_);
  if (receives_.empty()) return false;
  out = receives_.front();
  sges.assign(out.sges, out.sges + out.sge_count);
  out.sges = sges.data();
  receives_.pop();
  if (receives_.size() < attr_.srq_limit) {
    // One event per arming of the limit.
    attr_.srq_limit = 0;
    ibv_async_event event{};
    event.element.srq = this;
    event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
    device_.async_events().raise(event);
  }
  return true;
}

Status SharedReceiveQueue::modify(const ibv_srq_attr& attr, int mask) {
  std::lock_guard guard(lock_);
  if ((mask & ~IBV_SRQ_LIMIT) != 0) return Error{EINVAL, "modify_srq: only the limit can change"};
  if ((mask & IBV_SRQ_LIMIT) != 0) {
    if (attr.srq_limit > attr_.max_wr) return Error{EINVAL, "modify_srq: limit above the size"};
    attr_.srq_limit = attr.srq_limit;
  }
  return ok();
}

ibv_srq_attr SharedReceiveQueue::query() {
  std::lock_guard guard(lock_);
  return attr_;
}

}  // namespace ringsock::soft
