// Rings of packet sockets, and their BPF programs.
#pragma once

#include <net/if.h>

#include <bitset>
#include <memory>
#include <mutex>

#include "core/device/packet/ring/frame_ring.h"
#include "core/device/packet/ring/packet_options.h"
#include "core/device/packet/steering/bpf_program.h"
#include "core/device/packet/steering/ingress_hook.h"
#include "core/device/packet/xdp/xdp_path.h"

namespace ringsock::soft {

class PacketRings final : public RingMaker {
 public:
  /// Errors: EPERM, ENODEV, EOPNOTSUPP, ENOMEM, EMFILE.
  static Result<std::unique_ptr<PacketRings>> create(unsigned ifindex, const PacketDeviceOptions& options);

  Result<std::unique_ptr<FrameRing>> make_ring(unsigned frames) override;
  FlowTable& flows() override { return flows_; }
  [[nodiscard]] RingKind kind() const override { return xdp_ ? RingKind::xdp : RingKind::packet; }
  void release(unsigned number) override;
  void forget() override;

 private:
  PacketRings(unsigned ifindex, bool kernel_segments_udp, UniqueFd flows, UniqueFd hints, UniqueFd taken);
  Result<unsigned> claim();
  Result<BpfObject> load_filter(unsigned number);
  void open_xdp(const PacketDeviceOptions& options);
  std::unique_ptr<FrameRing> with_xdp(std::unique_ptr<FrameRing> packets, unsigned frames);

  const unsigned ifindex_;
  const bool kernel_segments_udp_;
  FlowTable flows_;
  std::mutex lock_;
  std::bitset<RINGSOCK_MAX_RINGS> claimed_;  ///< bit n - 1: ring n
  std::unique_ptr<IngressHook> hook_;
  std::unique_ptr<XdpPath> xdp_;  ///< null: only packet sockets
  char name_[IF_NAMESIZE] = "?";  ///< of the interface, for log messages
};

}  // namespace ringsock::soft
