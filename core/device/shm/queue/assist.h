// Assisted requests: accesses to registered memory that its owner's progress carries out for the peer.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "core/device/common/device_context.h"
#include "core/device/common/protection_domain.h"

namespace ringsock::soft {

/// The header of an assisted request in the payload ring, in front of its data: what the owner's progress must do to
/// its memory.
struct AssistHeader {
  std::uint32_t kind;  ///< AssistKind
  std::uint32_t rkey;
  std::uint64_t address;
  std::uint64_t length;  ///< bytes behind the header: data to write, or room for the data read
  std::uint64_t compare_add;
  std::uint64_t swap;
  std::uint64_t original;  ///< result of an atomic operation
};
static_assert(sizeof(AssistHeader) == 48);
enum class AssistKind : std::uint32_t { write = 1, read = 2, compare_swap = 3, fetch_add = 4 };
inline bool is_atomic(AssistKind kind) { return kind == AssistKind::compare_swap || kind == AssistKind::fetch_add; }

/// Atomic operations on 8-byte aligned memory, which may be shared with another process. They return the former value.
std::uint64_t compare_and_swap(std::byte* memory, std::uint64_t expected, std::uint64_t desired);
std::uint64_t fetch_and_add(std::byte* memory, std::uint64_t addend);

/// Carries out a request on memory that is registered in the domain. Memory that the application has unmapped or
/// protected is treated as not registered.
/// @param place       the place of the request, where its data follows and the answer is stored
/// @param data_bytes  behind the header
/// @return IBV_WC_SUCCESS, or the status for the peer
ibv_wc_status carry_out(const AssistHeader& request, std::byte* place, std::uint32_t data_bytes,
                        ProtectionDomain& domain, const KeyTable& keys);

}  // namespace ringsock::soft
