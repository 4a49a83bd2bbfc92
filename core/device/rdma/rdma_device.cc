#include "core/device/rdma/rdma_device.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "core/base/log.h"
#include "core/base/notice.h"
#include "core/device/rdma/event_channel.h"
#include "core/device/rdma/packet_port.h"
#include "core/device/rdma/rdma_devices.h"
#include "core/device/rdma/rdma_id.h"
#include "core/device/rdma/rdma_ud_extensions.h"

namespace ringsock::rdma {

namespace {

/// The largest request for inline data, which the device may reduce. Longer messages do not gain by it on any device.
constexpr std::uint32_t kMaxInlineBytes = 1024;

Error from_result(int result, const char* where) { return {result > 0 ? result : errno, where}; }

Status to_status(int result, const char* where) { return result == 0 ? ok() : Status(from_result(result, where)); }

/// Explains once the most frequent configuration mistake with RDMA.
void explain_locked_memory(std::size_t bytes) {
  if (!is_first(Notice::locked_memory)) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return;
  log_warn(
      "RDMA: no room to register %zu KiB of memory: RLIMIT_MEMLOCK is %llu KiB in all (ulimit -l); see rsdevices(1)",
      bytes / 1024, static_cast<unsigned long long>(limit.rlim_cur / 1024));
}

bool is_software_of_kernel(const ibv_device_attr& attr) {
  // The numbers that ibv_devinfo(1) shows.
  constexpr std::uint32_t kSoftRoceVendor = 0xffffff;
  constexpr std::uint32_t kSoftIwarpVendor = 0x626d74;
  return attr.vendor_id == kSoftRoceVendor || attr.vendor_id == kSoftIwarpVendor;
}

verbs::DeviceTraits traits_of(const ibv_device& device, const ibv_device_attr& attr) {
  verbs::DeviceTraits out;
  out.max_inline_data = kMaxInlineBytes;
  out.has_write_with_immediate = device.transport_type != IBV_TRANSPORT_IWARP;
  out.works_in_background = true;
  out.works_on_our_cpus = is_software_of_kernel(attr);
  out.survives_fork = false;
  return out;
}

}  // namespace

// -- the device ------------------------------------------------------------------------------------

Result<std::unique_ptr<RdmaDevice>> RdmaDevice::create(std::shared_ptr<RdmaDevices> devices,
                                                       std::shared_ptr<OpenContext> context) {
  ibv_device_attr attr{};
  if (const int error = devices->calls().query_device(&context->get(), &attr); error != 0) {
    return from_result(error, "ibv_query_device");
  }
  return std::unique_ptr<RdmaDevice>(new RdmaDevice(std::move(devices), std::move(context), attr));
}

RdmaDevice::RdmaDevice(std::shared_ptr<RdmaDevices> devices, std::shared_ptr<OpenContext> context,
                       const ibv_device_attr& attr)
    : Device(traits_of(*context->get().device, attr), std::make_unique<verbs::RcExtensions>(),
             std::make_unique<RdmaUdExtensions>(devices)),
      devices_(std::move(devices)),
      context_(std::move(context)),
      attr_(attr),
      calls_(devices_->calls()) {}

Result<ibv_port_attr> RdmaDevice::query_port(std::uint8_t port) {
  ibv_port_attr attr{};
  if (const int error = calls_.query_port(&context(), port, &attr); error != 0) {
    return from_result(error, "ibv_query_port");
  }
  return attr;
}

Result<verbs::Pd> RdmaDevice::alloc_pd() {
  ibv_pd* const pd = calls_.alloc_pd(&context());
  if (pd == nullptr) return Error::last("ibv_alloc_pd");
  return verbs::Pd(*this, pd);
}

Result<verbs::Mr> RdmaDevice::reg_mr(ibv_pd& pd, void* address, std::size_t length, int access) {
  ibv_mr* const mr = calls_.reg_mr(&pd, address, length, access);
  if (mr == nullptr) {
    const Error error = Error::last("ibv_reg_mr");
    if (error.code == ENOMEM) explain_locked_memory(length);
    return error;
  }
  return verbs::Mr(*this, mr);
}

Result<verbs::CompChannel> RdmaDevice::create_comp_channel() {
  ibv_comp_channel* const channel = calls_.create_comp_channel(&context());
  if (channel == nullptr) return Error::last("ibv_create_comp_channel");
  adopt_descriptor(channel->fd);
  return verbs::CompChannel(*this, channel);
}

Result<verbs::Cq> RdmaDevice::create_cq(int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector) {
  if (ibv_cq* const timed = create_timed_cq(cqe, cq_context, channel, comp_vector)) return verbs::Cq(*this, timed);
  ibv_cq* const cq = calls_.create_cq(&context(), cqe, cq_context, channel, comp_vector);
  if (cq == nullptr) return Error::last("ibv_create_cq");
  return verbs::Cq(*this, cq);
}

/// Makes a completion queue with times. Returns null where the device, or this use of it, has none.
ibv_cq* RdmaDevice::create_timed_cq(int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector) {
  if (!tells_times_) return nullptr;
  ibv_cq_init_attr_ex attr{};
  attr.cqe = static_cast<std::uint32_t>(cqe);
  attr.cq_context = cq_context;
  attr.channel = channel;
  attr.comp_vector = static_cast<std::uint32_t>(comp_vector);
  attr.wc_flags = std::uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  ibv_cq_ex* const made = calls_.create_cq_ex(&context(), &attr);
  if (made == nullptr) return nullptr;
  ibv_cq* const cq = ibv_cq_ex_to_cq(made);
  const std::lock_guard guard(memory_lock_);
  timed_.insert(cq);
  return cq;
}

ibv_cq_ex* RdmaDevice::with_wallclock(ibv_cq& cq) {
  const std::lock_guard guard(memory_lock_);
  return timed_.contains(&cq) ? reinterpret_cast<ibv_cq_ex*>(&cq) : nullptr;
}

Result<ibv_cq*> RdmaDevice::get_cq_event(ibv_comp_channel& channel) {
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  if (calls_.get_cq_event(&channel, &cq, &cq_context) != 0) return Error{EAGAIN, "ibv_get_cq_event"};
  return cq;
}

void RdmaDevice::ack_cq_events(ibv_cq& cq, unsigned int count) { calls_.ack_cq_events(&cq, count); }

Result<verbs::Srq> RdmaDevice::create_srq(ibv_pd& pd, ibv_srq_init_attr& attr) {
  ibv_srq* const srq = calls_.create_srq(&pd, &attr);
  if (srq == nullptr) return Error::last("ibv_create_srq");
  return verbs::Srq(*this, srq);
}

Status RdmaDevice::modify_srq(ibv_srq& srq, ibv_srq_attr& attr, int mask) {
  return to_status(calls_.modify_srq(&srq, &attr, mask), "ibv_modify_srq");
}

Status RdmaDevice::query_srq(ibv_srq& srq, ibv_srq_attr& attr) {
  return to_status(calls_.query_srq(&srq, &attr), "ibv_query_srq");
}

Result<verbs::Qp> RdmaDevice::create_qp(ibv_pd& pd, ibv_qp_init_attr& attr) {
  const ibv_qp_cap wanted = attr.cap;
  // No attribute tells how much inline data a device accepts, so it is tried.
  for (std::uint32_t inline_bytes = wanted.max_inline_data;; inline_bytes /= 2) {
    attr.cap = wanted;
    attr.cap.max_inline_data = inline_bytes;
    ibv_qp* const qp =
        attr.qp_type == IBV_QPT_RAW_PACKET ? make_packet_qp(calls_, pd, attr) : calls_.create_qp(&pd, &attr);
    if (qp != nullptr) return verbs::Qp(*this, qp);
    const Error error = Error::last("ibv_create_qp");
    const bool may_be_too_much = error.code == EINVAL || error.code == ENOMEM || error.code == EOPNOTSUPP;
    if (inline_bytes == 0 || !may_be_too_much) {
      attr.cap = wanted;
      return error;
    }
  }
}

Status RdmaDevice::modify_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask) {
  return to_status(calls_.modify_qp(&qp, &attr, mask), "ibv_modify_qp");
}

Status RdmaDevice::query_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask, ibv_qp_init_attr& init_attr) {
  return to_status(calls_.query_qp(&qp, &attr, mask, &init_attr), "ibv_query_qp");
}

Result<verbs::Ah> RdmaDevice::create_ah(ibv_pd& pd, ibv_ah_attr& attr) {
  ibv_ah* const ah = calls_.create_ah(&pd, &attr);
  if (ah == nullptr) return Error::last("ibv_create_ah");
  return verbs::Ah(*this, ah);
}

Result<ibv_async_event> RdmaDevice::get_async_event() {
  ibv_async_event event{};
  if (calls_.get_async_event(&context(), &event) != 0) return Error{EAGAIN, "ibv_get_async_event"};
  return event;
}

void RdmaDevice::ack_async_event(ibv_async_event& event) { calls_.ack_async_event(&event); }

Result<std::unique_ptr<verbs::ConnectionId>> RdmaDevice::create_id(verbs::PortSpace space) {
  return RdmaId::create(devices_, *this, space);
}

// -- the end of objects ----------------------------------------------------------------------------

template <class T>
int RdmaDevice::destroy(int (*call)(T*), T* object) {
  if (!context_->is_ours()) return 0;
  const int result = call(object);
  const int error = result < 0 ? errno : result;
  return error == EIO || error == ENODEV ? 0 : error;
}

int RdmaDevice::dealloc_pd(ibv_pd* pd) { return destroy(calls_.dealloc_pd, pd); }
int RdmaDevice::dereg_mr(ibv_mr* mr) { return destroy(calls_.dereg_mr, mr); }
int RdmaDevice::destroy_comp_channel(ibv_comp_channel* channel) {
  return destroy(calls_.destroy_comp_channel, channel);
}
int RdmaDevice::destroy_cq(ibv_cq* cq) {
  {
    const std::lock_guard guard(memory_lock_);
    timed_.erase(cq);
  }
  return destroy(calls_.destroy_cq, cq);
}
int RdmaDevice::destroy_srq(ibv_srq* srq) { return destroy(calls_.destroy_srq, srq); }
int RdmaDevice::destroy_ah(ibv_ah* ah) { return destroy(calls_.destroy_ah, ah); }

int RdmaDevice::destroy_qp(ibv_qp* qp) {
  if (context_->is_ours()) context_->events().leave(qp);
  const int error = destroy(calls_.destroy_qp, qp);
  const std::lock_guard guard(memory_lock_);
  queue_pair_memory_.erase(qp);
  return error;
}

void RdmaDevice::forget_owner(ibv_qp* qp, const QueuePairOwner& owner) {
  if (context_->is_ours()) context_->events().leave(qp, &owner);
}

void RdmaDevice::keep_until_destroyed(ibv_qp& qp, verbs::Pages pages) {
  const std::lock_guard guard(memory_lock_);
  queue_pair_memory_.insert_or_assign(&qp, std::move(pages));
}

}  // namespace ringsock::rdma
