#include "core/device/rdma/path_data.h"

#include <endian.h>
#include <gtest/gtest.h>

#include <cstring>

namespace ringsock::rdma {
namespace {

ibv_path_data at(const std::vector<std::byte>& bytes, std::size_t index) {
  ibv_path_data out;
  std::memcpy(&out, bytes.data() + index * sizeof out, sizeof out);
  return out;
}

TEST(PathData, HasTheFieldsOfThePathRecordAttribute) {
  ibv_sa_path_rec record{};
  record.dgid.raw[15] = 2;
  record.sgid.raw[15] = 1;
  record.dlid = htobe16(0x22);
  record.slid = htobe16(0x11);
  record.flow_label = htobe32(0xabcde);
  record.hop_limit = 64;
  record.traffic_class = 7;
  record.reversible = 1;
  record.numb_path = 1;
  record.pkey = htobe16(0xffff);
  record.sl = 3;
  record.mtu = IBV_MTU_4096;
  record.rate = IBV_RATE_100_GBPS;
  record.packet_life_time = 18;
  record.preference = 9;
  const ibv_path_record path = at(path_data_of({&record, 1}), 0).path;
  EXPECT_EQ(path.dgid.raw[15], 2);
  EXPECT_EQ(path.sgid.raw[15], 1);
  EXPECT_EQ(path.dlid, htobe16(0x22));
  EXPECT_EQ(path.slid, htobe16(0x11));
  EXPECT_EQ(be32toh(path.flowlabel_hoplimit), 0x0abcde40u);
  EXPECT_EQ(path.tclass, 7);
  EXPECT_EQ(path.reversible_numpath, 0x81);
  EXPECT_EQ(path.pkey, htobe16(0xffff));
  EXPECT_EQ(be16toh(path.qosclass_sl), 3);
  EXPECT_EQ(path.mtu, 0x80 | IBV_MTU_4096);
  EXPECT_EQ(path.rate, 0x80 | IBV_RATE_100_GBPS);
  EXPECT_EQ(path.packetlifetime, 0x80 | 18);
  EXPECT_EQ(path.preference, 9);
}

TEST(PathData, OfSeveralPathsTheFirstIsTheOneToUse) {
  const ibv_sa_path_rec records[2] = {};
  const auto bytes = path_data_of(records);
  EXPECT_EQ(bytes.size(), 2 * 72u);
  EXPECT_EQ(at(bytes, 0).flags, IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL);
  EXPECT_EQ(at(bytes, 1).flags, 0u);
}

}  // namespace
}  // namespace ringsock::rdma
