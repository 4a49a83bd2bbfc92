#include "libvmacompat/statistics/vma_views.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace ringsock::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) out.push_back(line);
  return out;
}

/// A busy UDP socket, as sockperf's server.
VmaSocketSnapshot server() {
  return {.fd = 14,
          .inode = 4711,
          .is_offloaded = true,
          .local = SocketAddress::v4(0, 11111),
          .groups = {SocketAddress::v4(0xe0040101, 0)},
          .rx_thread = 100,
          .tx_thread = 101,
          .rx = {.packets = 140479898, .bytes = 274374 * 1024, .eagains = 130177},
          .rx_os = {.packets = 3, .bytes = 3000},
          .tx = {.packets = 140479902, .bytes = 274502 * 1024, .eagains = 1, .errors = 2},
          .poll_hits = 3,
          .poll_misses = 1,
          .ready_packets_dropped = 5,
          .ready_packets = 7,
          .ready_bytes = 700,
          .ready_byte_limit = 212992,
          .ready_packets_max = 70};
}

/// A TCP listener of the kernel's that did nothing.
VmaSocketSnapshot listener() {
  return {.fd = 5,
          .inode = 12,
          .is_tcp = true,
          .is_blocking = false,
          .tcp_state = "LISTEN",
          .local = SocketAddress::v6(in6addr_any, 80)};
}

VmaSnapshot process() {
  return {.pid = 77,
          .program = "sockperf",
          .sockets = {server(), listener()},
          .iomux = {{.name = "select"},
                    {.name = "epoll[9]",
                     .os_ready = 1,
                     .offloaded_ready = 2,
                     .timeouts = 3,
                     .errors = 4,
                     .poll_hits = 999,
                     .poll_misses = 1,
                     .polling_cpu_percent = 70}},
          .cqs = {{.packets_dropped = 1, .queue_length = 2, .drained_max = 511, .buffers = 500}},
          .rings = {{.tx_packets = 2,
                     .tx_bytes = 2048,
                     .rx_packets = 3,
                     .rx_bytes = 3072,
                     .interrupts_requested = 8,
                     .interrupts_received = 4},
                    {}},
          .pools = {{.is_rx = true, .buffers = 1000, .no_buffers = 6}, {.is_rx = false, .buffers = 2000}}};
}

TEST(VmaBasicView, HasTwoLinesPerSocketInVmasColumns) {
  EXPECT_THAT(lines_of(vma_basic_view(process(), VmaCounting::totals)),
              ElementsAre(" fd      ------------ total offloaded ------------- ---------- total os -----------",
                          "                pkt   Kbyte   eagain   error  poll%     pkt   Kbyte  eagain   error",
                          " 14  Rx:  140479898  274374   130177       0   75.0       3       2       0       0",
                          "     Tx:  140479902  274502        1       2              0       0       0       0",
                          " 5   Rx:          0       0        0       0    0.0       0       0       0       0",
                          "     Tx:          0       0        0       0              0       0       0       0",
                          " epoll[9] Rx Ready:1/2 [os/offload] Timeouts:3 Errors:4 Poll:99.90% Polling CPU:70%",
                          std::string(79, '-')));
}

TEST(VmaBasicView, SaysWhenItCountsPerSecond) {
  EXPECT_EQ(lines_of(vma_basic_view({}, VmaCounting::per_second))[1],
            "              pkt/s Kbyte/s eagain/s error/s  poll%   pkt/s Kbyte/s eagain/s error/s");
}

TEST(VmaExtraView, HasTheQueueToo) {
  const auto lines = lines_of(vma_extra_view(process(), VmaCounting::totals));
  EXPECT_THAT(lines[0], testing::EndsWith("----------- ------ queue pkt ------"));
  EXPECT_THAT(lines[1], testing::EndsWith("   error     cur     max    drop"));
  EXPECT_EQ(
      lines[2],
      " 14  Rx:  140479898  274374   130177       0   75.0       3       2       0       0       7      70       5");
  EXPECT_EQ(lines[3].size(), lines_of(vma_basic_view(process(), VmaCounting::totals))[3].size());
}

TEST(VmaFullView, TellsOfASocketWhatWasActive) {
  EXPECT_THAT(lines_of(vma_socket_block(server(), VmaCounting::totals)),
              ElementsAre("======================================================", "\tFd=[14]",
                          "- UDP, Blocked, MC Loop Enabled ", "- Local Address   = [0.0.0.0:11111]",
                          "- Member of = [224.4.1.1]", "- Thread Id Rx: 100, Tx: 101",
                          "Tx Offload: 274502 / 140479902 / 1 / 2 [kilobytes/packets/eagains/errors]",
                          "Rx Offload: 274374 / 140479898 / 130177 / 0 [kilobytes/packets/eagains/errors]",
                          "Rx OS info: 2 / 3 / 0 / 0 [kilobytes/packets/eagains/errors]",
                          "Rx byte: cur 700 / max 0 / dropped 0 / limit 212992", "Rx pkt : cur 7 / max 70 / dropped 5",
                          "Rx poll: 1 / 3 (75.00%) [miss/hit]"));
}

TEST(VmaFullView, TellsOfASocketThatDidNothingThatItDidNothing) {
  EXPECT_THAT(lines_of(vma_socket_block(listener(), VmaCounting::totals)),
              ElementsAre("======================================================", "\tFd=[5]", "- TCP, Non-blocked",
                          "- Local Address   = [[::]:80]", "Rx and Tx were not active"));
}

TEST(VmaFullView, HasALineForEverythingElseThatASocketMayDo) {
  VmaSocketSnapshot socket = listener();
  socket.is_tcp = false;
  socket.multicast_loop = false;
  socket.multicast_interface = SocketAddress::v4(0x0a000001, 0);
  socket.peer = SocketAddress::v4(0x0a000002, 9);
  socket.is_left_to_netfilter = true;
  socket.ring_user_id_rx = 5;
  socket.ring_user_id_tx = 6;
  socket.tx_os = {.packets = 1, .bytes = 1024};
  socket.tx_dummies = 2;
  socket.tx_paced = 7;
  socket.tx_paced_waits = 5;
  socket.tx_rate_kbps = 800;
  socket.zero_copy_packets = 3;
  socket.rx_migrations = 4;
  socket.retransmits = 8;
  EXPECT_THAT(lines_of(vma_socket_block(socket, VmaCounting::per_second)),
              ElementsAre("======================================================", "\tFd=[5]",
                          "- UDP, Non-blocked, MC Loop Disabled, MC IF = [10.0.0.1]", "- Local Address   = [[::]:80]",
                          "- Foreign Address = [10.0.0.2:9]", "- Left to the kernel: rules of netfilter",
                          "- RX: Ring User ID = 5", "- TX: Ring User ID = 6",
                          "Tx OS info: 1 / 1 / 0 / 0 [kilobytes/packets/eagains/errors]/s", "Tx Dummy messages : 2",
                          "Tx Paced: 7 / 5 [packets/waits]/s, at most 800 kbit/s", "Rx zero copy buffers: cur 3",
                          "Ring migrations Rx: 4, Tx: 0", "Retransmissions: 8"));
}

TEST(VmaFullView, TellsWhatTcpKnowsOfAConnectionOnARing) {
  const VmaSocketSnapshot connection{.fd = 6,
                                     .is_tcp = true,
                                     .is_offloaded = true,
                                     .tcp_state = "CLOSE_WAIT",
                                     .local = SocketAddress::v4(0x0a000001, 80),
                                     .peer = SocketAddress::v4(0x0a000002, 4000),
                                     .rx = {.packets = 3, .bytes = 3072},
                                     .retransmits = 4,
                                     .tx_time_outs = 2,
                                     .tx_reorderings = 1,
                                     .rx_out_of_order = 5,
                                     .tcp_rtt_us = 250,
                                     .tcp_rttvar_us = 30,
                                     .tcp_cwnd = 14'600,
                                     .tcp_in_flight = 1'460};
  EXPECT_THAT(
      lines_of(vma_socket_block(connection, VmaCounting::totals)),
      ElementsAre("======================================================", "\tFd=[6]", "- TCP, Blocked",
                  "- Local Address   = [10.0.0.1:80]", "- Foreign Address = [10.0.0.2:4000]", "- State = [CLOSE_WAIT]",
                  "- Round trip: 250 / 30 [usec/deviation]", "- Congestion window: 14600, in flight 1460 [bytes]",
                  "- Time-outs: 2, reorderings: 1, received out of order: 5",
                  "Rx Offload: 3 / 3 / 0 / 0 [kilobytes/packets/eagains/errors]", "Retransmissions: 4"));
}

TEST(VmaFullView, GoesOnWithQueuesRingsAndPools) {
  VmaSnapshot snapshot = process();
  snapshot.sockets.clear();
  const std::string rule(54, '=');
  EXPECT_THAT(
      lines_of(vma_full_view(snapshot, VmaCounting::totals)),
      ElementsAre(rule, "\tCQ=[0]", "Packets dropped:     1", "Packets queue len:   2", "Drained max:         511",
                  "Buffer pool size:    500", rule, "\tRING_ETH=[0]", "Tx Offload:          2 / 2 [kilobytes/packets]",
                  "Rx Offload:          3 / 3 [kilobytes/packets]", "Interrupts:          8 / 4 [requests/received]",
                  rule, "\tRING_ETH=[1]", rule, "\tBUFFER_POOL(RX)=[0]", "Size:                1000",
                  "No buffers error:    6", rule, "\tBUFFER_POOL(TX)=[1]", "Size:                2000",
                  "No buffers error:    0", rule,
                  " epoll[9] Rx Ready:1/2 [os/offload] Timeouts:3 Errors:4 Poll:99.90% Polling CPU:70%"));
}

TEST(VmaFullView, TellsOfARingWhatItsCardAndTcpDid) {
  VmaSnapshot snapshot;
  snapshot.rings = {{.retransmits = 3,
                     .tx_joined = 64,
                     .tx_trains = 2,
                     .tx_dropped = 5,
                     .moderation_packets = 48,
                     .moderation_period_us = 50}};
  EXPECT_THAT(vma_full_view(snapshot, VmaCounting::totals),
              testing::AllOf(
                  HasSubstr("Retransmissions:     3\n"), HasSubstr("Tx Bursts:           64 / 2 [packets/sends]\n"),
                  HasSubstr("Tx Dropped:          5\n"),
                  HasSubstr("Moderation:          48 / 50 [frame count/usec period]\n"), Not(HasSubstr("Interrupts"))));
}

TEST(VmaGroupsView, HasTheSocketsOfEachGroup) {
  VmaSnapshot snapshot = process();
  snapshot.sockets[1].groups = {SocketAddress::v4(0xe0040101, 5), SocketAddress::v4(0xe0000001, 0)};
  EXPECT_THAT(
      lines_of(vma_groups_view(snapshot)),
      ElementsAre("VMA Group Memberships Information", "Group                  fd number",
                  "---------------------------------", "224.0.0.1              5", "224.4.1.1              14 5"));
}

TEST(VmaNetstatView, HasALinePerSocket) {
  VmaSnapshot snapshot = process();
  snapshot.sockets.push_back({.fd = 6,
                              .inode = 1,
                              .is_tcp = true,
                              .tcp_state = "ESTABLISHED",
                              .local = SocketAddress::v4(0x0a000001, 80),
                              .peer = SocketAddress::v4(0x0a000002, 4000),
                              .tx_ready_bytes = 9});
  snapshot.sockets.push_back({.fd = 8});
  EXPECT_THAT(
      lines_of(vma_netstat_view(snapshot)),
      ElementsAre(
          "Proto Offloaded Recv-Q               Send-Q               Local Address          Foreign Address       "
          "State       Inode      PID/Program name",
          "udp   Yes       700                  0                    0.0.0.0:11111          0.0.0.0:*             "
          "            4711       77/sockperf",
          "tcp   No        0                    0                    [::]:80                [::]:*                "
          "LISTEN      12         77/sockperf",
          "tcp   No        0                    9                    10.0.0.1:80            10.0.0.2:4000         "
          "ESTABLISHED 1          77/sockperf",
          "udp   No        0                    0                    0.0.0.0:*              0.0.0.0:*             "
          "            0          77/sockperf"));
}

}  // namespace
}  // namespace ringsock::runtime
