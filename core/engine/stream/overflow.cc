#include "core/engine/stream/overflow.h"

#include <utility>

namespace ringsock::engine {

// -- the sender

void OverflowWriter::open(OverflowWords& own, OverflowWords& peers, std::span<std::byte> area, std::uint64_t limit) {
  own_ = &own;
  peers_ = &peers;
  area_ = area;
  limit_ = std::min<std::uint64_t>(limit, area.size());
  goes_on_at_.store(limit_ / 2, std::memory_order_relaxed);
}

/// The peer may write any number at any time, so it is read once, and may neither fall nor exceed what was written.
Result<std::uint64_t> OverflowWriter::free_bytes() {
  const std::uint64_t read = own_->read.load(std::memory_order_acquire);
  if (read < known_read_ || read > put_) return Error{EPROTO, "rsocket: the peer has read more than was written"};
  known_read_ = read;
  return limit_ - std::min(limit_, put_ - read);
}

Result<bool> OverflowWriter::leave() {
  if (auto free = free_bytes(); !free) return free.error();
  if (known_read_ != put_ || peers_->told.load(std::memory_order_acquire) != 0) return false;
  in_use_.store(false, std::memory_order_relaxed);
  goes_on_at_.store(limit_ / 2, std::memory_order_relaxed);
  return true;
}

void OverflowWriter::want_message_at(std::uint64_t position) {
  peers_->wake_at.store(std::max<std::uint64_t>(position, 1), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool OverflowWriter::take_gate() {
  std::uint32_t open = kGateOpen;
  return peers_->gate.compare_exchange_strong(open, kGateSender, std::memory_order_seq_cst);
}

/// Returns whether the owner, which had the gate, has opened it, or wishes for a message. Threads: any.
bool OverflowWriter::has_gate_opened() const {
  // Loaded first: an append that comes in between, and leaves too little room, has stored a later wish.
  std::uint64_t wish = peers_->wake_at.load(std::memory_order_acquire);
  const std::uint64_t now = std::max<std::uint64_t>(own_->read.load(std::memory_order_acquire), 1);
  if (!has_enough_free()) return false;
  if (wish == 0 || wish > now) peers_->wake_at.compare_exchange_strong(wish, now, std::memory_order_seq_cst);
  return peers_->gate.load(std::memory_order_seq_cst) != kGateOwner;
}

std::uint64_t OverflowWriter::reach(std::uint64_t bytes) const {
  const std::uint64_t start = is_empty() ? 0 : put_ - base_;
  return std::min<std::uint64_t>(area_.size(), start + std::min(bytes, limit_));
}

std::uint64_t OverflowWriter::left_to_touch() const {
  return may_touch_ >= area_.size() ? UINT64_MAX : may_touch_ - std::min(may_touch_, put_ - base_);
}

/// Returns the bytes that may be written now. If there are none the peer will send a message when it is time.
Result<std::uint64_t> OverflowWriter::usable_bytes() {
  auto free = free_bytes();
  if (free && *free == 0) {
    want_message_at(put_ - limit_ / 2);
    free = free_bytes();
  }
  if (!free || *free == 0) return free;
  if (known_read_ != put_ && left_to_touch() == 0) {
    // The part that may be written to is filled again from its start, once the peer has read all of it.
    goes_on_at_.store(0, std::memory_order_relaxed);
    want_message_at(put_);
    free = free_bytes();
    if (!free) return free;
  }
  if (known_read_ == put_) base_ = put_;
  if (may_touch_ == 0) goes_on_at_.store(kNever, std::memory_order_relaxed);
  return std::min(*free, left_to_touch());
}

Result<std::uint64_t> OverflowWriter::begin() {
  const auto free = usable_bytes();
  if (!free || *free == 0) return free;
  if (take_gate()) return free;
  // The message comes when the gate is open and has_room() is true.
  want_message_at(put_ - std::min(put_, goes_on_at_.load(std::memory_order_relaxed)));
  return take_gate() ? free : Result<std::uint64_t>(std::uint64_t{0});
}

void OverflowWriter::put(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::uint64_t at = (put_ - base_) % area_.size();
    const std::size_t step = std::min<std::size_t>(bytes.size(), area_.size() - at);
    std::memcpy(area_.data() + at, bytes.data(), step);
    bytes = bytes.subspan(step);
    put_ += step;
  }
}

bool OverflowWriter::end(std::uint16_t last_message) {
  const std::uint64_t goes_on_at = left_to_touch() == 0 ? 0 : limit_ / 2;
  reached_ = std::max(reached_, std::min<std::uint64_t>(put_ - base_, area_.size()));
  in_use_.store(true, std::memory_order_relaxed);
  goes_on_at_.store(goes_on_at, std::memory_order_relaxed);
  written_.store(put_, std::memory_order_relaxed);
  peers_->last_message.store(last_message, std::memory_order_relaxed);
  peers_->base.store(base_, std::memory_order_relaxed);
  peers_->written.store(put_, std::memory_order_release);
  peers_->gate.store(kGateOpen, std::memory_order_release);
  // Stored before the exchange, which is a full barrier: has_room() of a thread that is about to sleep comes behind it.
  if (unread() > goes_on_at) peers_->wake_at.store(put_ - goes_on_at, std::memory_order_release);
  return peers_->told.exchange(1, std::memory_order_seq_cst) == 0;
}

OverflowWriter::Saved OverflowWriter::save() const {
  return {known_read_, base_, put_, in_use_.load(std::memory_order_relaxed)};
}

Status OverflowWriter::restore(const Saved& saved) {
  const bool is_possible = saved.known_read <= saved.written && saved.written - saved.known_read <= area_.size() &&
                           saved.base <= saved.written && (is_open() || saved.in_use == 0);
  if (!is_possible) return Error{EPROTO, "rsocket: an impossible overflow"};
  known_read_ = saved.known_read;
  base_ = saved.base;
  put_ = saved.written;
  written_.store(saved.written, std::memory_order_relaxed);
  in_use_.store(saved.in_use != 0, std::memory_order_relaxed);
  goes_on_at_.store(limit_ / 2, std::memory_order_relaxed);
  return ok();
}

bool OverflowWriter::is_untouched_since(const Saved& saved) const {
  return !is_open() || (peers_->written.load(std::memory_order_acquire) == saved.written &&
                        peers_->gate.load(std::memory_order_acquire) != kGateSender);
}

// -- the owner

void OverflowReader::open(OverflowWords& own, OverflowWords& peers, std::span<std::byte> area) {
  own_ = &own;
  peers_ = &peers;
  area_ = area;
}

Result<bool> OverflowReader::look(std::uint16_t arrived) {
  own_->told.store(0, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // What the peer writes is read once. `last_message` comes second, so it is that of `written` or of a later append.
  const std::uint64_t written = own_->written.load(std::memory_order_acquire);
  const auto last_message = static_cast<std::uint16_t>(own_->last_message.load(std::memory_order_acquire));
  if (last_message != arrived) return false;
  const std::uint64_t read = read_.load(std::memory_order_acquire);
  if (written - found_ > area_.size() || written - read > area_.size()) {
    return Error{EPROTO, "rsocket: the peer wrote more than there is room for"};
  }
  if (found_ == read) {
    const std::uint64_t base = own_->base.load(std::memory_order_relaxed);
    if (base != base_ && base != read) return Error{EPROTO, "rsocket: the peer's bytes begin at no possible place"};
    base_ = base;
  }
  reached_ = std::max(reached_, std::min<std::uint64_t>(written - base_, area_.size()));
  return written != std::exchange(found_, written);
}

std::optional<std::uint64_t> OverflowReader::shut() {
  std::uint32_t open = kGateOpen;
  if (!own_->gate.compare_exchange_strong(open, kGateOwner, std::memory_order_seq_cst)) return std::nullopt;
  // What was not looked at begins where what was found begins, or the peer has read all of that, and so we have.
  const std::uint64_t written = own_->written.load(std::memory_order_acquire);
  const std::uint64_t base = own_->base.load(std::memory_order_relaxed);
  return std::max(reached_, std::min<std::uint64_t>(written - base, area_.size()));
}

std::span<const std::byte> OverflowReader::peek(std::uint64_t ahead) const {
  const std::uint64_t left = readable() - ahead;
  const std::uint64_t at = (read_.load(std::memory_order_relaxed) + ahead - base_) % area_.size();
  return area_.subspan(at, std::min<std::uint64_t>(left, area_.size() - at));
}

void OverflowReader::consume(std::uint64_t bytes) {
  const std::uint64_t read = read_.load(std::memory_order_relaxed) + bytes;
  read_.store(read, std::memory_order_release);
  peers_->read.store(read, std::memory_order_release);
  used_ += bytes;
}

bool OverflowReader::must_tell() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::uint64_t wish = own_->wake_at.load(std::memory_order_acquire);
  if (wish == 0) return false;
  // A sender that has written nothing yet, and waits for the gate, cannot wish for less than 1.
  if (read_.load(std::memory_order_relaxed) < wish && has_unread()) return false;
  return own_->wake_at.compare_exchange_strong(wish, 0, std::memory_order_relaxed);
}

OverflowReader::Saved OverflowReader::save() const {
  return {used_,
          base_,
          found_,
          window_start_,
          known_.load(std::memory_order_relaxed),
          read_.load(std::memory_order_relaxed)};
}

Status OverflowReader::restore(const Saved& saved) {
  const bool is_possible = saved.read <= saved.known && saved.known <= saved.found &&
                           saved.found - saved.read <= area_.size() && saved.window_start <= saved.known;
  if (!is_possible) return Error{EPROTO, "rsocket: an impossible overflow"};
  used_ = saved.used;
  base_ = saved.base;
  found_ = saved.found;
  window_start_ = saved.window_start;
  read_.store(saved.read, std::memory_order_relaxed);
  known_.store(saved.known, std::memory_order_release);
  return ok();
}

bool OverflowReader::is_untouched_since(const Saved& saved) const {
  return !is_open() || (peers_->read.load(std::memory_order_acquire) == saved.read &&
                        own_->gate.load(std::memory_order_acquire) != kGateOwner);
}

}  // namespace ringsock::engine
