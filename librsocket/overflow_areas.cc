#include "librsocket/overflow_areas.h"

#include <sys/mman.h>

#include <algorithm>

#include "core/base/at_fork.h"
#include "core/base/rare_calls.h"
#include "librsocket/kept_memory.h"

namespace ringsock::rs {

namespace {

/// New pages cost a busy sender much, so an area keeps its memory as long as it is used.
constexpr Nanos kUnusedFor = std::chrono::milliseconds(100);
/// How often it is looked whether the peer has read what is charged.
constexpr Nanos kLookInterval = std::chrono::seconds(1);
/// As much as a receive ring has, which a stranger may fill anyway.
constexpr std::uint64_t kLeastWindow = 128U << 10;
constexpr std::uintptr_t kPageBytes = 4096;
/// Less memory that is kept for other connections stays until they come.
constexpr std::size_t kWorthATimer = std::size_t{1} << 20;

/// Gives the whole pages of a piece of an area to the kernel. Returns false if it does not take them.
bool give_pages(std::span<std::byte> piece) {
  const auto start = reinterpret_cast<std::uintptr_t>(piece.data());
  const std::uintptr_t skipped = (kPageBytes - start % kPageBytes) % kPageBytes;
  if (piece.size() < skipped + kPageBytes) return true;
  const std::size_t bytes = (piece.size() - skipped) / kPageBytes * kPageBytes;
  return ::madvise(piece.data() + skipped, bytes, MADV_REMOVE) == 0;
}

bool may_give_pages() { return is_permitted(RareCall::madvise_remove); }

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

void OverflowAreas::open(verbs::Device& device, ibv_qp& qp, std::uint32_t limit, std::optional<uid_t> other_user) {
  if (words_ == nullptr || !peer_ || (other_user && !may_give_pages())) return;
  const std::size_t length = peer_->length.host();
  auto* const words = device.rc().peer_memory(qp, peer_key_, peer_words_address_, wire::kRsOverflowWordBytes);
  auto* const area = device.rc().peer_memory(qp, peer_key_, peer_->addr.host(), length);
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(words) % wire::kRsOverflowWordBytes == 0;
  if (words == nullptr || area == nullptr || !is_aligned) {
    // A peer that has sent and closed already has taken its memory back, and what it sent may lie in ours.
    in_.open(own_words(), nobodys_, area_);
  } else {
    auto& peers = *reinterpret_cast<engine::OverflowWords*>(words);
    peer_area_ = {area, length};
    in_.open(own_words(), peers, area_);
    out_.open(own_words(), peers, peer_area_, limit);
    reads_.open(peers.reads);
  }
  forks_ = fork_generation();
  if (other_user) {
    charge_out_.begin(*other_user);
    charge_in_.begin(*other_user);
    out_.may_touch(0);
    in_.limit_window(kLeastWindow);
  }
  take_kept(device.rc().sparse_memory(qp, area_.data()), device.rc().sparse_memory(qp, area));
}

/// Takes over the memory that the areas have from an earlier connection of the same processes. If the budget has no
/// room for it, the kernel gets it. It gets our area's, too, if the connection is idle at first.
void OverflowAreas::take_kept(std::size_t own, std::size_t peers) {
  if (own + peers == 0) return;
  const Nanos now = monotonic_now();
  give_back_at(now + kUnusedFor);
  in_.has_memory(own);
  if (!is_limited()) return;
  if (peers != 0 && charge_out_.cover(peers, now) < peers && give_pages(peer_area_.first(peers)))
    charge_out_.give_back();
  out_.may_touch(charge_out_.covered());
  if (own == 0) return;
  if (charge_in_.cover(own, now) >= own) {
    limit_window();
  } else {
    give_back_read();
  }
}

bool OverflowAreas::were_used() const {
  return out_.was_used() || (in_.is_open() && own_words().written.load(std::memory_order_relaxed) != 0);
}

/// The peer may keep the memory. So pages that nobody needs are given back before that if the device does not take
/// them.
void OverflowAreas::close(verbs::Device& device, ibv_qp& qp) {
  if (const auto kept = keep(device, qp)) {
    if (*kept >= kWorthATimer) give_back_later(device);
    return;
  }
  if (were_used()) device.rc().leaves_traces(qp);
  if (!is_limited()) return;
  give_back_read();
  give_back_written();
}

/// Without the peer's area its memory is not known. Of another user's peer that has not read all the charges stay.
bool OverflowAreas::may_be_kept() const { return forks_ == fork_generation() && (!is_limited() || out_.is_empty()); }

std::optional<std::size_t> OverflowAreas::keep(verbs::Device& device, ibv_qp& qp) {
  if (!may_be_kept()) return std::nullopt;
  const auto reached = in_.shut();
  if (!reached) return std::nullopt;
  const auto kept = device.rc().keep_sparse(qp, {area_, *reached}, {peer_area_, out_.reached()}, out_.is_empty());
  if (kept) {
    charge_in_.give_back();
    charge_out_.give_back();
  } else {
    in_.reopen();
  }
  return kept;
}

// -- sending

Result<OverflowAreas::Appended> OverflowAreas::append(IoCursor& data, std::uint16_t last_message) {
  if (!out_.is_open()) return Appended{};
  if (charge_out_.is_limited()) {
    const Nanos now = monotonic_now();
    out_.may_touch(charge_out_.cover(out_.reach(data.left(peer_area_.size())), now));
    if (gives_back_at() == Nanos::max()) give_back_at(now + kLookInterval);
  }
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

bool OverflowAreas::release(bool is_alone) {
  if (!in_.is_open()) return false;
  if (is_limited()) widen_window();
  return in_.release(give_pages, is_alone) && in_.must_tell();
}

void OverflowAreas::widen_window() {
  const std::uint64_t before = charge_in_.covered();
  if (before >= area_.size() || !in_.has_used_window()) return;
  charge_in_.cover(before + OverflowCharge::kStep, monotonic_now());
  limit_window();
}

void OverflowAreas::limit_window() {
  const std::uint64_t covered = charge_in_.covered();
  in_.limit_window(covered >= area_.size() ? UINT64_MAX : std::max(kLeastWindow, covered));
}

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

// -- the ends

void OverflowAreas::tell_end(std::uint64_t ring_bytes, bool has_unread) {
  if (!in_.is_open() || waits_for_accept_.load(std::memory_order_relaxed)) return;
  reads_.tell_end(ring_bytes + in_.read_bytes(), has_unread || in_.has_unread());
}

void OverflowAreas::note(Acceptance now) {
  if (now == Acceptance::expected) {
    if (words_ != nullptr) own_words().reads.end.store(engine::ReadWords::kNotAccepted, std::memory_order_release);
    return;
  }
  const bool is_awaited = now == Acceptance::awaited;
  if (waits_for_accept_.exchange(is_awaited, std::memory_order_relaxed) && !is_awaited) reads_.note_accept();
}

engine::StreamEnd OverflowAreas::end_of_peer(std::uint64_t sent_bytes, bool was_asleep) const {
  if (!out_.is_open()) return engine::StreamEnd::unknown;
  const engine::OverflowWords& words = own_words();
  return engine::end_of_peer(words.reads,
                             {sent_bytes, words.read.load(std::memory_order_acquire), out_.is_empty(), was_asleep});
}

bool OverflowAreas::has_peer_got_next(std::uint64_t sent_bytes) const {
  if (!out_.is_open()) return false;
  const engine::OverflowWords& words = own_words();
  const std::uint64_t read = words.read.load(std::memory_order_acquire);
  return engine::has_got_next(words.reads, {sent_bytes, read, out_.is_empty(), false});
}

Status OverflowAreas::restore(const Saved& saved) {
  if (Status out = out_.restore(saved.out); !out) return out;
  appends_.store(saved.appends, std::memory_order_relaxed);
  return in_.restore(saved.in);
}

bool OverflowAreas::give_back() {
  give_back_at(Nanos::max());
  if (!in_.is_open() || !may_give_pages()) return false;
  give_back_read();
  const bool must_tell = in_.must_tell();
  give_back_written();
  if (charge_in_.covered() + charge_out_.covered() != 0) give_back_at(monotonic_now() + kLookInterval);
  return must_tell;
}

void OverflowAreas::leave_charges() {
  give_back_at(Nanos::max());
  charge_in_.give_back_later(monotonic_now());
  charge_out_.give_back_later(monotonic_now());
}

/// A sender that met the shut gate has wished for a message (must_tell()).
void OverflowAreas::give_back_read() {
  bool is_given = false;
  in_.give_back([&](std::span<std::byte> area) { is_given = give_pages(area); });
  if (is_given && is_limited()) {
    in_.limit_window(kLeastWindow);
    charge_in_.give_back();
  }
}

/// The peer may have given the pages back, or not: it does not say.
void OverflowAreas::give_back_written() {
  const std::uint64_t written = std::min<std::uint64_t>(charge_out_.covered(), peer_area_.size());
  if (written == 0 || !out_.is_empty()) return;
  if (out_.in_use()) {
    const auto left = out_.leave();
    if (!left || !*left) return;
  }
  if (!give_pages(peer_area_.first(written))) return;
  charge_out_.give_back();
  out_.may_touch(0);
}

}  // namespace ringsock::rs
