// Raw packet queue pairs on a real network card: finds the device of an interface, and its offloads. Not tested on
// hardware.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "core/base/result.h"
#include "core/device/rdma/calls.h"

namespace ringsock::rdma {

class RdmaDevice;

/// The packet offloads of a device. The embedded device has all of them.
struct PacketOffloads {
  bool checksums = false;           ///< computes them (IBV_SEND_IP_CSUM), and reports valid ones (IBV_WC_IP_CSUM_OK)
  std::uint32_t max_tso_bytes = 0;  ///< limit of one IBV_WR_TSO; 0: no segmentation
  bool wallclock = false;           ///< completions have times
  std::uint32_t min_rate_kbps = 0;  ///< of set_rate_limit()
  std::uint32_t max_rate_kbps = 0;  ///< 0: no rate limits
};

/// Returns the offloads of a device. All are false and zero where the device does not report them.
PacketOffloads packet_offloads_of(const Calls& calls, ibv_context& context);

/// A port of a device that belongs to a network interface.
struct PacketPort {
  std::unique_ptr<RdmaDevice> device;
  std::uint8_t number;
  PacketOffloads offloads;
};

/// Returns the number of the Ethernet port of `context` that belongs to interface `ifindex` of this network namespace,
/// according to its table of GIDs. Error: ENODEV.
Result<std::uint8_t> packet_port_of(const Calls& calls, ibv_context& context, unsigned ifindex);

/// Makes a queue pair that sends and receives packets, and destroys it again.
/// Errors: EPERM CAP_NET_RAW is missing; EOPNOTSUPP the device has none (no software device has), or no flow rules.
Status try_packets(RdmaDevice& device);

/// Calls ibv_create_qp(3) with attr.qp_type IBV_QPT_RAW_PACKET, prepared for IBV_WR_TSO where the device segments.
/// Returns null with errno on failure.
ibv_qp* make_packet_qp(const Calls& calls, ibv_pd& pd, ibv_qp_init_attr& attr);

/// Limits the rate of a queue pair that is ready to send. @param kbps 1..; 0: no limit
/// Errors: EINVAL outside the limits of PacketOffloads; EOPNOTSUPP; those of ibv_modify_qp_rate_limit(3).
Status set_rate_limit(const Calls& calls, ibv_qp& qp, std::uint32_t kbps);

}  // namespace ringsock::rdma
