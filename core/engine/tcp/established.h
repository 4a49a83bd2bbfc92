// The state with which an established connection moves between the kernel (TCP_REPAIR) and the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/engine/tcp/sequence.h"

namespace ringsock::engine::tcp {

/// Everything with which an established connection begins, or goes on in the kernel. For TCP_REPAIR:
/// - TCP_QUEUE_SEQ of the send queue is snd_una + send_queue.size(); of the receive queue it is rcv_nxt.
/// - SIOCOUTQNSD gives the bytes not yet sent: snd_nxt = TCP_QUEUE_SEQ - SIOCOUTQNSD.
/// - TCP_REPAIR_WINDOW is {snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup}.
/// - TCP_TIMESTAMP is timestamp_now.
struct Established {
  Seq snd_una = 0;               ///< first byte that the peer has not acknowledged
  Seq snd_nxt = 0;               ///< first byte that was never sent
  Seq rcv_nxt = 0;               ///< next byte expected from the peer
  std::uint32_t snd_wnd = 0;     ///< the peer's window in bytes
  std::uint32_t snd_wl1 = 0;     ///< sequence number of the last window update
  std::uint32_t max_window = 0;  ///< largest window the peer has offered, bytes
  std::uint32_t rcv_wnd = 0;     ///< our window in bytes, as it was told at rcv_wup
  std::uint32_t rcv_wup = 0;     ///< rcv_nxt when the last window was told
  std::uint16_t mss = 536;       ///< largest payload without options that the peer takes, bytes
  std::uint8_t snd_scale = 0;    ///< shift of the windows that the peer sends, 0..14
  std::uint8_t rcv_scale = 0;    ///< shift of the windows that we send, 0..14
  bool window_scaling = false;   ///< whether both SYNs had the option
  bool sack = false;
  bool timestamps = false;
  bool ecn = false;                      ///< both sides use ECN; the kernel does not take it back
  bool peer_closed = false;              ///< CLOSE_WAIT: the peer's FIN is before rcv_nxt
  std::uint32_t timestamp_now = 0;       ///< our TSval at the moment of the move, milliseconds
  std::uint32_t ts_recent = 0;           ///< the peer's TSval that we echo; 0 when unknown
  std::vector<std::byte> send_queue;     ///< bytes from snd_una: sent and not acknowledged, then unsent
  std::vector<std::byte> receive_queue;  ///< bytes before rcv_nxt that the application has not read
};

}  // namespace ringsock::engine::tcp
