// What the work requests of a connection have in common.
#pragma once

#include <bit>
#include <cstdint>

#include "core/verbs/device.h"
#include "core/wire/big_endian.h"
#include "core/wire/rs_message.h"

namespace ringsock::rs {

// The contents of a wr_id: the number of data messages that the completion retires (bits 0 to 15) and their bytes of
// the send ring (16 to 47), or one of these.
inline constexpr std::uint64_t kReceiveId = std::uint64_t{1} << 63;  ///< plus the number of the receive
inline constexpr std::uint64_t kControlId = std::uint64_t{1} << 62;  ///< plus the control slot
inline constexpr std::uint64_t kEndId = std::uint64_t{1} << 61;
/// The WRITE before a SEND: completes only when it fails.
inline constexpr std::uint64_t kPartId = std::uint64_t{1} << 60;
inline constexpr std::uint64_t kLookId = std::uint64_t{1} << 59;  ///< RsControl::look: completes only when it fails
inline constexpr std::uint64_t kNotData = kReceiveId | kControlId | kEndId | kPartId | kLookId;
inline constexpr unsigned kRingBytesShift = 16;

/// A message longer than this is sent in pieces, so that the reader copies one while the writer copies the next.
inline constexpr std::uint32_t kPieceBytes = 16 * 1024;

/// Returns whether the device accepts whole pieces inline and so needs no send ring.
inline bool takes_all_inline(const verbs::Device& device) { return device.traits().max_inline_data >= kPieceBytes; }

/// Returns the word of a message as ibv_send_wr::imm_data has it.
inline std::uint32_t word_in_network_order(const wire::RsMessage& message) {
  return std::bit_cast<std::uint32_t>(wire::Be32(wire::encode_rs_message(message)));
}
inline std::uint32_t word_in_network_order(wire::RsControl control) {
  return word_in_network_order({wire::RsOpcode::ctrl, static_cast<std::uint32_t>(control)});
}

inline std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace ringsock::rs
