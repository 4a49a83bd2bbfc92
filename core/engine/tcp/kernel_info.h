// TCP_INFO of a connection, as Linux fills it.
#pragma once

#include <netinet/tcp.h>

#include <cstdint>

#include "core/engine/tcp/settings.h"

namespace ringsock::engine::tcp {

/// Returns TCP_ESTABLISHED and so on.
int kernels_state_of(State state);

/// TCP_INFO as Linux 5.4 and later fill it; <netinet/tcp.h> ends before `pacing_rate`. Times are in microseconds.
struct KernelTcpInfo {
  tcp_info first;
  std::uint64_t pacing_rate, max_pacing_rate;  ///< bytes/s
  std::uint64_t bytes_acked, bytes_received;
  std::uint32_t segs_out, segs_in;
  std::uint32_t notsent_bytes, min_rtt;
  std::uint32_t data_segs_in, data_segs_out;
  std::uint64_t delivery_rate, busy_time, rwnd_limited, sndbuf_limited;
  std::uint32_t delivered, delivered_ce;
  std::uint64_t bytes_sent, bytes_retrans;
  std::uint32_t dsack_dups, reord_seen;
  std::uint32_t rcv_ooopack, snd_wnd;
};
static_assert(sizeof(KernelTcpInfo) == 232);

/// Replaces what the engine knows: all but times since the last segments, MTU, reordering, rates and shares of time.
void fill_tcp_info(const Info& from, KernelTcpInfo& all);

}  // namespace ringsock::engine::tcp
