// Rings of packet sockets, and the BPF programs around them.
#pragma once

#include <bitset>
#include <memory>
#include <mutex>

#include "core/device/soft/packet/frame_ring.h"
#include "core/device/soft/packet/ingress_hook.h"
#include "core/device/soft/packet/packet_device.h"

namespace ringsock::soft {

class PacketRings final : public RingMaker {
 public:
  /// Errors: EPERM, ENODEV, EOPNOTSUPP, ENOMEM, EMFILE.
  static Result<std::unique_ptr<PacketRings>> create(unsigned ifindex, const PacketDeviceOptions& options);

  Result<std::unique_ptr<FrameRing>> make_ring(unsigned frames) override;
  FlowTable& flows() override { return flows_; }
  void forget() override;

  /// For a ring that is gone.
  void release(unsigned number);

 private:
  PacketRings(unsigned ifindex, bool kernel_segments_udp, UniqueFd flows, UniqueFd hints, UniqueFd taken);
  Result<unsigned> claim();
  Result<UniqueFd> load_filter(unsigned number);

  const unsigned ifindex_;
  const bool kernel_segments_udp_;
  FlowTable flows_;
  UniqueFd taken_;
  std::mutex lock_;
  std::bitset<RINGSOCK_MAX_RINGS> claimed_;  ///< ring n at n - 1
  std::unique_ptr<IngressHook> hook_;
};

}  // namespace ringsock::soft
