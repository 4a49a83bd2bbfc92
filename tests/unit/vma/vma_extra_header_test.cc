// <mellanox/vma_extra.h> as C++ programs use it.
#include <gtest/gtest.h>

// sockperf gives these names of its own while it includes the header.
#define RING_LOGIC_PER_SOCKET SOCKPERFS_RING_LOGIC_PER_SOCKET
#define ring_logic_t sockperfs_ring_logic_t
#include <mellanox/vma_extra.h>
#undef RING_LOGIC_PER_SOCKET
#undef ring_logic_t
// The rest is as it is: the names above are those of an enumeration, and have no part in the layout.
#define RING_LOGIC_PER_SOCKET SOCKPERFS_RING_LOGIC_PER_SOCKET
#include "tests/abi/vma_extra_layout.h"

namespace {

TEST(VmaExtraHeader, AProgramWithoutTheLibraryHasNoTable) { EXPECT_EQ(vma_get_api(), nullptr); }

TEST(VmaExtraHeader, PacketsOfAZeroCopyReceiveFollowEachOtherWithoutGaps) {
  alignas(8) unsigned char room[8 + 2 * 16 + 3 * 16]{};
  auto* const packets = reinterpret_cast<vma_packets_t*>(room);
  packets->n_packet_num = 2;
  vma_packet_t* const first = packets->pkts;
  first->sz_iov = 2;
  auto* const second = reinterpret_cast<vma_packet_t*>(&first->iov[first->sz_iov]);
  EXPECT_EQ(reinterpret_cast<unsigned char*>(second), room + 8 + 16 + 2 * 16);
}

}  // namespace
