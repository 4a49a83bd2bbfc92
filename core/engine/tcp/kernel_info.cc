#include "core/engine/tcp/kernel_info.h"

#include <algorithm>
#include <array>
#include <chrono>

namespace ringsock::engine::tcp {
namespace {

constexpr std::uint32_t kNoThreshold = 0x7fffffff;

std::uint32_t micros(Nanos time) {
  return static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

std::uint8_t congestion_state_of(const Info& from) {
  if (from.in_loss) return TCP_CA_Loss;
  if (from.in_recovery) return TCP_CA_Recovery;
  if (from.reduced) return TCP_CA_CWR;
  return from.sacked_bytes != 0 ? TCP_CA_Disorder : TCP_CA_Open;
}

std::uint8_t options_of(const Info& from) {
  return static_cast<std::uint8_t>((from.timestamps ? TCPI_OPT_TIMESTAMPS : 0) | (from.sack ? TCPI_OPT_SACK : 0) |
                                   (from.window_scaling ? TCPI_OPT_WSCALE : 0) | (from.ecn ? TCPI_OPT_ECN : 0));
}

/// What <netinet/tcp.h> does not know.
void fill_later_part(const Info& from, KernelTcpInfo& out) {
  out.pacing_rate = from.pacing_rate != 0 ? from.pacing_rate : ~std::uint64_t{0};
  out.bytes_acked = from.bytes_acked;
  out.bytes_received = from.bytes_received;
  out.segs_out = static_cast<std::uint32_t>(from.segments_out);
  out.segs_in = static_cast<std::uint32_t>(from.segments_in);
  out.notsent_bytes = from.unsent_bytes;
  out.min_rtt = micros(from.min_rtt);
  out.data_segs_in = from.data_packets_in;
  out.data_segs_out = from.data_packets_out;
  out.delivered = from.delivered;
  out.bytes_sent = from.bytes_sent;
  out.bytes_retrans = from.bytes_retransmitted;
  out.dsack_dups = from.duplicate_sacks;
  out.reord_seen = from.reorderings;
  out.rcv_ooopack = from.out_of_order_segments;
  out.snd_wnd = from.snd_wnd;
}

}  // namespace

int kernels_state_of(State state) {
  constexpr std::array kStates{TCP_CLOSE,     TCP_SYN_SENT,   TCP_SYN_RECV, TCP_ESTABLISHED, TCP_FIN_WAIT1,
                               TCP_FIN_WAIT2, TCP_CLOSE_WAIT, TCP_CLOSING,  TCP_LAST_ACK,    TCP_TIME_WAIT};
  return kStates.at(static_cast<std::size_t>(state));
}

void fill_tcp_info(const Info& from, KernelTcpInfo& all) {
  tcp_info& out = all.first;
  const std::uint32_t mss = std::max<std::uint32_t>(from.snd_mss, 1);
  const auto packets = [mss](std::uint32_t bytes) { return (bytes + mss - 1) / mss; };
  // For the descriptor, a connection in TIME-WAIT is closed.
  out.tcpi_state =
      static_cast<std::uint8_t>(kernels_state_of(from.state == State::time_wait ? State::closed : from.state));
  out.tcpi_ca_state = congestion_state_of(from);
  out.tcpi_retransmits = from.retransmits;
  out.tcpi_backoff = from.backoff;
  out.tcpi_options = options_of(from);
  out.tcpi_snd_wscale = from.snd_scale & 15;
  out.tcpi_rcv_wscale = from.rcv_scale & 15;
  out.tcpi_rto = micros(from.rto);
  out.tcpi_snd_mss = from.snd_mss;
  out.tcpi_rcv_mss = from.rcv_mss;
  out.tcpi_unacked = packets(from.unacked_bytes);
  out.tcpi_sacked = packets(from.sacked_bytes);
  out.tcpi_lost = packets(from.missing_bytes);
  out.tcpi_retrans = packets(from.repeated_bytes);
  out.tcpi_rtt = micros(from.srtt);
  out.tcpi_rttvar = micros(from.rttvar);
  out.tcpi_snd_cwnd = from.cwnd_bytes / mss;
  out.tcpi_snd_ssthresh = from.ssthresh_bytes >= kNoThreshold ? kNoThreshold : from.ssthresh_bytes / mss;
  out.tcpi_total_retrans = from.total_retransmits;
  fill_later_part(from, all);
}

}  // namespace ringsock::engine::tcp
