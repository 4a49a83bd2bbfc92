#include "libvmacompat/statistics/vma_views.h"

#include <cstdio>
#include <map>
#include <string_view>

namespace ringsock::runtime {

namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }
std::string kilobytes(std::uint64_t bytes) { return number(bytes / 1024); }

std::string right(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}
std::string left(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}
/// Returns `title` between dashes.
std::string heading(std::string_view title, std::size_t width) {
  const std::size_t dashes = width - title.size() - 2;
  return std::string(dashes / 2, '-') + " " + std::string(title) + " " + std::string(dashes - dashes / 2, '-');
}

double hit_percentage(std::uint64_t hits, std::uint64_t misses) {
  const std::uint64_t all = hits + misses;
  return all == 0 ? 0 : 100 * static_cast<double>(hits) / static_cast<double>(all);
}
std::string fixed(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// Widths of the tables' columns, which are separated by one blank.
constexpr std::size_t kFd = 7, kPackets = 10, kKilobytes = 7, kEagains = 8, kErrors = 7, kPoll = 6;
constexpr std::size_t kOs = 7, kQueue = 7;
constexpr std::size_t kOffloadedTitle = 42, kOsTitle = 31, kQueueTitle = 23;

std::string offloaded_columns(const VmaFlow& flow) {
  return " " + right(number(flow.packets), kPackets) + " " + right(kilobytes(flow.bytes), kKilobytes) + " " +
         right(number(flow.eagains), kEagains) + " " + right(number(flow.errors), kErrors);
}
std::string os_columns(const VmaFlow& flow) {
  return " " + right(number(flow.packets), kOs) + " " + right(kilobytes(flow.bytes), kOs) + " " +
         right(number(flow.eagains), kOs) + " " + right(number(flow.errors), kOs);
}

std::string table_head(VmaCounting counting, bool with_queue) {
  const auto name = [&](const char* text, std::size_t width) {
    return " " + right(std::string(text) + (counting == VmaCounting::per_second ? "/s" : ""), width);
  };
  std::string out =
      " " + left("fd", kFd) + " " + heading("total offloaded", kOffloadedTitle) + " " + heading("total os", kOsTitle);
  if (with_queue) out += " " + heading("queue pkt", kQueueTitle);
  out += "\n " + std::string(kFd, ' ') + name("pkt", kPackets) + name("Kbyte", kKilobytes) + name("eagain", kEagains) +
         name("error", kErrors) + " " + right("poll%", kPoll) + name("pkt", kOs) + name("Kbyte", kOs) +
         name("eagain", kOs) + name("error", kOs);
  if (with_queue) out += " " + right("cur", kQueue) + " " + right("max", kQueue) + name("drop", kQueue);
  return out + "\n";
}

std::string table_rows(const VmaSocketSnapshot& socket, bool with_queue) {
  std::string out = " " + left(left(std::to_string(socket.fd), 3) + " Rx:", kFd) + offloaded_columns(socket.rx) + " " +
                    right(fixed(hit_percentage(socket.poll_hits, socket.poll_misses), 1), kPoll) +
                    os_columns(socket.rx_os);
  if (with_queue)
    out += " " + right(number(socket.ready_packets), kQueue) + " " + right(number(socket.ready_packets_max), kQueue) +
           " " + right(number(socket.ready_packets_dropped), kQueue);
  return out + "\n " + left("    Tx:", kFd) + offloaded_columns(socket.tx) + " " + std::string(kPoll, ' ') +
         os_columns(socket.tx_os) + "\n";
}

bool was_active(const VmaIomuxSnapshot& iomux) {
  return (iomux.os_ready | iomux.offloaded_ready | iomux.timeouts | iomux.errors | iomux.poll_hits |
          iomux.poll_misses) != 0;
}

std::string iomux_line(const VmaIomuxSnapshot& iomux) {
  return " " + iomux.name + " Rx Ready:" + number(iomux.os_ready) + "/" + number(iomux.offloaded_ready) +
         " [os/offload] Timeouts:" + number(iomux.timeouts) + " Errors:" + number(iomux.errors) +
         " Poll:" + fixed(hit_percentage(iomux.poll_hits, iomux.poll_misses), 2) +
         "% Polling CPU:" + std::to_string(iomux.polling_cpu_percent) + "%\n";
}

std::string iomux_lines(const VmaSnapshot& snapshot) {
  std::string out;
  for (const VmaIomuxSnapshot& iomux : snapshot.iomux) {
    if (was_active(iomux)) out += iomux_line(iomux);
  }
  return out;
}

std::string table(const VmaSnapshot& snapshot, VmaCounting counting, bool with_queue) {
  std::string out = table_head(counting, with_queue);
  for (const VmaSocketSnapshot& socket : snapshot.sockets) out += table_rows(socket, with_queue);
  return out + iomux_lines(snapshot) + std::string(79, '-') + "\n";
}

std::string address_text(const SocketAddress& address) {
  const std::string text = address.to_string();
  return text.substr(0, text.rfind(':'));
}

// -- the full view ---------------------------------------------------------------------------------

std::string block_rule() {
  std::string rule(54, '=');
  rule += '\n';
  return rule;
}

/// "Rx Offload: 1 / 2 / 3 / 4 [kilobytes/packets/eagains/errors]", or nothing.
std::string flow_line(const char* title, const VmaFlow& flow, const char* slash) {
  if ((flow.packets | flow.bytes | flow.eagains | flow.errors) == 0) return "";
  return std::string(title) + kilobytes(flow.bytes) + " / " + number(flow.packets) + " / " + number(flow.eagains) +
         " / " + number(flow.errors) + " [kilobytes/packets/eagains/errors]" + slash + "\n";
}

std::string ready_lines(const VmaSocketSnapshot& socket) {
  std::string out;
  if ((socket.ready_bytes | socket.ready_bytes_max | socket.ready_bytes_dropped) != 0)
    out += "Rx byte: cur " + number(socket.ready_bytes) + " / max " + number(socket.ready_bytes_max) + " / dropped " +
           number(socket.ready_bytes_dropped) + " / limit " + number(socket.ready_byte_limit) + "\n";
  if ((socket.ready_packets | socket.ready_packets_max | socket.ready_packets_dropped) != 0)
    out += "Rx pkt : cur " + number(socket.ready_packets) + " / max " + number(socket.ready_packets_max) +
           " / dropped " + number(socket.ready_packets_dropped) + "\n";
  if (socket.zero_copy_packets != 0) out += "Rx zero copy buffers: cur " + number(socket.zero_copy_packets) + "\n";
  return out;
}

/// What the engine knows of a TCP connection that a ring carries.
std::string tcp_lines(const VmaSocketSnapshot& socket) {
  if (socket.tcp_state.empty() || !socket.is_offloaded) return "";
  std::string out = "- State = [" + socket.tcp_state + "]\n";
  out += "- Round trip: " + number(socket.tcp_rtt_us) + " / " + number(socket.tcp_rttvar_us) + " [usec/deviation]\n";
  out +=
      "- Congestion window: " + number(socket.tcp_cwnd) + ", in flight " + number(socket.tcp_in_flight) + " [bytes]\n";
  if ((socket.tx_time_outs | socket.tx_reorderings | socket.rx_out_of_order) != 0)
    out += "- Time-outs: " + number(socket.tx_time_outs) + ", reorderings: " + number(socket.tx_reorderings) +
           ", received out of order: " + number(socket.rx_out_of_order) + "\n";
  return out;
}

std::string activity_lines(const VmaSocketSnapshot& socket, const char* slash) {
  std::string out = flow_line("Tx Offload: ", socket.tx, slash) + flow_line("Tx OS info: ", socket.tx_os, slash);
  if (socket.tx_dummies != 0) out += "Tx Dummy messages : " + number(socket.tx_dummies) + "\n";
  if ((socket.tx_rate_kbps | socket.tx_paced | socket.tx_paced_waits) != 0)
    out += "Tx Paced: " + number(socket.tx_paced) + " / " + number(socket.tx_paced_waits) + " [packets/waits]" + slash +
           ", at most " + number(socket.tx_rate_kbps) + " kbit/s\n";
  out += flow_line("Rx Offload: ", socket.rx, slash) + flow_line("Rx OS info: ", socket.rx_os, slash);
  out += ready_lines(socket);
  if ((socket.poll_hits | socket.poll_misses) != 0)
    out += "Rx poll: " + number(socket.poll_misses) + " / " + number(socket.poll_hits) + " (" +
           fixed(hit_percentage(socket.poll_hits, socket.poll_misses), 2) + "%) [miss/hit]" + slash + "\n";
  if ((socket.rx_migrations | socket.tx_migrations) != 0)
    out += "Ring migrations Rx: " + number(socket.rx_migrations) + ", Tx: " + number(socket.tx_migrations) + "\n";
  if (socket.retransmits != 0) out += "Retransmissions: " + number(socket.retransmits) + "\n";
  return out.empty() ? "Rx and Tx were not active\n" : out;
}

std::string kind_line(const VmaSocketSnapshot& socket) {
  std::string out = socket.is_tcp ? "- TCP" : "- UDP";
  out += socket.is_blocking ? ", Blocked" : ", Non-blocked";
  if (socket.is_tcp) return out + "\n";
  out += socket.multicast_loop ? ", MC Loop Enabled " : ", MC Loop Disabled";
  if (!socket.multicast_interface.is_unspecified())
    out += ", MC IF = [" + address_text(socket.multicast_interface) + "]";
  return out + "\n";
}

/// Returns a line of the blocks for completion queues, rings and pools.
std::string labelled(const char* label, const std::string& value) {
  return left(std::string(label) + ":", 20) + " " + value + "\n";
}

std::string cq_block(const VmaCqSnapshot& cq, std::size_t index) {
  return block_rule() + "\tCQ=[" + std::to_string(index) + "]\n" +
         labelled("Packets dropped", number(cq.packets_dropped)) +
         labelled("Packets queue len", number(cq.queue_length)) + labelled("Drained max", number(cq.drained_max)) +
         labelled("Buffer pool size", number(cq.buffers));
}

std::string ring_block(const VmaRingSnapshot& ring, std::size_t index, const char* slash) {
  const auto traffic = [&](std::uint64_t bytes, std::uint64_t packets) {
    return kilobytes(bytes) + " / " + number(packets) + " [kilobytes/packets]" + slash;
  };
  std::string out = block_rule() + "\tRING_ETH=[" + std::to_string(index) + "]\n";
  if ((ring.tx_packets | ring.tx_bytes) != 0) out += labelled("Tx Offload", traffic(ring.tx_bytes, ring.tx_packets));
  if (ring.tx_trains != 0)
    out += labelled("Tx Bursts", number(ring.tx_joined) + " / " + number(ring.tx_trains) + " [packets/sends]" + slash);
  if (ring.tx_dropped != 0) out += labelled("Tx Dropped", number(ring.tx_dropped));
  if ((ring.rx_packets | ring.rx_bytes) != 0) out += labelled("Rx Offload", traffic(ring.rx_bytes, ring.rx_packets));
  if (ring.retransmits != 0) out += labelled("Retransmissions", number(ring.retransmits));
  if ((ring.interrupts_requested | ring.interrupts_received) != 0)
    out += labelled("Interrupts", number(ring.interrupts_requested) + " / " + number(ring.interrupts_received) +
                                      " [requests/received]" + slash);
  if ((ring.moderation_packets | ring.moderation_period_us) != 0)
    out += labelled("Moderation", number(ring.moderation_packets) + " / " + number(ring.moderation_period_us) +
                                      " [frame count/usec period]");
  return out;
}

std::string pool_block(const VmaPoolSnapshot& pool, std::size_t index) {
  return block_rule() + "\tBUFFER_POOL(" + (pool.is_rx ? "RX" : "TX") + ")=[" + std::to_string(index) + "]\n" +
         labelled("Size", number(pool.buffers)) + labelled("No buffers error", number(pool.no_buffers));
}

// -- netstat ---------------------------------------------------------------------------------------

std::string netstat_line(const std::string& protocol, const std::string& offloaded, const std::string& receive_queue,
                         const std::string& send_queue, const std::string& local, const std::string& peer,
                         const std::string& state, const std::string& inode, const std::string& program) {
  return left(protocol, 5) + " " + left(offloaded, 9) + " " + left(receive_queue, 20) + " " + left(send_queue, 20) +
         " " + left(local, 22) + " " + left(peer, 21) + " " + left(state, 11) + " " + left(inode, 10) + " " + program +
         "\n";
}

std::string peer_text(const VmaSocketSnapshot& socket) {
  if (!socket.peer.is_unspecified()) return socket.peer.to_string();
  return socket.local.family() == AF_INET6 ? "[::]:*" : "0.0.0.0:*";
}

}  // namespace

std::string vma_basic_view(const VmaSnapshot& snapshot, VmaCounting counting) {
  return table(snapshot, counting, false);
}

std::string vma_extra_view(const VmaSnapshot& snapshot, VmaCounting counting) {
  return table(snapshot, counting, true);
}

std::string vma_socket_block(const VmaSocketSnapshot& socket, VmaCounting counting) {
  std::string out = block_rule() + "\tFd=[" + std::to_string(socket.fd) + "]\n" + kind_line(socket);
  if (!socket.local.is_unspecified()) out += "- Local Address   = [" + socket.local.to_string() + "]\n";
  if (!socket.peer.is_unspecified()) out += "- Foreign Address = [" + socket.peer.to_string() + "]\n";
  for (const SocketAddress& group : socket.groups) out += "- Member of = [" + address_text(group) + "]\n";
  if ((socket.rx_thread | socket.tx_thread) != 0)
    out += "- Thread Id Rx: " + std::to_string(socket.rx_thread) + ", Tx: " + std::to_string(socket.tx_thread) + "\n";
  if (socket.is_left_to_netfilter) out += "- Left to the kernel: rules of netfilter\n";
  if (socket.ring_user_id_rx != 0) out += "- RX: Ring User ID = " + number(socket.ring_user_id_rx) + "\n";
  if (socket.ring_user_id_tx != 0) out += "- TX: Ring User ID = " + number(socket.ring_user_id_tx) + "\n";
  out += tcp_lines(socket);
  return out + activity_lines(socket, counting == VmaCounting::per_second ? "/s" : "");
}

std::string vma_full_view(const VmaSnapshot& snapshot, VmaCounting counting) {
  std::string out;
  for (const VmaSocketSnapshot& socket : snapshot.sockets) out += vma_socket_block(socket, counting);
  for (std::size_t i = 0; i < snapshot.cqs.size(); ++i) out += cq_block(snapshot.cqs[i], i);
  for (std::size_t i = 0; i < snapshot.rings.size(); ++i)
    out += ring_block(snapshot.rings[i], i, counting == VmaCounting::per_second ? "/s" : "");
  for (std::size_t i = 0; i < snapshot.pools.size(); ++i) out += pool_block(snapshot.pools[i], i);
  return out + block_rule() + iomux_lines(snapshot);
}

std::string vma_groups_view(const VmaSnapshot& snapshot) {
  std::map<std::string, std::string> members;
  for (const VmaSocketSnapshot& socket : snapshot.sockets) {
    for (const SocketAddress& group : socket.groups) {
      std::string& list = members[address_text(group)];
      list.append(list.empty() ? "" : " ").append(std::to_string(socket.fd));
    }
  }
  std::string out =
      "VMA Group Memberships Information\n" + left("Group", 22) + " fd number\n" + std::string(33, '-') + "\n";
  for (const auto& [group, list] : members) out += left(group, 22) + " " + list + "\n";
  return out;
}

std::string vma_netstat_view(const VmaSnapshot& snapshot) {
  std::string out = netstat_line("Proto", "Offloaded", "Recv-Q", "Send-Q", "Local Address", "Foreign Address", "State",
                                 "Inode", "PID/Program name");
  const std::string program = std::to_string(snapshot.pid) + "/" + snapshot.program;
  for (const VmaSocketSnapshot& socket : snapshot.sockets) {
    const std::string local = socket.local.is_unspecified() ? "0.0.0.0:*" : socket.local.to_string();
    out += netstat_line(socket.is_tcp ? "tcp" : "udp", socket.is_offloaded ? "Yes" : "No", number(socket.ready_bytes),
                        number(socket.tx_ready_bytes), local, peer_text(socket), socket.tcp_state, number(socket.inode),
                        program);
  }
  return out;
}

}  // namespace ringsock::runtime
