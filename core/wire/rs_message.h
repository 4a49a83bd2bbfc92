// The rsockets message word and the structures that RDMA writes place in the peer's memory. Source: fact
// sheet 2.4, 2.5.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/wire/big_endian.h"

namespace ringsock::wire {

/// The meaning of a message word. The values 1, 3 and 5 are reserved; upstream receivers treat them as data.
enum class RsOpcode : std::uint32_t {
  data = 0,
  write = 2,      ///< used by upstream locally, never sent; ignored when received
  sgl = 4,        ///< a new cumulative credit limit, perhaps with an announced buffer
  iomap_sgl = 6,  ///< an iomap entry has been written
  ctrl = 7,
};

/// Values of RsOpcode::ctrl. `look` is ringsock's: look at the overflow areas (RsOverflow); it is sent only to a peer
/// that has one, and others ignore it.
enum class RsControl : std::uint32_t { disconnect = 0, keepalive = 1, shutdown = 2, look = 3 };

/// A message word of 32 bits: the opcode in the top three bits, the value in the rest.
struct RsMessage {
  RsOpcode opcode;
  std::uint32_t value;  ///< 0..kMaxRsValue
};
inline constexpr std::uint32_t kMaxRsValue = (1u << 29) - 1;

constexpr std::uint32_t encode_rs_message(RsMessage message) {
  return static_cast<std::uint32_t>(message.opcode) << 29 | (message.value & kMaxRsValue);
}
constexpr RsMessage decode_rs_message(std::uint32_t word) {
  return {static_cast<RsOpcode>(word >> 29), word & kMaxRsValue};
}

/// Decodes a message word as the immediate data of verbs has it, in network byte order.
constexpr RsMessage rs_message_of(std::uint32_t immediate) {
  return decode_rs_message(std::bit_cast<Be32>(immediate).host());
}

/// Returns whether the message needs no credit. All other messages are data.
constexpr bool is_rs_control(RsOpcode opcode) {
  return opcode == RsOpcode::write || opcode == RsOpcode::sgl || opcode == RsOpcode::iomap_sgl ||
         opcode == RsOpcode::ctrl;
}

/// An announced buffer as RDMA writes it, in the byte order of the host whose memory is written.
struct PeerSge {
  std::uint64_t addr;
  std::uint32_t key;
  std::uint32_t length;  ///< in bytes; 0: nothing has been announced here yet
};
static_assert(sizeof(PeerSge) == 16);

/// An iomap entry as RDMA writes it, 24 bytes, in the same byte order as PeerSge.
struct PeerIomap {
  std::uint64_t offset;  ///< the stream offset that its owner has chosen
  PeerSge sge;
};
static_assert(sizeof(PeerIomap) == 24);

constexpr PeerSge swap_bytes(PeerSge sge) {
  return {swap_bytes(sge.addr), swap_bytes(sge.key), swap_bytes(sge.length)};
}
constexpr PeerIomap swap_bytes(PeerIomap entry) { return {swap_bytes(entry.offset), swap_bytes(entry.sge)}; }

}  // namespace ringsock::wire
