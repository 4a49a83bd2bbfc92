#include "core/ethernet/interface.h"

#include <algorithm>

#include "core/base/log.h"
#include "core/base/process_state.h"
#include "core/device/rdma/packet_port.h"
#include "core/device/rdma/rdma_device.h"
#include "core/device/rdma/rdma_devices.h"
#include "core/wire/ethernet_frame.h"

namespace ringsock::ethernet {

namespace {
constexpr std::size_t kSlabBytes = std::size_t{1} << 20;
/// A slab of nearly this size is put on huge pages if there are any (verbs/pages.h).
constexpr std::size_t kHugeSlabBytes = std::size_t{4} << 20;
/// Bytes of IP packet: the least that each host must take (RFC 791).
constexpr std::size_t kShortestBuffer = 576;

/// Opens the libraries of the cards once.
struct Cards {
  static constexpr ProcessPart kPart = ProcessPart::cards;
  std::shared_ptr<rdma::RdmaDevices> all = std::make_shared<rdma::RdmaDevices>(rdma::real_calls());
};

/// Returns nothing when the interface has no card that we can use.
std::optional<Interface::Card> card_of(const net::Link& link) {
  // Virtual interfaces have no card of their own.
  if (link.kind != net::LinkKind::physical) return std::nullopt;
  auto port = process_state<Cards>().all->open_packet_port(static_cast<unsigned>(link.index));
  // Steering rules and queue pairs use the first port: present cards have a device for each port.
  if (!port || port->number != 1) return std::nullopt;
  log_info("%s: packets by %s", link.name.c_str(), port->device->name());
  return Interface::Card{.device = std::move(port->device), .does_checksums = port->offloads.checksums};
}

}  // namespace

Interface::Interface(int ifindex, std::size_t most_buffers) : ifindex_(ifindex), large_buffers_(most_buffers) {}

Status Interface::open_embedded(bool with_xdp) {
  soft::PacketDeviceOptions options;
  if (with_xdp) options.ring = soft::RingKind::xdp;
  auto device = soft::PacketDevice::open(static_cast<unsigned>(ifindex_), options);
  if (!device) return device.error();
  embedded_ = device->get();
  device_ = *std::move(device);
  return ok();
}

Result<std::shared_ptr<Interface>> Interface::open(const net::Link& link, const InterfaceOptions& options) {
  if (options.card_rings) {
    if (auto card = card_of(link)) return by_card(*std::move(card), link, options);
  }
  std::shared_ptr<Interface> interface(new Interface(link.index, options.most_buffers));
  if (Status opened = interface->open_embedded(options.xdp); !opened) return opened.error();
  if (Status made = interface->make_pool(link, options); !made) return made.error();
  return interface;
}

Result<std::shared_ptr<Interface>> Interface::by_card(Card card, const net::Link& link,
                                                      const InterfaceOptions& options) {
  std::shared_ptr<Interface> interface(new Interface(link.index, options.most_buffers));
  interface->device_ = std::move(card.device);
  interface->does_checksums_ = card.does_checksums;
  interface->steering_mac_ = link.mac;
  if (Status made = interface->make_pool(link, options); !made) return made.error();
  return interface;
}

Status Interface::make_pool(const net::Link& link, const InterfaceOptions& options) {
  auto pd = device_->alloc_pd();
  if (!pd) return pd.error();
  pd_ = *std::move(pd);
  // A card fills posted buffers, so they must have room for any packet. Other packets get large buffers.
  const std::size_t wanted = options.packet_bytes == 0 ? link.mtu : std::max(options.packet_bytes, kShortestBuffer);
  const std::size_t packet = is_embedded() ? wanted : std::max<std::size_t>(wanted, link.mtu);
  const std::size_t frame = packet + sizeof(wire::EthernetHeader) + sizeof(wire::VlanTag);
  const std::size_t slab = std::max(options.huge_pages ? kHugeSlabBytes : kSlabBytes, 64 * frame);
  auto pool = verbs::BufferPool::create(device_.get(), pd_.get(),
                                        {.buffer_bytes = frame,
                                         .slab_bytes = slab,
                                         .limit_bytes = std::max(slab, options.most_buffers * frame),
                                         .access = IBV_ACCESS_LOCAL_WRITE,
                                         .memory = options.memory});
  if (!pool) return pool.error();
  pool_ = *std::move(pool);
  return ok();
}

Interface::~Interface() = default;

void Interface::forget_after_fork() {
  if (embedded_ != nullptr) embedded_->forget_after_fork();
}

}  // namespace ringsock::ethernet
