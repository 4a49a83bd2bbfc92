#include "core/ethernet/train.h"

#include <cstring>
#include <new>

namespace ringsock::ethernet {

bool Train::takes(std::span<const std::byte> header, std::size_t payload_bytes) const {
  return count_ != 0 && payload_bytes == payload_bytes_ && header.size() == header_bytes_ && !is_full() &&
         std::memcmp(header.data(), header_.data(), header_bytes_) == 0;
}

bool Train::begin(std::span<const std::byte> header, std::size_t payload_bytes) {
  if (payload_bytes == 0 || payload_bytes > kMostBytes || header.size() > header_.size()) return false;
  if (!payload_) payload_.reset(new (std::nothrow) std::byte[kMostBytes]);
  if (!payload_) return false;
  std::memcpy(header_.data(), header.data(), header.size());
  header_bytes_ = header.size();
  payload_bytes_ = payload_bytes;
  return true;
}

void Train::add(std::span<const ibv_sge> pieces) {
  std::byte* to = payload_.get() + count_++ * payload_bytes_;
  for (const ibv_sge& piece : pieces) {
    if (piece.length != 0) std::memcpy(to, reinterpret_cast<const std::byte*>(piece.addr), piece.length);
    to += piece.length;
  }
}

void Train::describe(Request& out) {
  const auto piece = [](std::byte* from, std::size_t bytes) {
    return ibv_sge{reinterpret_cast<std::uintptr_t>(from), static_cast<std::uint32_t>(bytes), 0};
  };
  out.pieces = {piece(header_.data(), header_bytes_), piece(payload_.get(), count_ * payload_bytes_)};
  out.wr = count_ == 1 ? frame_request(out.pieces, IBV_SEND_INLINE | IBV_SEND_IP_CSUM)
                       : segments_request(std::span(header_).first(header_bytes_), std::span(out.pieces).subspan(1),
                                          payload_bytes_);
}

}  // namespace ringsock::ethernet
