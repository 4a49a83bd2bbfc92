#include "libvmacompat/interface.h"

#include <algorithm>

#include "core/wire/ethernet.h"
#include "libvmacompat/process.h"

namespace ringsock::vma {

namespace {
constexpr std::size_t kSlabBytes = std::size_t{1} << 20;
}  // namespace

Result<std::shared_ptr<Interface>> Interface::open(int ifindex, std::uint32_t mtu) {
  soft::PacketDeviceOptions device_options;
  if (process().config.xdp) device_options.ring = soft::RingKind::xdp;
  auto device = soft::PacketDevice::open(static_cast<unsigned>(ifindex), device_options);
  if (!device) return device.error();
  std::shared_ptr<Interface> interface(new Interface(ifindex));
  interface->device_ = *std::move(device);
  auto pd = interface->device_->alloc_pd();
  if (!pd) return pd.error();
  interface->pd_ = *std::move(pd);
  const std::size_t frame = mtu + sizeof(wire::EthernetHeader) + sizeof(wire::VlanTag);
  const verbs::BufferPoolOptions options{.buffer_bytes = frame,
                                         .slab_bytes = std::max(kSlabBytes, 64 * frame),
                                         .limit_bytes = std::max(kSlabBytes, process().config.rx_bufs * frame),
                                         .access = IBV_ACCESS_LOCAL_WRITE};
  auto pool = verbs::BufferPool::create(interface->device_.get(), interface->pd_.get(), options);
  if (!pool) return pool.error();
  interface->pool_ = *std::move(pool);
  return interface;
}

Interface::~Interface() = default;

void Interface::forget_after_fork() { device_->forget_after_fork(); }

}  // namespace ringsock::vma
