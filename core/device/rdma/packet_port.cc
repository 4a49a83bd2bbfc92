#include "core/device/rdma/packet_port.h"

#include <array>
#include <cerrno>
#include <span>

#include "core/base/log.h"
#include "core/device/rdma/rdma_device.h"
#include "core/verbs/handles.h"

namespace ringsock::rdma {

namespace {

constexpr std::size_t kMaxGids = 256;
/// Ethernet, a tag, IPv6, and TCP with options.
constexpr std::uint16_t kMaxTsoHeader = 14 + 4 + 40 + 60;

bool segments_packets(const ibv_device_attr_ex& attr) {
  return (attr.tso_caps.supported_qpts & (1U << IBV_QPT_RAW_PACKET)) != 0;
}

bool limits_rates(const ibv_device_attr_ex& attr) {
  return (attr.packet_pacing_caps.supported_qpts & (1U << IBV_QPT_RAW_PACKET)) != 0;
}

}  // namespace

PacketOffloads packet_offloads_of(const Calls& calls, ibv_context& context) {
  ibv_device_attr_ex attr{};
  if (calls.query_device_ex(&context, &attr) != 0) return {};
  PacketOffloads out;
  out.checksums = (attr.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM) != 0 ||
                  (attr.orig_attr.device_cap_flags & IBV_DEVICE_RAW_IP_CSUM) != 0;
  out.wallclock = attr.completion_timestamp_mask != 0;
  if (segments_packets(attr)) out.max_tso_bytes = attr.tso_caps.max_tso;
  if (limits_rates(attr)) {
    out.min_rate_kbps = attr.packet_pacing_caps.qp_rate_limit_min;
    out.max_rate_kbps = attr.packet_pacing_caps.qp_rate_limit_max;
  }
  return out;
}

Result<std::uint8_t> packet_port_of(const Calls& calls, ibv_context& context, unsigned ifindex) {
  std::array<ibv_gid_entry, kMaxGids> gids;
  const ssize_t count = calls.query_gid_table(&context, gids.data(), gids.size());
  if (count < 0) return Error{ENODEV, "ibv_query_gid_table"};
  for (const ibv_gid_entry& gid : std::span(gids).first(static_cast<std::size_t>(count))) {
    if (gid.ndev_ifindex != ifindex || gid.port_num == 0 || gid.port_num > UINT8_MAX) continue;
    const auto number = static_cast<std::uint8_t>(gid.port_num);
    ibv_port_attr port{};
    // IPoIB interfaces have a port, too.
    if (calls.query_port(&context, number, &port) == 0 && port.link_layer == IBV_LINK_LAYER_ETHERNET) return number;
  }
  return Error{ENODEV, "rdma: no port is that interface"};
}

Status try_packets(RdmaDevice& device) {
  if (!device.has_flow_rules()) return Error{EOPNOTSUPP, "rdma: flow rules"};
  auto pd = device.alloc_pd();
  if (!pd) return pd.error();
  auto cq = device.create_cq(1, nullptr, nullptr, 0);
  if (!cq) return cq.error();
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq->get();
  attr.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  attr.qp_type = IBV_QPT_RAW_PACKET;
  const auto qp = device.create_qp(**pd, attr);
  if (qp) return ok();
  if (qp.error().code != EPERM) return Error{EOPNOTSUPP, "rdma: raw packet queue pairs"};
  log_warn("%s: packets need the capability CAP_NET_RAW (as root, or: setcap cap_net_raw+ep PROGRAM)", device.name());
  return qp.error();
}

ibv_qp* make_packet_qp(const Calls& calls, ibv_pd& pd, ibv_qp_init_attr& attr) {
  if (packet_offloads_of(calls, *pd.context).max_tso_bytes != 0) {
    ibv_qp_init_attr_ex extended{};
    extended.qp_context = attr.qp_context;
    extended.send_cq = attr.send_cq;
    extended.recv_cq = attr.recv_cq;
    extended.cap = attr.cap;
    extended.qp_type = attr.qp_type;
    extended.sq_sig_all = attr.sq_sig_all;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    extended.pd = &pd;
    extended.max_tso_header = kMaxTsoHeader;
    if (ibv_qp* const qp = calls.create_qp_ex(pd.context, &extended)) {
      attr.cap = extended.cap;
      return qp;
    }
  }
  return calls.create_qp(&pd, &attr);
}

Status set_rate_limit(const Calls& calls, ibv_qp& qp, std::uint32_t kbps) {
  const PacketOffloads offloads = packet_offloads_of(calls, *qp.context);
  if (offloads.max_rate_kbps == 0) return Error{EOPNOTSUPP, "rdma: rate limit"};
  if (kbps != 0 && (kbps < offloads.min_rate_kbps || kbps > offloads.max_rate_kbps))
    return Error{EINVAL, "rdma: rate limit"};
  ibv_qp_rate_limit_attr attr{};
  attr.rate_limit = kbps;
  if (const int error = calls.modify_qp_rate_limit(&qp, &attr); error != 0)
    return Error{error, "ibv_modify_qp_rate_limit"};
  return ok();
}

}  // namespace ringsock::rdma
