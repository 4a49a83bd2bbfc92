#include "core/device/shm/queue/ud_ring.h"

#include <sched.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/base/clock.h"

namespace ringsock::soft {

namespace {

constexpr std::uint32_t kSkip = ~0U;  ///< in place of a length: the rest of the ring's memory is not used
constexpr std::size_t kAlignment = 64;

/// In front of the payload.
struct UdEntry {
  std::uint32_t bytes;  ///< of the payload, or kSkip
  std::uint32_t zero;
  DatagramHeader header;
};
static_assert(sizeof(UdEntry) == 40 && kUdRingBytes % kAlignment == 0);

constexpr std::size_t room_for(std::size_t payload) {
  return (sizeof(UdEntry) + payload + kAlignment - 1) / kAlignment * kAlignment;
}
constexpr std::size_t offset_of(std::uint64_t position) { return position % kUdRingBytes; }

}  // namespace

std::byte* UdRingWriter::place(std::uint64_t position) const {
  return segment_->base() + kPageBytes + offset_of(position);
}

/// Returns how many bytes at the end of the ring's memory an entry of `needed` bytes leaves unused.
std::size_t UdRingWriter::skipped_before(std::size_t needed) const {
  const std::size_t to_end = kUdRingBytes - offset_of(tail_);
  return needed <= to_end ? 0 : to_end;
}

bool UdRingWriter::has_room(std::size_t bytes) {
  const std::size_t needed = room_for(bytes);
  const std::uint64_t end = tail_ + skipped_before(needed) + needed;
  if (end - known_head_ <= kUdRingBytes) return true;
  known_head_ = lines().head.load(std::memory_order_acquire);
  return end - known_head_ <= kUdRingBytes;
}

UdRingWriter::Put UdRingWriter::put(const DatagramHeader& header, std::span<const iovec> parts, std::size_t bytes) {
  if (lines().closed.load(std::memory_order_acquire) != 0) return Put::closed;
  if (!has_room(bytes)) {
    lines().lost.fetch_add(1, std::memory_order_relaxed);
    return Put::full;
  }
  const std::size_t needed = room_for(bytes);
  if (const std::size_t skipped = skipped_before(needed); skipped != 0) {
    std::memcpy(place(tail_), &kSkip, sizeof kSkip);
    tail_ += skipped;
  }
  const UdEntry entry{static_cast<std::uint32_t>(bytes), 0, header};
  std::byte* to = place(tail_);
  std::memcpy(to, &entry, sizeof entry);
  to += sizeof entry;
  for (const iovec& part : parts) {
    if (part.iov_len != 0) std::memcpy(to, part.iov_base, part.iov_len);
    to += part.iov_len;
  }
  tail_ += needed;
  lines().tail.store(tail_, std::memory_order_release);
  return Put::done;
}

bool UdRingWriter::must_ring() {
  // The receiver stores `armed` and looks at the tail again; we have stored the tail and look at `armed`.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return lines().armed.load(std::memory_order_relaxed) != 0 && lines().armed.exchange(0) != 0;
}

bool UdRingWriter::has_finished_without_it() const {
  constexpr Nanos kPatience = std::chrono::milliseconds(2);
  const Nanos deadline = monotonic_now() + kPatience;
  while (lines().closed.load(std::memory_order_acquire) != kUdRingFinished) {
    if (monotonic_now() >= deadline) return false;
    ::sched_yield();
  }
  return lines().head.load(std::memory_order_acquire) < tail_;
}

Result<std::optional<ParsedDatagram>> UdRingReader::front() {
  const std::uint64_t tail = lines().tail.load(std::memory_order_acquire);
  if (tail == head_) return std::optional<ParsedDatagram>();
  if (tail - head_ > kUdRingBytes || tail % kAlignment != 0) return Error{EPROTO, "ud ring: tail"};
  const std::byte* const start = segment_->base() + kPageBytes;
  UdEntry entry;
  std::memcpy(&entry.bytes, start + offset_of(head_), sizeof entry.bytes);
  if (entry.bytes == kSkip) {
    head_ += kUdRingBytes - offset_of(head_);
    if (tail == head_ || tail - head_ > kUdRingBytes) return Error{EPROTO, "ud ring: skip"};
  }
  // Copied once, as the sender may change it meanwhile.
  std::memcpy(&entry, start + offset_of(head_), sizeof entry);
  const bool is_sane = entry.bytes <= most_bytes_ && room_for(entry.bytes) <= tail - head_ &&
                       room_for(entry.bytes) <= kUdRingBytes - offset_of(head_) && is_sane_header(entry.header);
  if (!is_sane) return Error{EPROTO, "ud ring: entry"};
  next_ = head_ + room_for(entry.bytes);
  return std::optional(ParsedDatagram{entry.header, {start + offset_of(head_) + sizeof entry, entry.bytes}});
}

void UdRingReader::pop() {
  head_ = next_;
  lines().head.store(head_, std::memory_order_release);
}

std::uint64_t UdRingReader::lost() {
  const std::uint64_t now = lines().lost.load(std::memory_order_relaxed);
  const std::uint64_t more = now > lost_ ? now - lost_ : 0;
  lost_ = now;
  return more;
}

}  // namespace ringsock::soft
