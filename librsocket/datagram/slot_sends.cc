#include "librsocket/datagram/slot_sends.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "core/wire/rs_datagram.h"

namespace ringsock::rs {

SlotSends::SlotSends(ibv_qp& qp, ibv_cq& cq, const Memory& memory, std::uint32_t inline_bytes)
    : qp_(qp), cq_(cq), memory_(memory), inline_bytes_(inline_bytes), slots_(memory.bytes.size() / memory.slot_bytes) {
  for (std::size_t slot = slots_; slot-- > 0;) free_.push_back(static_cast<std::uint32_t>(slot));
}

bool SlotSends::has_room(std::size_t count) {
  if (free_.size() < count) reap();
  return free_.size() >= count;
}

Status SlotSends::send(ibv_ah& handle, std::uint32_t qp_number, std::span<const std::byte> header, IoCursor& data,
                       std::size_t most) {
  if (has_failed_) return Error{EIO, "ud: the queue pair has failed"};
  if (!has_room()) return Error{EAGAIN, "ud: all slots are under way"};
  const std::uint32_t slot = free_.back();
  std::byte* const to = memory_.bytes.data() + slot * memory_.slot_bytes;
  std::memcpy(to, header.data(), header.size());
  std::size_t bytes = header.size();
  for (std::size_t left = most; left > 0 && !data.done();) {
    const auto piece = data.take(left);
    std::memcpy(to + bytes, piece.data(), piece.size());
    bytes += piece.size();
    left -= piece.size();
  }
  ibv_sge sge{reinterpret_cast<std::uint64_t>(to), static_cast<std::uint32_t>(bytes), memory_.key};
  ibv_send_wr request{};
  request.wr_id = slot;
  request.sg_list = &sge;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED | (bytes <= inline_bytes_ ? unsigned{IBV_SEND_INLINE} : 0);
  request.wr.ud = {&handle, qp_number, wire::kRsUdQkey};
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(&qp_, &request, &bad); error != 0) {
    has_failed_ = error != ENOMEM;  // a queue that is full
    return Error{has_failed_ ? EIO : EAGAIN, "ibv_post_send"};
  }
  free_.pop_back();
  ++posted_;
  return ok();
}

void SlotSends::retire(verbs::Ah handle) {
  if (!handle) return;
  if (completed_ != posted_) reap();
  if (completed_ != posted_) retired_.push_back({std::move(handle), posted_});
}

void SlotSends::reap() {
  std::array<ibv_wc, 16> done;
  for (int got = static_cast<int>(done.size()); got == static_cast<int>(done.size());) {
    got = ibv_poll_cq(&cq_, static_cast<int>(done.size()), done.data());
    for (int i = 0; i < got; ++i) {
      const ibv_wc& one = done[static_cast<std::size_t>(i)];
      // A datagram that a device cannot send ends the sending of its queue pair.
      has_failed_ = has_failed_ || one.status != IBV_WC_SUCCESS;
      free_.push_back(static_cast<std::uint32_t>(one.wr_id));
      ++completed_;
    }
  }
  std::erase_if(retired_, [this](const Retired& one) { return one.last_send <= completed_; });
}

}  // namespace ringsock::rs
