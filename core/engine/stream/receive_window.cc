#include "core/engine/stream/receive_window.h"

#include <algorithm>
#include <bit>

namespace ringsock::engine {

ReceiveWindow::ReceiveWindow(std::uint32_t ring_bytes, std::uint16_t queue_entries)
    : half_(ring_bytes / 2),
      ring_bytes_(2 * std::uint64_t{half_}),
      queue_entries_(queue_entries),
      lengths_mask_(std::bit_ceil(queue_entries + 1u) - 1),
      lengths_(std::make_unique<std::uint32_t[]>(lengths_mask_ + 1u)),
      credit_threshold_(std::max(1u, queue_entries / 2u)),
      announce_offset_(half_),
      announced_bytes_(half_) {}

void ReceiveWindow::announced(const Announcement& announcement) {
  if (announcement.has_buffer) {
    announced_bytes_.store(announced_bytes_.load(std::memory_order_relaxed) + announcement.length,
                           std::memory_order_release);
    announce_offset_ = announce_offset_ == 0 ? half_ : 0;
  }
  credit_threshold_.store(announcement.limit - queue_entries_ + std::max(1u, queue_entries_ / 2u),
                          std::memory_order_relaxed);
}

}  // namespace ringsock::engine
