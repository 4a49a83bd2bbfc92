#include "core/device/packet/packet_device.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <optional>
#include <vector>

#include "core/device/common/async_events.h"
#include "core/device/common/completion_channel.h"
#include "core/device/common/key_table.h"
#include "core/device/common/protection_domain.h"
#include "core/device/common/verbs_frame.h"
#include "core/device/packet/interface_watch.h"
#include "core/device/packet/packet_completion_queue.h"
#include "core/device/packet/packet_queue_pair.h"
#include "core/device/packet/packet_rings.h"
#include "core/device/packet/packet_verbs.h"

namespace ringsock::soft {

namespace {

constexpr int kMaxCompletionQueueEntries = 1 << 20;
constexpr std::uint64_t kMaxRegionBytes = UINT64_MAX;

PacketQueuePair& ours(ibv_qp& qp) { return static_cast<PacketQueuePair&>(qp); }
PacketCompletionQueue& ours(ibv_cq& cq) { return PacketCompletionQueue::of(cq); }

verbs::DeviceTraits packet_traits() {
  verbs::DeviceTraits out;
  out.max_inline_data = kMaxTsoBytes;
  out.marks_copies = true;
  out.segments_udp = true;
  return out;
}

Status add_to(const UniqueFd& epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) return Error::last("packet device: epoll_ctl");
  return ok();
}

}  // namespace

struct PacketDevice::Parts {
  explicit Parts(UniqueFd eventfd, InterfaceWatch interface, std::unique_ptr<RingMaker> maker)
      : events(std::move(eventfd)), interface(std::move(interface)), rings(std::move(maker)) {}

  std::optional<VerbsFrame> verbs;
  UniqueFd async;  ///< epoll: our own events and the interface's
  AsyncEvents events;
  std::mutex interface_lock;
  InterfaceWatch interface;
  std::atomic<bool> gone{false};
  KeyTable keys;
  std::unique_ptr<RingMaker> rings;
  std::mutex list_lock;
  std::vector<PacketQueuePair*> queue_pairs;
};

Result<std::unique_ptr<PacketDevice>> PacketDevice::open(unsigned ifindex, const PacketDeviceOptions& options) {
  auto interface = InterfaceWatch::open(ifindex);
  if (!interface) return interface.error();
  auto name = interface->name();
  if (!name) return name.error();
  UniqueFd eventfd = out_of_the_way(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  UniqueFd epoll = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!eventfd || !epoll) return Error::last("packet device");
  for (const int fd : {eventfd.get(), interface->descriptor()}) {
    if (Status added = add_to(epoll, fd); !added) return added.error();
  }
  auto rings = PacketRings::create(ifindex, options);
  if (!rings) return rings.error();
  auto parts = std::make_unique<Parts>(std::move(eventfd), std::move(*interface), std::move(*rings));
  parts->async = std::move(epoll);
  return std::unique_ptr<PacketDevice>(
      new PacketDevice(ifindex, std::move(*name), options.kernel_segments_udp, std::move(parts)));
}

PacketDevice::PacketDevice(unsigned ifindex, std::string name, bool kernel_segments_udp, std::unique_ptr<Parts> parts)
    : Device(packet_traits()),
      ifindex_(ifindex),
      name_(std::move(name)),
      kernel_segments_udp_(kernel_segments_udp),
      parts_(std::move(parts)) {
  parts_->verbs.emplace(*this, name_.c_str(), parts_->async.get());
  enter_packet_verbs(parts_->verbs->operations());
}

PacketDevice::~PacketDevice() = default;

ibv_context& PacketDevice::context() { return parts_->verbs->context(); }
KeyTable& PacketDevice::keys() { return parts_->keys; }
RingMaker& PacketDevice::ring_maker() { return *parts_->rings; }
RingKind PacketDevice::ring_kind() const { return parts_->rings->kind(); }
void PacketDevice::raise(const ibv_async_event& event) { parts_->events.raise(event); }

Result<ibv_device_attr> PacketDevice::query_device() {
  ibv_device_attr attr{};
  attr.max_mr_size = kMaxRegionBytes;
  attr.page_size_cap = 4096;
  attr.max_qp = RINGSOCK_MAX_RINGS;
  attr.max_qp_wr = static_cast<int>(kMaxPacketQueueEntries);
  attr.max_sge = static_cast<int>(kMaxPacketSge);
  attr.max_cq = 1 << 20;
  attr.max_cqe = kMaxCompletionQueueEntries;
  attr.max_mr = 1 << 20;
  attr.max_pd = 1 << 20;
  attr.max_raw_ethy_qp = RINGSOCK_MAX_RINGS;
  attr.phys_port_cnt = 1;
  attr.device_cap_flags = IBV_DEVICE_RAW_IP_CSUM;
  return attr;
}

Result<ibv_port_attr> PacketDevice::query_port(std::uint8_t port) {
  if (port != 1) return Error{EINVAL, "query_port"};
  const auto state = parts_->interface.ask();
  const auto mtu = parts_->interface.mtu();
  if (!state || !mtu) return Error{ENODEV, "query_port"};
  ibv_port_attr attr{};
  attr.state = *state == InterfaceState::up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  attr.max_mtu = attr.active_mtu = IBV_MTU_256;
  for (int code = IBV_MTU_512; code <= IBV_MTU_4096; ++code) {
    if (128U << code <= *mtu) attr.max_mtu = attr.active_mtu = static_cast<ibv_mtu>(code);
  }
  attr.max_msg_sz = kMaxTsoBytes;
  attr.active_width = 1;
  attr.active_speed = 32;
  attr.phys_state = *state == InterfaceState::up ? 5 : 3;  // link up, disabled
  attr.link_layer = IBV_LINK_LAYER_ETHERNET;
  return attr;
}

Result<verbs::Pd> PacketDevice::alloc_pd() {
  auto* domain = new ProtectionDomain(nullptr);
  domain->context = &context();
  return verbs::Pd(*this, domain);
}

int PacketDevice::dealloc_pd(ibv_pd* pd) {
  auto* domain = static_cast<ProtectionDomain*>(pd);
  if (domain->in_use()) return EBUSY;
  delete domain;
  return 0;
}

Result<verbs::Mr> PacketDevice::reg_mr(ibv_pd& pd, void* address, std::size_t length, int access) {
  // There is no remote access.
  if ((access & ~(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING)) != 0)
    return Error{EOPNOTSUPP, "reg_mr: access"};
  if (reinterpret_cast<std::uint64_t>(address) + length < length) return Error{EINVAL, "reg_mr: length"};
  auto region = static_cast<ProtectionDomain&>(pd).add_region(keys(), address, length, access, nullptr);
  if (!region) return region.error();
  return verbs::Mr(*this, *region);
}

int PacketDevice::dereg_mr(ibv_mr* mr) {
  static_cast<ProtectionDomain*>(mr->pd)->remove_region(keys(), static_cast<MemoryRegion*>(mr));
  return 0;
}

Result<verbs::CompChannel> PacketDevice::create_comp_channel() {
  auto channel = CompletionChannel::create(context());
  if (!channel) return channel.error();
  return verbs::CompChannel(*this, std::move(*channel).release());
}

int PacketDevice::destroy_comp_channel(ibv_comp_channel* channel) {
  if (channel->refcnt != 0) return EBUSY;
  delete static_cast<CompletionChannel*>(channel);
  return 0;
}

Result<verbs::Cq> PacketDevice::create_cq(int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector) {
  if (cqe < 1 || cqe > kMaxCompletionQueueEntries || comp_vector != 0) return Error{EINVAL, "create_cq"};
  if (channel != nullptr) __atomic_fetch_add(&channel->refcnt, 1, __ATOMIC_RELAXED);
  auto* queue = new PacketCompletionQueue(context(), cqe, cq_context, static_cast<CompletionChannel*>(channel));
  return verbs::Cq(*this, &queue->cq());
}

int PacketDevice::destroy_cq(ibv_cq* cq) {
  PacketCompletionQueue& queue = ours(*cq);
  if (queue.in_use()) return EBUSY;
  queue.wait_for_acks();
  parts_->events.forget(cq);
  if (ibv_comp_channel* channel = cq->channel) __atomic_fetch_sub(&channel->refcnt, 1, __ATOMIC_RELAXED);
  delete &queue;
  return 0;
}

ibv_cq_ex* PacketDevice::with_wallclock(ibv_cq& cq) { return &ours(cq); }

Result<ibv_cq*> PacketDevice::get_cq_event(ibv_comp_channel& channel) {
  auto cq = static_cast<CompletionChannel&>(channel).next_event();
  if (cq) ours(**cq).count_event_taken();
  return cq;
}

void PacketDevice::ack_cq_events(ibv_cq& cq, unsigned int count) { ours(cq).count_acks(count); }

Result<verbs::Qp> PacketDevice::create_qp(ibv_pd& pd, ibv_qp_init_attr& attr) {
  auto queue_pair = PacketQueuePair::create(*this, pd, attr);
  if (!queue_pair) return queue_pair.error();
  return verbs::Qp(*this, std::move(*queue_pair).release());
}

Status PacketDevice::modify_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask) { return ours(qp).modify(attr, mask); }

Status PacketDevice::query_qp(ibv_qp& qp, ibv_qp_attr& attr, int, ibv_qp_init_attr& init_attr) {
  ours(qp).query(attr, init_attr);
  return ok();
}

int PacketDevice::destroy_qp(ibv_qp* qp) {
  PacketQueuePair& queue_pair = ours(*qp);
  if (queue_pair.in_use()) return EBUSY;
  parts_->events.forget(qp);
  delete &queue_pair;
  return 0;
}

Result<verbs::PacketCounters> PacketDevice::packet_counters(ibv_qp& qp) { return ours(qp).counters(); }

Result<ibv_async_event> PacketDevice::get_async_event() {
  hear_of_interface();
  return parts_->events.take();
}

void PacketDevice::ack_async_event(ibv_async_event& event) { parts_->events.acknowledge(event); }

void PacketDevice::hear_of_interface() {
  std::optional<InterfaceState> change;
  {
    std::lock_guard guard(parts_->interface_lock);
    change = parts_->interface.next();
  }
  if (!change) return;
  if (*change == InterfaceState::gone) return interface_is_gone();
  ibv_async_event event{};
  event.element.port_num = 1;
  event.event_type = *change == InterfaceState::up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
  raise(event);
}

void PacketDevice::interface_is_gone() {
  if (parts_->gone.exchange(true)) return;
  {
    std::lock_guard guard(parts_->list_lock);
    for (PacketQueuePair* queue_pair : parts_->queue_pairs) queue_pair->enter_error();
  }
  ibv_async_event event{};
  event.event_type = IBV_EVENT_DEVICE_FATAL;
  raise(event);
}

void PacketDevice::add(PacketQueuePair& queue_pair) {
  std::lock_guard guard(parts_->list_lock);
  parts_->queue_pairs.push_back(&queue_pair);
}

void PacketDevice::remove(PacketQueuePair& queue_pair) {
  std::lock_guard guard(parts_->list_lock);
  std::erase(parts_->queue_pairs, &queue_pair);
}

void PacketDevice::forget_after_fork() {
  // Takes no lock, because the thread that held it may not exist in the child.
  for (PacketQueuePair* queue_pair : parts_->queue_pairs) queue_pair->forget_after_fork();
  parts_->rings->forget();
  parts_->interface.forget();
  parts_->async.reset();
}

}  // namespace ringsock::soft
