#include "librsocket/overflow_areas.h"

#include <sys/mman.h>

#include <algorithm>

#include "core/base/rare_calls.h"

namespace ringsock::rs {

namespace {

/// New pages cost a busy sender much, so an area keeps its memory as long as it is used.
constexpr Nanos kUnusedFor = std::chrono::milliseconds(100);

}  // namespace

void OverflowAreas::offer(std::byte* words, std::span<std::byte> area) {
  words_ = words;
  area_ = area;
}

wire::RsOverflow OverflowAreas::offered() const {
  if (words_ == nullptr) return {};
  return {wire::Be32(wire::kRsOverflowMagic), wire::Be32(static_cast<std::uint32_t>(area_.size())),
          wire::Be64(reinterpret_cast<std::uintptr_t>(area_.data()))};
}

void OverflowAreas::take_offer(const wire::RsConnect& peer, const std::optional<wire::RsOverflow>& overflow) {
  peer_ = overflow;
  peer_words_address_ = peer.first_buffer.addr.host() - wire::kRsOverflowWordBytes;
  peer_key_ = peer.first_buffer.key.host();
}

void OverflowAreas::open(verbs::Device& device, ibv_qp& qp, std::uint32_t limit) {
  if (words_ == nullptr || !peer_) return;
  const std::size_t length = peer_->length.host();
  auto* const words = device.peer_memory(qp, peer_key_, peer_words_address_, wire::kRsOverflowWordBytes);
  auto* const area = device.peer_memory(qp, peer_key_, peer_->addr.host(), length);
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(words) % wire::kRsOverflowWordBytes == 0;
  if (words == nullptr || area == nullptr || !is_aligned) return;
  auto& peers = *reinterpret_cast<engine::OverflowWords*>(words);
  in_.open(own_words(), peers, area_);
  out_.open(own_words(), peers, {area, length}, limit);
}

bool OverflowAreas::were_used() const {
  return out_.was_used() || (in_.is_open() && own_words().written.load(std::memory_order_relaxed) != 0);
}

// -- sending

Result<OverflowAreas::Appended> OverflowAreas::append(IoCursor& data, std::uint16_t last_message) {
  const auto room = out_.begin();
  if (!room) return room.error();
  Appended done;
  if (*room == 0) return done;
  while (!data.done() && done.bytes < *room) {
    const auto piece = data.take(*room - done.bytes);
    out_.put(piece);
    done.bytes += piece.size();
  }
  appends_.store(appends_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  done.must_tell = out_.end(last_message);
  return done;
}

// -- reading

Result<bool> OverflowAreas::look(std::uint16_t arrived) { return in_.is_open() ? in_.look(arrived) : false; }

std::size_t OverflowAreas::copy_to(IoCursor& out, std::uint64_t most) const {
  std::uint64_t copied = 0;
  while (!out.done() && copied < most) {
    const auto piece = in_.peek(copied);
    copied += out.fill_from(piece.data(), std::min<std::uint64_t>(piece.size(), most - copied));
  }
  return copied;
}

bool OverflowAreas::consume(std::uint64_t bytes) {
  in_.consume(bytes);
  if (in_.has_much_to_give()) give_back_at(monotonic_now() + kUnusedFor);
  return in_.must_tell();
}

bool OverflowAreas::give_back() {
  give_back_at(Nanos::max());
  if (!in_.is_open() || !is_permitted(RareCall::madvise_remove)) return false;
  in_.give_back([](std::span<std::byte> area) { ::madvise(area.data(), area.size(), MADV_REMOVE); });
  return in_.must_tell();
}

}  // namespace ringsock::rs
