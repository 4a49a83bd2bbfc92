// What a ring does itself on devices that do less than the embedded one: network cards.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/clock.h"
#include "core/device/soft/packet/packet_layout.h"
#include "core/verbs/buffer_pool.h"
#include "libvmacompat/interface.h"
#include "libvmacompat/ring.h"

namespace ringsock::vma {

/// Until all receives are back, or the device has had its time.
void Ring::collect_flushed() {
  constexpr Nanos kPatience = std::chrono::milliseconds(100);
  ibv_wc completions[kBatch];
  const Nanos end = monotonic_now() + kPatience;
  while (posted_ != 0) {
    const int count = ibv_poll_cq(receive_cq_.get(), kBatch, completions);
    if (count < 0 || (count == 0 && (interface_->is_embedded() || monotonic_now() > end))) break;
    for (int i = 0; i < count; ++i, --posted_)
      verbs::BufferRef(*reinterpret_cast<verbs::BufferHeader*>(completions[i].wr_id));
  }
}

bool Ring::has_right_checksums(const ibv_wc& completion, std::span<const std::byte> bytes) const {
  if (interface_->does_checksums() && (completion.wc_flags & IBV_WC_IP_CSUM_OK) != 0) return true;
  return soft::has_right_checksums(bytes.first(std::min<std::size_t>(completion.byte_len, bytes.size())));
}

int Ring::adapt(ibv_send_wr& request, verbs::BufferRef& copy, ibv_sge& whole) const {
  const std::span pieces(request.sg_list, static_cast<std::size_t>(request.num_sge));
  std::size_t bytes = 0;
  for (const ibv_sge& piece : pieces) bytes += piece.length;
  if (interface_->does_checksums() && bytes <= inline_bytes_ && pieces.size() <= most_pieces_) return 0;
  if (interface_->pool().take(std::span(&copy, 1)) == 0) return ENOMEM;
  const std::span<std::byte> room = copy.bytes();
  if (bytes > room.size()) return EMSGSIZE;
  std::byte* to = room.data();
  for (const ibv_sge& piece : pieces) {
    if (piece.length != 0) std::memcpy(to, reinterpret_cast<const void*>(piece.addr), piece.length);
    to += piece.length;
  }
  if (!interface_->does_checksums()) {
    soft::fill_checksums(room.first(bytes));
    request.send_flags &= ~static_cast<unsigned>(IBV_SEND_IP_CSUM);
  }
  request.send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
  whole = {reinterpret_cast<std::uintptr_t>(room.data()), static_cast<std::uint32_t>(bytes), copy.lkey()};
  request.sg_list = &whole;
  request.num_sge = 1;
  return 0;
}

}  // namespace ringsock::vma
