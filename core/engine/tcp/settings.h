// What a connection is told by its socket, and what it tells: settings, events, figures.
#pragma once

#include <cstdint>

#include "core/base/clock.h"
#include "core/engine/tcp/sequence.h"

namespace ringsock::engine::tcp {

/// States of RFC 9293, 3.3.2, without LISTEN: listeners belong to the socket layer.
enum class State : std::uint8_t {
  closed,
  syn_sent,
  syn_received,
  established,
  fin_wait_1,
  fin_wait_2,
  close_wait,
  closing,
  last_ack,
  time_wait
};

enum class Algorithm : std::uint8_t { cubic, new_reno };

class SpareChunks;

/// The options of a socket. All may be changed at any time by TcpConnection::set(), except those marked "start".
struct Settings {
  std::uint16_t mtu_payload = 1460;  ///< path MTU minus the IP and the fixed TCP header: 1460 for IPv4 over Ethernet
  std::uint16_t most_mss = 0;        ///< TCP_MAXSEG; 0 is no limit
  Algorithm algorithm = Algorithm::cubic;
  bool sack = true;                                     ///< start: offered in our SYN
  bool timestamps = true;                               ///< start
  bool window_scaling = true;                           ///< start
  bool ecn = true;                                      ///< start: answers a SYN that asks for ECN
  bool ask_ecn = false;                                 ///< start: our SYN asks, its repeats do not (tcp_ecn=1)
  bool nodelay = false;                                 ///< TCP_NODELAY
  bool cork = false;                                    ///< TCP_CORK: full segments only, for at most 200 ms
  bool quick_ack = false;                               ///< acknowledges each segment at once
  bool urgent_inline = false;                           ///< SO_OOBINLINE
  bool keepalive = false;                               ///< SO_KEEPALIVE
  std::uint8_t keepalive_probes = 9;                    ///< TCP_KEEPCNT, 1..127
  std::uint8_t syn_retries = 6;                         ///< TCP_SYNCNT: repeats of a SYN
  std::uint8_t retries = 15;                            ///< repeats of data before ETIMEDOUT (tcp_retries2)
  Nanos keepalive_idle = std::chrono::seconds(7200);    ///< TCP_KEEPIDLE
  Nanos keepalive_interval = std::chrono::seconds(75);  ///< TCP_KEEPINTVL
  Nanos user_timeout{};                                 ///< TCP_USER_TIMEOUT; 0 is off
  Nanos fin_wait_2 = std::chrono::seconds(60);          ///< TCP_LINGER2, after close()
  std::uint64_t most_pacing_rate = 0;                   ///< SO_MAX_PACING_RATE, bytes/s; 0: no pacing
  std::uint32_t notsent_lowat = UINT32_MAX;             ///< TCP_NOTSENT_LOWAT, bytes
  std::uint32_t send_bytes = 87'040;                    ///< send buffer at the start (tcp_wmem[1]), or SO_SNDBUF
  std::uint32_t most_send_bytes = 4u << 20;             ///< limit of autotuning; send_bytes switches it off
  std::uint32_t receive_bytes = 131'072;                ///< receive buffer at the start, or SO_RCVBUF
  std::uint32_t most_receive_bytes = 6u << 20;          ///< limit of autotuning; receive_bytes switches it off
  SpareChunks* spare_chunks = nullptr;                  ///< start: for the queues; lives longer than the connection
};

/// What has happened since the last call of take_events(). Bits.
enum Event : std::uint8_t {
  kConnected = 0x01,   ///< the handshake is complete
  kReadable = 0x02,    ///< bytes, or the end of the peer's stream, have arrived
  kWritable = 0x04,    ///< write() takes bytes again after it took fewer than it was given
  kPeerClosed = 0x08,  ///< the peer's FIN is in order
  kUrgent = 0x10,      ///< the urgent mark has moved (SIGURG, POLLPRI)
  kFailed = 0x20,      ///< error() is set
  kClosed = 0x40,      ///< state is closed or time_wait: the socket layer may forget the connection
};

/// Figures for TCP_INFO and the statistics.
struct Info {
  State state;
  std::uint8_t backoff;      ///< of the retransmission timer
  std::uint8_t retransmits;  ///< time-outs in a row
  std::uint8_t snd_scale, rcv_scale;
  bool sack, timestamps, window_scaling, ecn;
  bool in_recovery, in_loss;  ///< fast recovery; recovery after a time-out
  bool reduced;               ///< for congestion that the peer has echoed, for this round trip
  Nanos rto, srtt, rttvar, min_rtt;
  std::uint32_t snd_mss, rcv_mss;
  std::uint32_t cwnd_bytes, ssthresh_bytes;
  std::uint32_t in_flight_bytes, sacked_bytes, lost_bytes;
  std::uint32_t repeated_bytes;  ///< have left again and are not acknowledged
  std::uint32_t missing_bytes;   ///< lost, whether they have left again or not
  std::uint32_t unacked_bytes, unsent_bytes, unread_bytes;
  std::uint32_t snd_wnd, rcv_wnd;
  std::uint32_t total_retransmits;  ///< packets
  std::uint32_t delivered;          ///< packets that the peer has acknowledged, also by SACK, each once; with the SYN
  std::uint32_t duplicate_sacks, reorderings, undone_recoveries, time_outs, loss_probes;
  std::uint32_t congestion_echoes;  ///< reductions that the peer's ECE has caused
  std::uint32_t black_holes;        ///< how often packets became smaller without an ICMP message
  std::uint64_t pacing_rate;        ///< bytes/s; 0: no pacing
  std::uint32_t challenge_acks, dropped_segments, out_of_order_segments;
  std::uint64_t bytes_sent, bytes_acked, bytes_received, bytes_retransmitted;
  std::uint64_t segments_out, segments_in;  ///< descriptors, not packets
  std::uint32_t data_packets_out, data_packets_in;
  std::uint32_t memory_bytes;  ///< of both queues and the bookkeeping
};

}  // namespace ringsock::engine::tcp
