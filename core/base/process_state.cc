#include "core/base/process_state.h"

namespace ringsock {

constinit ProcessParts process_parts{};

void* room_for_part(std::size_t bytes) {
  constexpr std::size_t kMask = ProcessParts::kAlignment - 1;
  auto& used = process_parts.used;
  auto& room = process_parts.room;
  const std::size_t wanted = (bytes + kMask) & ~kMask;
  const std::size_t begin = used.fetch_add(wanted, std::memory_order_relaxed);
  if (begin + wanted <= room.size()) return &room[begin];
  return ::operator new (bytes, std::align_val_t{ProcessParts::kAlignment});
}

}  // namespace ringsock
