#include "libvmacompat/interface.h"

#include <algorithm>

#include "core/base/log.h"
#include "core/device/rdma/rdma_devices.h"
#include "core/wire/ethernet.h"
#include "libvmacompat/process.h"

namespace ringsock::vma {

namespace {
constexpr std::size_t kSlabBytes = std::size_t{1} << 20;
/// Slabs of almost this size are put on huge pages where there are any (verbs/pages.h).
constexpr std::size_t kHugeSlabBytes = std::size_t{4} << 20;
constexpr std::int32_t kHugePages = 2;  ///< VMA_MEM_ALLOC_TYPE
}  // namespace

Interface::Interface(int ifindex) : ifindex_(ifindex), large_buffers_(process().config.rx_bufs) {}

bool Interface::open_card(const net::Link& link) {
  // What is made in software has no card of its own.
  if (!process().config.card_rings || link.kind != net::LinkKind::physical) return false;
  static const auto cards = std::make_shared<rdma::RdmaDevices>(rdma::real_calls());
  auto port = cards->open_packet_port(static_cast<unsigned>(link.index));
  if (!port) return false;
  // Rules and queue pairs here are for the first port: cards of today have a device for each.
  if (port->number != 1) return false;
  device_ = std::move(port->device);
  does_checksums_ = port->offloads.checksums;
  steering_mac_ = link.mac;
  log_info("%s: packets by %s", link.name.c_str(), device_->name());
  return true;
}

Status Interface::open_embedded() {
  soft::PacketDeviceOptions options;
  if (process().config.xdp) options.ring = soft::RingKind::xdp;
  auto device = soft::PacketDevice::open(static_cast<unsigned>(ifindex_), options);
  if (!device) return device.error();
  embedded_ = device->get();
  device_ = *std::move(device);
  return ok();
}

Result<std::shared_ptr<Interface>> Interface::open(const net::Link& link) {
  std::shared_ptr<Interface> interface(new Interface(link.index));
  if (!interface->open_card(link)) {
    if (Status opened = interface->open_embedded(); !opened) return opened.error();
  }
  auto pd = interface->device_->alloc_pd();
  if (!pd) return pd.error();
  interface->pd_ = *std::move(pd);
  const std::size_t frame = link.mtu + sizeof(wire::EthernetHeader) + sizeof(wire::VlanTag);
  const config::VmaConfig& config = process().config;
  const std::size_t slab = std::max(config.mem_alloc_type == kHugePages ? kHugeSlabBytes : kSlabBytes, 64 * frame);
  const verbs::BufferPoolOptions options{.buffer_bytes = frame,
                                         .slab_bytes = slab,
                                         .limit_bytes = std::max(slab, config.rx_bufs * frame),
                                         .access = IBV_ACCESS_LOCAL_WRITE};
  auto pool = verbs::BufferPool::create(interface->device_.get(), interface->pd_.get(), options);
  if (!pool) return pool.error();
  interface->pool_ = *std::move(pool);
  return interface;
}

Interface::~Interface() = default;

void Interface::forget_after_fork() {
  if (embedded_ != nullptr) embedded_->forget_after_fork();
}

}  // namespace ringsock::vma
