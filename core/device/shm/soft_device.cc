#include "core/device/shm/soft_device.h"

#include <sys/eventfd.h>

#include <cerrno>

#include "core/device/common/protection_domain.h"
#include "core/device/common/receive_queue.h"
#include "core/device/shm/cm/connector.h"
#include "core/device/shm/cm/soft_id.h"
#include "core/device/shm/memory/app_memory.h"
#include "core/device/shm/memory/guarded_copy.h"
#include "core/device/shm/names/connect_target.h"
#include "core/device/shm/names/port_name.h"
#include "core/device/shm/queue/completion_queue.h"
#include "core/device/shm/queue/data_path.h"
#include "core/device/shm/queue/queue_limits.h"
#include "core/device/shm/queue/queue_pair.h"
#include "core/device/shm/queue/reliable_queue_pair.h"
#include "core/device/shm/queue/soft_rc_extensions.h"
#include "core/device/shm/queue/soft_ud_extensions.h"
#include "core/device/shm/queue/ud_queue_pair.h"

namespace ringsock::soft {

namespace {

constexpr int kUnsupportedAccess = IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB;
constexpr int kNeedsLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

verbs::DeviceTraits traits_of(const SoftAbilities& abilities) {
  verbs::DeviceTraits out;
  out.max_inline_data = abilities.max_inline_data;
  out.wakes_through_connection = abilities.wakes_through_connection;
  out.has_write_with_immediate = abilities.write_with_immediate;
  out.survives_fork = abilities.survives_fork;
  out.is_embedded = true;
  return out;
}

QueuePair& ours(ibv_qp& qp) { return static_cast<QueuePair&>(qp); }
CompletionQueue& ours(ibv_cq& cq) { return static_cast<CompletionQueue&>(cq); }

}  // namespace

Result<std::unique_ptr<SoftDevice>> SoftDevice::open(SoftAbilities abilities) {
  UniqueFd async_fd;
  if (abilities.async_events) {
    async_fd = out_of_the_way(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
    if (!async_fd) return Error::last("soft device: eventfd");
  }
  return std::unique_ptr<SoftDevice>(new SoftDevice(std::move(async_fd), abilities));
}

SoftDevice::SoftDevice(UniqueFd async_fd, SoftAbilities abilities)
    : Device(traits_of(abilities), std::make_unique<SoftRcExtensions>(abilities.wakes_through_connection),
             std::make_unique<SoftUdExtensions>()),
      shared_(*this, kSoftDeviceName, std::move(async_fd)) {
  enter_data_path(context());
  AsymmetricBarrier::register_process();
}

SoftDevice::~SoftDevice() = default;

Result<ibv_device_attr> SoftDevice::query_device() {
  ibv_device_attr attr{};
  attr.max_mr_size = UINT64_MAX;
  attr.page_size_cap = kPageBytes;
  attr.max_qp = 1 << 20;
  attr.max_qp_wr = kMaxQueueEntries;
  attr.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN;
  attr.max_sge = kMaxSendSge;
  attr.max_sge_rd = kMaxSendSge;
  attr.max_cq = 1 << 20;
  attr.max_cqe = kMaxCqEntries;
  attr.max_mr = 1 << 20;
  attr.max_pd = 1 << 20;
  attr.max_qp_rd_atom = 255;
  attr.max_qp_init_rd_atom = 255;
  attr.max_res_rd_atom = 255;
  // The CPU executes them, so they are also atomic with respect to its own instructions.
  attr.atomic_cap = IBV_ATOMIC_GLOB;
  attr.max_ah = 1 << 20;
  attr.max_srq = 1 << 20;
  attr.max_srq_wr = kMaxQueueEntries;
  attr.max_srq_sge = kMaxReceiveSge;
  attr.max_pkeys = 1;
  attr.phys_port_cnt = 1;
  return attr;
}

Result<ibv_port_attr> SoftDevice::query_port(std::uint8_t port) {
  if (port != 1) return Error{EINVAL, "query_port"};
  ibv_port_attr attr{};
  attr.state = IBV_PORT_ACTIVE;
  attr.max_mtu = attr.active_mtu = IBV_MTU_4096;
  attr.gid_tbl_len = 1;
  attr.max_msg_sz = 1U << 31;
  attr.pkey_tbl_len = 1;
  attr.lid = 1;
  attr.max_vl_num = 1;
  attr.active_width = 2;   // 4X
  attr.active_speed = 32;  // EDR
  attr.phys_state = 5;     // link up
  attr.link_layer = IBV_LINK_LAYER_INFINIBAND;
  return attr;
}

Result<verbs::Pd> SoftDevice::alloc_pd() {
  auto* domain = new ProtectionDomain([](void* address, std::size_t length, bool share) {
    return std::unique_ptr<RegionMemory>(new AppMemory(address, length, share));
  });
  domain->context = &context();
  return verbs::Pd(*this, domain);
}

int SoftDevice::dealloc_pd(ibv_pd* pd) {
  auto* domain = static_cast<ProtectionDomain*>(pd);
  if (domain->in_use()) return EBUSY;
  delete domain;
  return 0;
}

Result<verbs::Mr> SoftDevice::reg_mr(ibv_pd& pd, void* address, std::size_t length, int access) {
  if ((access & kUnsupportedAccess) != 0) return Error{EOPNOTSUPP, "reg_mr: access"};
  if ((access & kNeedsLocalWrite) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0)
    return Error{EINVAL, "reg_mr: access"};
  if (reinterpret_cast<std::uint64_t>(address) + length < length) return Error{EINVAL, "reg_mr: length"};
  // Fails as the kernel does for a device. Memory that only this process accesses by the key is not checked.
  if ((access & kNeedsLocalWrite) != 0 && length != 0 &&
      !is_mapped_writable(reinterpret_cast<std::uint64_t>(address), length))
    return Error{EFAULT, "reg_mr: not writable memory of this process"};
  auto region = static_cast<ProtectionDomain&>(pd).add_region(shared_.keys(), address, length, access, nullptr);
  if (!region) return region.error();
  return verbs::Mr(*this, *region);
}

int SoftDevice::dereg_mr(ibv_mr* mr) {
  static_cast<ProtectionDomain*>(mr->pd)->remove_region(shared_.keys(), static_cast<MemoryRegion*>(mr));
  return 0;
}

Result<verbs::CompChannel> SoftDevice::create_comp_channel() {
  auto channel = CompletionChannel::create(context());
  if (!channel) return channel.error();
  return verbs::CompChannel(*this, std::move(*channel).release());
}

int SoftDevice::destroy_comp_channel(ibv_comp_channel* channel) {
  if (channel->refcnt != 0) return EBUSY;
  delete static_cast<CompletionChannel*>(channel);
  return 0;
}

Result<verbs::Cq> SoftDevice::create_cq(int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector) {
  if (cqe < 1 || cqe > kMaxCqEntries || comp_vector != 0) return Error{EINVAL, "create_cq"};
  if (channel != nullptr) __atomic_fetch_add(&channel->refcnt, 1, __ATOMIC_RELAXED);
  return verbs::Cq(*this, new CompletionQueue(shared_, cqe, cq_context, static_cast<CompletionChannel*>(channel)));
}

int SoftDevice::destroy_cq(ibv_cq* cq) {
  CompletionQueue& queue = ours(*cq);
  if (queue.in_use()) return EBUSY;
  queue.wait_for_acks();
  shared_.async_events().forget(cq);
  if (ibv_comp_channel* channel = cq->channel) __atomic_fetch_sub(&channel->refcnt, 1, __ATOMIC_RELAXED);
  delete &queue;
  return 0;
}

Result<ibv_cq*> SoftDevice::get_cq_event(ibv_comp_channel& channel) {
  auto cq = static_cast<CompletionChannel&>(channel).next_event();
  if (cq) ours(**cq).count_event_taken();
  return cq;
}

void SoftDevice::ack_cq_events(ibv_cq& cq, unsigned int count) { ours(cq).count_acks(count); }

void SoftDevice::arm(std::span<ibv_cq* const> cqs) {
  bool needs_barrier = false;
  for (ibv_cq* cq : cqs) needs_barrier |= ours(*cq).arm(ArmKind::any);
  if (needs_barrier) AsymmetricBarrier::heavy();
  for (ibv_cq* cq : cqs) ours(*cq).after_barrier();
}

Result<verbs::Srq> SoftDevice::create_srq(ibv_pd& pd, ibv_srq_init_attr& attr) {
  const ibv_srq_attr& wanted = attr.attr;
  if (wanted.max_wr == 0 || wanted.max_wr > kMaxQueueEntries || wanted.max_sge > kMaxReceiveSge) {
    return Error{EINVAL, "create_srq"};
  }
  return verbs::Srq(*this, new SharedReceiveQueue(shared_, pd, wanted, attr.srq_context));
}

Status SoftDevice::modify_srq(ibv_srq& srq, ibv_srq_attr& attr, int mask) {
  return static_cast<SharedReceiveQueue&>(srq).modify(attr, mask);
}

Status SoftDevice::query_srq(ibv_srq& srq, ibv_srq_attr& attr) {
  attr = static_cast<SharedReceiveQueue&>(srq).query();
  return ok();
}

int SoftDevice::destroy_srq(ibv_srq* srq) {
  auto* queue = static_cast<SharedReceiveQueue*>(srq);
  if (queue->in_use()) return EBUSY;
  delete queue;
  return 0;
}

Result<verbs::Qp> SoftDevice::create_qp(ibv_pd& pd, ibv_qp_init_attr& attr) {
  if (attr.qp_type == IBV_QPT_UD) {
    auto queue_pair = UdQueuePair::create(shared_, pd, attr);
    if (!queue_pair) return queue_pair.error();
    return verbs::Qp(*this, std::move(*queue_pair).release());
  }
  if (attr.qp_type != IBV_QPT_RC) return Error{EOPNOTSUPP, "create_qp: type"};
  auto queue_pair = ReliableQueuePair::create(shared_, pd, attr, 0, nullptr);
  if (!queue_pair) return queue_pair.error();
  return verbs::Qp(*this, std::move(*queue_pair).release());
}

Status SoftDevice::modify_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask) { return ours(qp).modify(attr, mask); }

Status SoftDevice::query_qp(ibv_qp& qp, ibv_qp_attr& attr, int, ibv_qp_init_attr& init_attr) {
  ours(qp).query(attr);
  init_attr = ours(qp).init_attr();
  return ok();
}

int SoftDevice::destroy_qp(ibv_qp* qp) {
  QueuePair& queue_pair = ours(*qp);
  if (queue_pair.has_memory_in_use()) return EBUSY;
  delete &queue_pair;
  return 0;
}

Result<verbs::Ah> SoftDevice::create_ah(ibv_pd& pd, ibv_ah_attr& attr) {
  if (attr.port_num != 1) return Error{EINVAL, "create_ah: port"};
  auto* handle = new AddressHandle(attr);
  handle->context = &context();
  handle->pd = &pd;
  static_cast<ProtectionDomain&>(pd).add_child();
  return verbs::Ah(*this, handle);
}

int SoftDevice::destroy_ah(ibv_ah* ah) {
  static_cast<ProtectionDomain*>(ah->pd)->drop_child();
  delete static_cast<AddressHandle*>(ah);
  return 0;
}

Result<ibv_async_event> SoftDevice::get_async_event() { return shared_.async_events().take(); }

void SoftDevice::ack_async_event(ibv_async_event& event) { shared_.async_events().acknowledge(event); }

bool SoftDevice::may_have_listener(verbs::PortSpace space, const SocketAddress& destination) {
  const SocketAddress target = connect_target(destination);
  return Connector::has_lately_reached(space, target) || is_listener_name_taken({space, target, false});
}

bool SoftDevice::was_silent(verbs::PortSpace space, const SocketAddress& destination) {
  return silent_ports_.has({space, connect_target(destination), false});
}

Result<std::unique_ptr<verbs::ConnectionId>> SoftDevice::create_id(verbs::PortSpace space) {
  return make_soft_id(id_host(), space);
}

}  // namespace ringsock::soft
