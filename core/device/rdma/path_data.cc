#include "core/device/rdma/path_data.h"

#include <endian.h>

#include <cstdint>
#include <cstring>

namespace ringsock::rdma {

namespace {

/// Adds the selector "exactly" to a path record's MTU, rate or packet lifetime.
std::uint8_t exactly(std::uint8_t value) { return static_cast<std::uint8_t>(2u << 6 | (value & 0x3fu)); }

ibv_path_record to_wire(const ibv_sa_path_rec& from) {
  ibv_path_record out{};
  out.dgid = from.dgid;
  out.sgid = from.sgid;
  out.dlid = from.dlid;
  out.slid = from.slid;
  out.flowlabel_hoplimit = htobe32((be32toh(from.flow_label) & 0xfffffu) << 8 | from.hop_limit);
  out.tclass = from.traffic_class;
  out.reversible_numpath = static_cast<std::uint8_t>((from.reversible != 0 ? 0x80u : 0u) | (from.numb_path & 0x7fu));
  out.pkey = from.pkey;
  out.qosclass_sl = htobe16(static_cast<std::uint16_t>(from.sl & 0xfu));
  out.mtu = exactly(from.mtu);
  out.rate = exactly(from.rate);
  out.packetlifetime = exactly(from.packet_life_time);
  out.preference = from.preference;
  return out;
}

}  // namespace

std::vector<std::byte> path_data_of(std::span<const ibv_sa_path_rec> records) {
  std::vector<std::byte> out(records.size() * sizeof(ibv_path_data));
  for (std::size_t i = 0; i < records.size(); ++i) {
    ibv_path_data data{};
    if (i == 0) data.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
    data.path = to_wire(records[i]);
    std::memcpy(out.data() + i * sizeof data, &data, sizeof data);
  }
  return out;
}

}  // namespace ringsock::rdma
