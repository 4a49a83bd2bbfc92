#include "librsocket/send_ring.h"

#include <algorithm>
#include <utility>

namespace ringsock::rs {

Result<SendRing> SendRing::create(verbs::Device& device, ibv_pd& pd, std::uint32_t ring_bytes,
                                  std::size_t extra_bytes) {
  SendRing ring;
  // A whole number of cache lines keeps `extra` aligned.
  ring.size_ = std::clamp(ring_bytes, kMinBytes, kMaxBytes) & ~63u;
  auto pages = verbs::Pages::allocate(ring.size_ + extra_bytes);
  if (!pages) return pages.error();
  ring.pages_ = *std::move(pages);
  const auto memory = ring.pages_.bytes();
  auto mr = device.reg_mr(pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE);
  if (!mr) return mr.error();
  ring.mr_ = *std::move(mr);
  return ring;
}

SendRing& SendRing::operator=(SendRing&& other) noexcept {
  // The registration is replaced first, because it refers to the pages.
  mr_ = std::move(other.mr_);
  pages_ = std::move(other.pages_);
  size_ = std::exchange(other.size_, 0u);
  offset_ = other.offset_;
  head_.store(other.head_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  tail_.store(other.tail_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  return *this;
}

SendRing::Pieces SendRing::copy_in(IoCursor& data, std::uint32_t limit) {
  Pieces pieces{};
  const std::uint32_t room = std::min(limit, free_bytes());
  while (pieces.length < room && !data.done()) {
    const std::uint32_t until_end = size_ - offset_;
    const auto piece = data.take(std::min(room - pieces.length, until_end));
    const auto step = static_cast<std::uint32_t>(piece.size());
    std::byte* const to = pages_.bytes().data() + offset_;
    std::memcpy(to, piece.data(), step);
    if (pieces.count == 0 || offset_ == 0) {
      pieces.list[static_cast<std::size_t>(pieces.count++)] = {reinterpret_cast<std::uintptr_t>(to), 0, mr_->lkey};
    }
    pieces.list[static_cast<std::size_t>(pieces.count - 1)].length += step;
    pieces.length += step;
    offset_ = step == until_end ? 0 : offset_ + step;
  }
  head_.store(head_.load(std::memory_order_relaxed) + pieces.length, std::memory_order_relaxed);
  return pieces;
}

}  // namespace ringsock::rs
