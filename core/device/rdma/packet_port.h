// Raw packet queue pairs on a real network card: which device is behind an interface, and what it does by itself.
// Untested on hardware.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "core/base/result.h"
#include "core/device/rdma/calls.h"

namespace ringsock::rdma {

class RdmaDevice;

/// What a device does to packets. The embedded one does all of it.
struct PacketOffloads {
  bool checksums = false;           ///< fills them in (IBV_SEND_IP_CSUM), and tells of right ones (IBV_WC_IP_CSUM_OK)
  std::uint32_t max_tso_bytes = 0;  ///< of one IBV_WR_TSO; 0: it does not segment
  bool wallclock = false;           ///< completions tell when they came
  std::uint32_t min_rate_kbps = 0;  ///< of set_rate_limit()
  std::uint32_t max_rate_kbps = 0;  ///< 0: it limits no rates
};

/// All false, zero, where the device does not tell.
PacketOffloads packet_offloads_of(const Calls& calls, ibv_context& context);

/// The port of a device that is a network interface.
struct PacketPort {
  std::unique_ptr<RdmaDevice> device;
  std::uint8_t number;
  PacketOffloads offloads;
};

/// Number of the port of `context` that is interface `ifindex` of this network namespace, by its table of GIDs, and
/// Ethernet. Error: ENODEV.
Result<std::uint8_t> packet_port_of(const Calls& calls, ibv_context& context, unsigned ifindex);

/// Makes a queue pair that sends and receives packets, and takes it apart again.
/// Errors: EPERM CAP_NET_RAW is missing; EOPNOTSUPP the device has none (no software device has), or no flow rules.
Status try_packets(RdmaDevice& device);

/// ibv_create_qp(3) with attr.qp_type IBV_QPT_RAW_PACKET, for IBV_WR_TSO where the device segments. Null with errno.
ibv_qp* make_packet_qp(const Calls& calls, ibv_pd& pd, ibv_qp_init_attr& attr);

/// Of a queue pair that is ready to send. @param kbps  1..; 0: as fast as it can
/// Errors: EINVAL not within the offloads' limits; EOPNOTSUPP; those of ibv_modify_qp_rate_limit(3).
Status set_rate_limit(const Calls& calls, ibv_qp& qp, std::uint32_t kbps);

}  // namespace ringsock::rdma
