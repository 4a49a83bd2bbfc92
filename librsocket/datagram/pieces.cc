#include "librsocket/datagram/pieces.h"

#include <algorithm>
#include <cstring>

#include "core/base/refusals.h"

namespace ringsock::rs {

std::optional<Pieces::Whole> Pieces::add(const wire::ParsedRsFragment& piece, std::uint32_t from, Nanos now) {
  const Place part = find_or_begin(piece, from, now);
  if (part == parts_.end()) return std::nullopt;
  const bool contradicts = part->total_bytes != piece.total_bytes || part->piece_bytes != piece.piece_bytes;
  if (contradicts || part->came.test(piece.index)) {
    count_refusal(Refusal::datagram);
    return std::nullopt;
  }
  part->came.set(piece.index);
  std::memcpy(part->memory.get() + piece.index * piece.piece_bytes, piece.payload.data(), piece.payload.size());
  if (--part->missing != 0) return std::nullopt;
  Whole whole{std::move(part->memory), part->total_bytes};
  bytes_ -= part->total_bytes;
  parts_.erase(part);
  return whole;
}

/// Returns the end when there is no room for another datagram.
Pieces::Place Pieces::find_or_begin(const wire::ParsedRsFragment& piece, std::uint32_t from, Nanos now) {
  const auto found =
      std::find_if(parts_.rbegin(), parts_.rend(), [&](const Part& one) { return one.is_of(piece, from); });
  if (found != parts_.rend()) return std::prev(found.base());
  if (!make_room(piece, from, now)) {
    count_refusal(Refusal::receive_buffer);
    return parts_.end();
  }
  Part& made = parts_.emplace_back();
  made.source = piece.source;
  made.from = from;
  made.datagram = piece.datagram;
  made.total_bytes = piece.total_bytes;
  made.piece_bytes = piece.piece_bytes;
  made.began = now;
  made.missing = (piece.total_bytes + piece.piece_bytes - 1) / piece.piece_bytes;
  made.memory = std::make_unique<std::byte[]>(piece.total_bytes);
  bytes_ += piece.total_bytes;
  return std::prev(parts_.end());
}

bool Pieces::make_room(const wire::ParsedRsFragment& piece, std::uint32_t from, Nanos now) {
  if (piece.total_bytes > most_bytes_) return false;
  while (!parts_.empty() && now - parts_.front().began >= kPatience) give_up(parts_.begin());
  const auto is_senders = [&](const Part& one) { return one.from == from && one.source == piece.source; };
  if (std::count_if(parts_.begin(), parts_.end(), is_senders) >= static_cast<std::ptrdiff_t>(kMostOfOne))
    give_up(std::find_if(parts_.begin(), parts_.end(), is_senders));
  while (parts_.size() >= kMost || bytes_ + piece.total_bytes > most_bytes_) give_up(parts_.begin());
  return true;
}

void Pieces::give_up(Place part) {
  count_refusal(Refusal::receive_buffer);
  bytes_ -= part->total_bytes;
  parts_.erase(part);
}

void Pieces::clear() {
  parts_.clear();
  bytes_ = 0;
}

}  // namespace ringsock::rs
