#include <gtest/gtest.h>

#include <cstdint>

#include "libvmacompat/statistics/vma_snapshot.h"

namespace ringsock::runtime {
namespace {

TEST(VmaRates, AreWhatHappenedPerSecond) {
  VmaSnapshot before, after;
  before.sockets = {{.fd = 3, .inode = 1, .rx = {.packets = 100, .bytes = 1000}, .poll_hits = 5}};
  after.sockets = {{.fd = 3,
                    .inode = 1,
                    .rx = {.packets = 300, .bytes = 4001, .errors = 4},
                    .poll_hits = 6,
                    .ready_packets = 77,
                    .ready_packets_max = 88}};
  const VmaSnapshot rates = vma_rates(before, after, 2);
  EXPECT_EQ(rates.sockets[0].rx.packets, 100u);
  EXPECT_EQ(rates.sockets[0].rx.bytes, 1501u) << "rounded";
  EXPECT_EQ(rates.sockets[0].rx.errors, 2u);
  EXPECT_EQ(rates.sockets[0].poll_hits, 1u);
  EXPECT_EQ(rates.sockets[0].ready_packets, 77u) << "no counter";
  EXPECT_EQ(rates.sockets[0].ready_packets_max, 88u);
}

TEST(VmaRates, OfNewSocketsAndZeroedCountersBeginAtZero) {
  VmaSnapshot before, after;
  before.sockets = {{.fd = 3, .inode = 1, .tx = {.packets = 10}}, {.fd = 4, .inode = 2, .tx = {.packets = 100}}};
  after.sockets = {{.fd = 3, .inode = 9, .tx = {.packets = 12}},
                   {.fd = 4, .inode = 2, .tx = {.packets = 7}},
                   {.fd = 5, .inode = 3, .tx = {.packets = 1}}};
  const VmaSnapshot rates = vma_rates(before, after, 1);
  EXPECT_EQ(rates.sockets[0].tx.packets, 12u) << "another socket has the number now";
  EXPECT_EQ(rates.sockets[1].tx.packets, 7u) << "vma_stats -z came in between";
  EXPECT_EQ(rates.sockets[2].tx.packets, 1u);
}

TEST(VmaRates, OfAPageThatCountsToAnythingAreNotMoreThanCanBeCounted) {
  VmaSnapshot before, after;
  before.sockets = {{.fd = 3, .inode = 1}};
  after.sockets = {{.fd = 3, .inode = 1, .rx = {.packets = UINT64_MAX, .bytes = UINT64_MAX / 2}}};
  const VmaSnapshot rates = vma_rates(before, after, 1);
  EXPECT_EQ(rates.sockets[0].rx.packets, UINT64_MAX);
  EXPECT_EQ(rates.sockets[0].rx.bytes, UINT64_MAX);
}

TEST(VmaRates, CoverEveryPartOfAProcess) {
  VmaSnapshot before, after;
  before.iomux = {{.name = "poll", .timeouts = 1}, {.name = "epoll[3]", .timeouts = 2}};
  after.iomux = {{.name = "epoll[3]", .timeouts = 5, .polling_cpu_percent = 9}};
  before.cqs = {{.packets_dropped = 1}};
  after.cqs = {{.packets_dropped = 3, .drained_max = 4}};
  before.rings = {{.rx_bytes = 10}};
  after.rings = {{.rx_bytes = 30, .moderation_packets = 48}, {.rx_bytes = 5}};
  before.pools = {{.buffers = 100, .no_buffers = 1}};
  after.pools = {{.buffers = 200, .no_buffers = 2}};
  const VmaSnapshot rates = vma_rates(before, after, 1);
  EXPECT_EQ(rates.iomux[0].timeouts, 3u);
  EXPECT_EQ(rates.iomux[0].polling_cpu_percent, 9u);
  EXPECT_EQ(rates.cqs[0].packets_dropped, 2u);
  EXPECT_EQ(rates.cqs[0].drained_max, 4u);
  EXPECT_EQ(rates.rings[0].rx_bytes, 20u);
  EXPECT_EQ(rates.rings[0].moderation_packets, 48u);
  EXPECT_EQ(rates.rings[1].rx_bytes, 5u);
  EXPECT_EQ(rates.pools[0].buffers, 200u);
  EXPECT_EQ(rates.pools[0].no_buffers, 1u);
}

}  // namespace
}  // namespace ringsock::runtime
