// Copying between a flat buffer and a list of scatter/gather elements.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace ringsock::soft {

inline std::span<const ibv_sge> sges_of(const ibv_send_wr& wr) {
  return {wr.sg_list, static_cast<std::size_t>(wr.num_sge)};
}

inline std::uint64_t length_of(std::span<const ibv_sge> sges) {
  std::uint64_t total = 0;
  for (const ibv_sge& sge : sges) total += sge.length;
  return total;
}

/// Visits the memory behind bytes [offset, offset + length) of the list: visit(std::byte*, std::size_t).
template <class Visit>
void for_each_part(std::span<const ibv_sge> sges, std::uint64_t offset, std::uint64_t length, Visit visit) {
  for (const ibv_sge& sge : sges) {
    if (length == 0) return;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const std::uint64_t part = std::min(length, sge.length - offset);
    visit(reinterpret_cast<std::byte*>(sge.addr + offset), part);
    offset = 0;
    length -= part;
  }
}

inline void gather(std::span<const ibv_sge> sges, std::uint64_t offset, std::uint64_t length, std::byte* to) {
  for_each_part(sges, offset, length, [&](const std::byte* part, std::size_t bytes) {
    std::memcpy(to, part, bytes);
    to += bytes;
  });
}

inline void scatter(const std::byte* from, std::span<const ibv_sge> sges, std::uint64_t offset, std::uint64_t length) {
  if (offset == 0 && sges.size() == 1 && length != 0 && length <= sges.front().length) [[likely]] {
    std::memcpy(reinterpret_cast<std::byte*>(sges.front().addr), from, length);
    return;
  }
  for_each_part(sges, offset, length, [&](std::byte* part, std::size_t bytes) {
    std::memcpy(part, from, bytes);
    from += bytes;
  });
}

/// The number of bytes at the end of a plain WRITE that become visible last.
inline constexpr std::uint64_t kTailBytes = 8;

/// Copies so that the end becomes visible last. A plain WRITE has no message behind it. Programs that watch its last
/// byte (riostream does) rely on devices writing in this order. memcpy(3) may store it first.
inline void place_in_order(std::span<const ibv_sge> list, std::uint64_t length, std::byte* to) {
  const std::uint64_t head = length > kTailBytes ? length - kTailBytes : 0;
  gather(list, 0, head, to);
  std::atomic_thread_fence(std::memory_order_release);
  gather(list, head, length - head, to + head);
}

}  // namespace ringsock::soft
