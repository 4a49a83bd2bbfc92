// A network interface by which rings send and receive packets.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/result.h"
#include "core/device/packet/packet_device.h"
#include "core/ethernet/large_buffers.h"
#include "core/ethernet/options.h"
#include "core/net/interfaces.h"
#include "core/verbs/buffer_pool.h"
#include "core/verbs/handles.h"

namespace ringsock::ethernet {

/// One interface of one network namespace, opened as a device: the network card's own device if it supports raw packets
/// (rdma/packet_port.h), else a soft::PacketDevice. Threads: any.
class Interface : public std::enable_shared_from_this<Interface> {
 public:
  /// Opens `link`, which is in the calling thread's namespace. Errors: those of soft::PacketDevice::open().
  static Result<std::shared_ptr<Interface>> open(const net::Link& link, const InterfaceOptions& options);
  /// A network card that supports raw packets.
  struct Card {
    std::unique_ptr<verbs::Device> device;
    bool does_checksums = false;  ///< fills them in (IBV_SEND_IP_CSUM), and reports right ones (IBV_WC_IP_CSUM_OK)
  };
  /// Opens the interface `link` through its card. Errors: those of ibv_alloc_pd(3) and ibv_reg_mr(3).
  static Result<std::shared_ptr<Interface>> by_card(Card card, const net::Link& link, const InterfaceOptions& options);
  Interface(const Interface&) = delete;
  Interface& operator=(const Interface&) = delete;
  ~Interface();

  [[nodiscard]] int ifindex() const { return ifindex_; }
  [[nodiscard]] verbs::Device& device() const { return *device_; }
  [[nodiscard]] ibv_pd& pd() const { return *pd_; }
  /// Buffers for frames of the length that the interface had when it was opened.
  [[nodiscard]] verbs::BufferPool& pool() const { return *pool_; }
  /// Buffers for longer frames, needed when the MTU has grown since then.
  [[nodiscard]] LargeBuffers& large_buffers() { return large_buffers_; }

  /// Whether this is a soft::PacketDevice, which drops packets with wrong checksums, and takes whole frames inline.
  [[nodiscard]] bool is_embedded() const { return embedded_ != nullptr; }
  /// Whether the device fills in checksums, and reports right ones.
  [[nodiscard]] bool does_checksums() const { return does_checksums_; }
  /// Whether the device cuts requests with several UDP datagrams.
  [[nodiscard]] bool segments_udp() const { return device_->traits().segments_udp; }
  /// Whether several UDP datagrams can be handed to the kernel as one packet.
  [[nodiscard]] bool joins_datagrams() const { return embedded_ != nullptr && embedded_->kernel_segments_udp(); }
  /// The MAC address that steering rules of the device need, if any.
  [[nodiscard]] const std::optional<std::array<std::uint8_t, 6>>& steering_mac() const { return steering_mac_; }

  /// Must be called first in a forked child: this object then belongs to the parent, and must be neither used nor
  /// destroyed.
  void forget_after_fork();

 private:
  Interface(int ifindex, std::size_t most_buffers);
  Status make_pool(const net::Link& link, const InterfaceOptions& options);
  Status open_embedded(bool with_xdp);

  const int ifindex_;
  // Parents first: destroyed in reverse order.
  std::unique_ptr<verbs::Device> device_;
  soft::PacketDevice* embedded_ = nullptr;  ///< device_, if it is one
  bool does_checksums_ = true;
  std::optional<std::array<std::uint8_t, 6>> steering_mac_;
  verbs::Pd pd_;
  std::unique_ptr<verbs::BufferPool> pool_;
  LargeBuffers large_buffers_;
};

}  // namespace ringsock::ethernet
