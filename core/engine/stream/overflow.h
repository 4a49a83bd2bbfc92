// The overflow area of a stream: bytes for which the receiver's ring has no room or no credits, in its memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/result.h"

namespace ringsock::engine {

/// What the peer tells the owner of an overflow area, in the owner's memory. The peer writes it, except that the owner
/// takes `told`, `wake_at` and the gate.
///
/// One end's OverflowWriter and the other end's OverflowReader make one direction. The area is a ring of bytes, which
/// the owner reads and the peer writes. Positions count bytes since the start of the connection.
///
/// Order. The sender uses the area once it has no room or no credits, and then for all further bytes, until the owner
/// has read all of them and has looked (`told` is 0). So bytes in the area come behind all messages that were sent
/// before, whose number stands in `last_message`, and before all messages that are sent later. The owner accepts bytes
/// only when all those messages have arrived.
///
/// Place. The sender moves `base` when it begins to fill an empty area, so that a reader which keeps up leads both
/// through the start of the area only. The owner takes it over while it has nothing to read.
///
/// No lost wake-up. After each append the sender sets `told`. If it was 0 the sender sends a message that makes the
/// owner look; it needs no credit, and there is one under way at a time. The owner sets `told` to 0 and then reads
/// `written`. So each append is seen by a look that is still to come, or has a message of its own. In the other
/// direction the sender writes `wake_at` and then reads `read`, the owner writes `read` and then reads `wake_at`, each
/// with a full barrier in between: the sender sees the room, or the owner sees the wish and sends such a message.
///
/// An ignored look. If the owner reads `last_message` of messages that have not arrived, the sender has returned to its
/// ring since `told` became 0, and has then appended again. That append found `told` 0, so its message follows.
struct OverflowWords {
  std::atomic<std::uint64_t> written;       ///< bytes that the peer has put into our area
  std::atomic<std::uint64_t> read;          ///< bytes that the peer has read from its area, into which we write
  std::atomic<std::uint64_t> base;          ///< the position of the byte at the start of our area
  std::atomic<std::uint64_t> wake_at;       ///< the peer wants a message when we have read so many bytes; 0: none
  std::atomic<std::uint32_t> last_message;  ///< number, modulo 2^16, of the data messages before `written`
  std::atomic<std::uint32_t> told;          ///< 1: a message is under way that makes us look
  std::atomic<std::uint32_t> gate;          ///< OverflowGate: who works on the area's pages
};
static_assert(sizeof(OverflowWords) <= 64 && std::atomic<std::uint64_t>::is_always_lock_free);

/// The owner gives pages of the empty area back to the kernel only while the sender does not write.
enum OverflowGate : std::uint32_t { kGateOpen = 0, kGateSender = 1, kGateOwner = 2 };

/// The sender's half. Threads: one sender at a time; in_use(), has_room() and is_empty() from any thread.
class OverflowWriter {
 public:
  /// @param own    our words, of which it reads `read`
  /// @param peers  the words in the peer's memory
  /// @param area   the peer's area
  /// @param limit  unread bytes at most, 1..area.size()
  void open(OverflowWords& own, OverflowWords& peers, std::span<std::byte> area, std::uint64_t limit);
  [[nodiscard]] bool is_open() const { return own_ != nullptr; }

  /// Returns whether all bytes must go to the area.
  [[nodiscard]] bool in_use() const { return in_use_.load(std::memory_order_relaxed); }
  /// Returns whether messages may be sent again, because the peer has read all. Error: EPROTO.
  Result<bool> leave();
  /// Returns whether half of the area is free, which is when a sender that waits should go on.
  [[nodiscard]] bool has_room() const { return is_open() && unread() <= limit_ / 2; }
  [[nodiscard]] bool is_empty() const { return !is_open() || unread() == 0; }
  /// Returns the bytes that the peer has not read. Threads: any; the answer may be outdated. The peer may write any
  /// number, so it is bounded by what was written.
  [[nodiscard]] std::uint64_t waiting() const {
    return is_open() ? std::min(unread(), written_.load(std::memory_order_relaxed)) : 0;
  }
  [[nodiscard]] bool was_used() const { return written_.load(std::memory_order_relaxed) != 0; }

  /// Begins an append. Returns the bytes that put() may store in all; if it is 0, append nothing: the peer will send a
  /// message when there is room. Error: EPROTO.
  Result<std::uint64_t> begin();
  void put(std::span<const std::byte> bytes);
  /// Ends an append. Returns whether a message must be sent that makes the peer look.
  bool end(std::uint16_t last_message);

  /// All that it knows, for another process that has a copy of it by fork(2).
  struct Saved {
    std::uint64_t known_read;
    std::uint64_t base;
    std::uint64_t written;
    std::uint8_t in_use;
  };
  // Threads: no other one uses it. Error: EPROTO for impossible values.
  [[nodiscard]] Saved save() const;
  Status restore(const Saved& saved);

 private:
  [[nodiscard]] std::uint64_t unread() const {
    return written_.load(std::memory_order_relaxed) - own_->read.load(std::memory_order_acquire);
  }
  Result<std::uint64_t> free_bytes();
  bool take_gate();
  void want_message_at(std::uint64_t position);

  OverflowWords* own_ = nullptr;
  OverflowWords* peers_ = nullptr;
  std::span<std::byte> area_;
  std::uint64_t limit_ = 0;
  std::uint64_t known_read_ = 0;
  std::uint64_t base_ = 0;
  std::uint64_t put_ = 0;  ///< written_, and what put() has added
  std::atomic<std::uint64_t> written_{0};
  std::atomic<bool> in_use_{false};
};

/// The owner's half. Threads: one at a time calls look(), one reader at a time consumes; readable() from any thread.
class OverflowReader {
 public:
  void open(OverflowWords& own, OverflowWords& peers, std::span<std::byte> area);
  [[nodiscard]] bool is_open() const { return own_ != nullptr; }

  /// Looks for bytes after the peer's message. `arrived` is the number, modulo 2^16, of the data messages that have
  /// arrived. Returns whether there are new bytes. Error: EPROTO.
  Result<bool> look(std::uint16_t arrived);
  /// Returns the bytes that may be read, behind all that has arrived in the ring before they were counted.
  [[nodiscard]] std::uint64_t readable() const {
    return known_.load(std::memory_order_acquire) - read_.load(std::memory_order_relaxed);
  }
  /// Returns the first piece behind the `ahead` oldest bytes. ahead <= readable().
  [[nodiscard]] std::span<const std::byte> peek(std::uint64_t ahead = 0) const;
  /// Frees `bytes` <= readable() and tells the peer.
  void consume(std::uint64_t bytes);
  /// Returns, once for each wish of the peer, whether it must be sent a message because there is room. Call it after
  /// consume().
  bool must_tell();
  /// Returns whether the area is empty and so much of it was used that give_back() is worth its cost.
  [[nodiscard]] bool has_much_to_give() const { return used_ >= kWorthGiving && readable() == 0; }
  /// Calls `give` with the area if it has much to give, and the peer does not write.
  template <class Give>
  void give_back(Give give);

  /// All that it knows, for another process that has a copy of it by fork(2).
  struct Saved {
    std::uint64_t used;
    std::uint64_t base;
    std::uint64_t known;
    std::uint64_t read;
  };
  // Threads: no other one uses it. Error: EPROTO for impossible values.
  [[nodiscard]] Saved save() const;
  Status restore(const Saved& saved);

 private:
  /// Fewer used bytes are not worth the system call and the new pages.
  static constexpr std::uint64_t kWorthGiving = 64U << 10;

  OverflowWords* own_ = nullptr;
  OverflowWords* peers_ = nullptr;
  std::span<std::byte> area_;
  std::uint64_t used_ = 0;  ///< bytes read since the pages were given back
  std::uint64_t base_ = 0;  ///< written by look() while there is nothing to read
  std::atomic<std::uint64_t> known_{0};
  std::atomic<std::uint64_t> read_{0};
};

template <class Give>
void OverflowReader::give_back(Give give) {
  if (!has_much_to_give()) return;
  std::uint32_t open = kGateOpen;
  if (!own_->gate.compare_exchange_strong(open, kGateOwner, std::memory_order_seq_cst)) return;
  if (own_->written.load(std::memory_order_acquire) == read_.load(std::memory_order_relaxed)) {
    give(area_);
    used_ = 0;
  }
  own_->gate.store(kGateOpen, std::memory_order_seq_cst);
}

}  // namespace ringsock::engine
