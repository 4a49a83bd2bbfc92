// The overflow area of a stream: bytes for which the receiver's ring has no room or no credits, in its memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "core/base/result.h"
#include "core/engine/stream/read_words.h"

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
/// through the start of the area only. The owner takes it over while it has nothing to read: it goes on where it is, or
/// at the start. So in a window of bytes it touches few pages more than the bytes need.
///
/// No lost wake-up. After each append the sender sets `told`. If it was 0 the sender sends a message that makes the
/// owner look; it needs no credit, and there is one under way at a time. The owner sets `told` to 0 and then reads
/// `written`. So each append is seen by a look that is still to come, or has a message of its own. In the other
/// direction the sender writes `wake_at` and then reads `read` and the gate, the owner writes `read` or opens the gate
/// and then reads `wake_at`, each with a full barrier in between: the sender sees the room, or the owner sees the wish
/// and sends such a message.
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
  ReadWords reads;                          ///< what the peer has read from its ring
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
  /// Returns whether a sender that waits should go on: half of the area is free, or all of it where may_touch() bounds
  /// the sender, and the owner has not shut the gate. If only the gate is shut the peer will send a message once it is
  /// open.
  [[nodiscard]] bool has_room() const {
    return is_open() && has_enough_free() &&
           (peers_->gate.load(std::memory_order_acquire) != kGateOwner || has_gate_opened());
  }
  [[nodiscard]] bool is_empty() const { return !is_open() || unread() == 0; }
  /// Returns the bytes that the peer has not read. Threads: any; the answer may be outdated. The peer may write any
  /// number, so it is bounded by what was written.
  [[nodiscard]] std::uint64_t waiting() const {
    return is_open() ? std::min(unread(), written_.load(std::memory_order_relaxed)) : 0;
  }
  /// Returns how much of the area, from its start, has been written to. Threads: the sender.
  [[nodiscard]] std::uint64_t reached() const { return reached_; }
  [[nodiscard]] bool was_used() const { return written_.load(std::memory_order_relaxed) != 0; }

  /// Returns how much of the area, from its start, will have been written to after an append of so many bytes.
  [[nodiscard]] std::uint64_t reach(std::uint64_t bytes) const;
  /// Bounds the part of the area, from its start, that may be written to; at first all of it. While in_use() the bound
  /// may only rise.
  void may_touch(std::uint64_t bytes) { may_touch_ = bytes; }

  /// Begins an append. Returns the bytes that put() may store in all; if it is 0, append nothing: the peer will send a
  /// message when there is room, unless no part of the area may be written to. Error: EPROTO.
  Result<std::uint64_t> begin();
  void put(std::span<const std::byte> bytes);
  /// Ends an append. Returns whether a message must be sent that makes the peer look.
  bool end(std::uint16_t last_message);

  /// All that it knows, for another process that has a copy of it by fork(2) and bounds of its own (may_touch()).
  struct Saved {
    std::uint64_t known_read;
    std::uint64_t base;
    std::uint64_t written;
    std::uint8_t in_use;
  };
  // Threads: no other one uses it. Error: EPROTO for impossible values.
  [[nodiscard]] Saved save() const;
  Status restore(const Saved& saved);
  /// Returns whether no process with a copy has put more into the peer's area than `saved` knows, or was about to.
  [[nodiscard]] bool is_untouched_since(const Saved& saved) const;

 private:
  [[nodiscard]] std::uint64_t unread() const {
    return written_.load(std::memory_order_relaxed) - own_->read.load(std::memory_order_acquire);
  }
  static constexpr std::uint64_t kNever = UINT64_MAX;
  [[nodiscard]] bool has_enough_free() const {
    const std::uint64_t most = goes_on_at_.load(std::memory_order_relaxed);
    return most != kNever && unread() <= most;
  }
  [[nodiscard]] bool has_gate_opened() const;
  Result<std::uint64_t> free_bytes();
  Result<std::uint64_t> usable_bytes();
  [[nodiscard]] std::uint64_t left_to_touch() const;
  bool take_gate();
  void want_message_at(std::uint64_t position);

  std::atomic<bool> in_use_{false};  ///< first: each message looks at it
  OverflowWords* own_ = nullptr;
  OverflowWords* peers_ = nullptr;
  std::span<std::byte> area_;
  std::uint64_t limit_ = 0;
  std::uint64_t known_read_ = 0;
  std::uint64_t base_ = 0;
  std::uint64_t put_ = 0;  ///< written_, and what put() has added
  std::uint64_t reached_ = 0;
  std::uint64_t may_touch_ = UINT64_MAX;
  std::atomic<std::uint64_t> goes_on_at_{0};  ///< a sender that waits goes on when no more bytes are unread, or kNever
  std::atomic<std::uint64_t> written_{0};
};

/// The owner's half.
///
/// Pages that a sender names without having written them are made when the owner reads them. So of a sender that is not
/// trusted the owner only reads a window, and gives the pages behind it back before it goes on (limit_window()). While
/// the sender writes, and so holds the gate, the next window waits for the look that follows.
///
/// Threads: one at a time calls look(), limit_window() and release(), one reader at a time consumes; readable() from
/// any thread.
class OverflowReader {
 public:
  void open(OverflowWords& own, OverflowWords& peers, std::span<std::byte> area);
  [[nodiscard]] bool is_open() const { return own_ != nullptr; }

  /// Looks for bytes after the peer's message. `arrived` is the number, modulo 2^16, of the data messages that have
  /// arrived. Returns whether there are new bytes, which release() makes readable. Error: EPROTO.
  Result<bool> look(std::uint16_t arrived);
  /// Makes new bytes readable, as far as the window permits. Calls `give` with pieces of the area that are not needed,
  /// outside of pages that are, once the window is used up. Returns whether it has shut the gate: must_tell() follows.
  /// @param is_alone  the sender has ended, and may have left the gate shut
  template <class Give>
  bool release(Give give, bool is_alone = false);
  /// Limits the bytes that are read before pages are given back; at first they are not limited.
  void limit_window(std::uint64_t bytes) { window_ = bytes; }
  /// Returns whether there are new bytes outside the window.
  [[nodiscard]] bool has_used_window() const {
    const std::uint64_t known = known_.load(std::memory_order_relaxed);
    return found_ != known && known - window_start_ >= window_;
  }
  /// Returns the bytes that may be read, behind all that has arrived in the ring before they were counted.
  [[nodiscard]] std::uint64_t readable() const {
    return known_.load(std::memory_order_acquire) - read_.load(std::memory_order_relaxed);
  }
  /// Returns the number of bytes that have been read. Threads: any.
  [[nodiscard]] std::uint64_t read_bytes() const { return read_.load(std::memory_order_relaxed); }
  /// Returns whether the peer has put bytes here that have not been read, found by look() or not. Threads: any.
  [[nodiscard]] bool has_unread() const {
    return own_->written.load(std::memory_order_acquire) != read_.load(std::memory_order_relaxed);
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

  /// Tells that the area has memory for so many bytes from its start, although none was used by this connection.
  void has_memory(std::uint64_t bytes) { used_ = bytes; }
  /// Ends writing to the area for good. Returns how much of it, from its start, may have been written to; nothing while
  /// the peer writes, which may then write more.
  [[nodiscard]] std::optional<std::uint64_t> shut();
  /// Undoes shut().
  void reopen() { own_->gate.store(kGateOpen, std::memory_order_seq_cst); }

  /// All that it knows, for another process that has a copy of it by fork(2) and a window of its own (limit_window()).
  struct Saved {
    std::uint64_t used;
    std::uint64_t base;
    std::uint64_t found;
    std::uint64_t window_start;
    std::uint64_t known;
    std::uint64_t read;
  };
  // Threads: no other one uses it. Error: EPROTO for impossible values.
  [[nodiscard]] Saved save() const;
  Status restore(const Saved& saved);
  /// Returns whether no process with a copy has read more of our area than `saved` knows, or was giving pages back.
  [[nodiscard]] bool is_untouched_since(const Saved& saved) const;

 private:
  template <class Give>
  bool give_all_but_unread(Give give, std::uint64_t read, bool is_alone);

  /// Fewer used bytes are not worth the system call and the new pages.
  static constexpr std::uint64_t kWorthGiving = 64U << 10;

  OverflowWords* own_ = nullptr;
  OverflowWords* peers_ = nullptr;
  std::span<std::byte> area_;
  std::uint64_t used_ = 0;  ///< bytes read since the pages were given back
  std::uint64_t reached_ = 0;
  std::uint64_t base_ = 0;   ///< written by look() while there is nothing to read
  std::uint64_t found_ = 0;  ///< by look(): the end of the bytes that release() may make readable
  std::uint64_t window_ = UINT64_MAX;
  std::uint64_t window_start_ = 0;
  // Last: each message looks at them.
  std::atomic<std::uint64_t> known_{0};  ///< the end of the readable bytes
  std::atomic<std::uint64_t> read_{0};
};

template <class Give>
void OverflowReader::give_back(Give give) {
  if (!has_much_to_give()) return;
  std::uint32_t open = kGateOpen;
  if (!own_->gate.compare_exchange_strong(open, kGateOwner, std::memory_order_seq_cst)) return;
  if (own_->written.load(std::memory_order_acquire) == read_.load(std::memory_order_relaxed)) {
    give(area_);
    used_ = reached_ = 0;
  }
  own_->gate.store(kGateOpen, std::memory_order_seq_cst);
}

template <class Give>
bool OverflowReader::release(Give give, bool is_alone) {
  const std::uint64_t known = known_.load(std::memory_order_relaxed);
  if (known == found_) return false;
  const std::uint64_t read = read_.load(std::memory_order_acquire);
  bool has_shut = false;
  if (known == read && has_used_window()) {
    has_shut = give_all_but_unread(give, read, is_alone);
    if (!has_shut) return false;
    window_start_ = read;
  }
  const std::uint64_t left = window_ - std::min(window_, known - window_start_);
  known_.store(known + std::min(found_ - known, left), std::memory_order_release);
  return has_shut;
}

/// The sender may have written more than look() has found.
template <class Give>
bool OverflowReader::give_all_but_unread(Give give, std::uint64_t read, bool is_alone) {
  std::uint32_t open = kGateOpen;
  if (!own_->gate.compare_exchange_strong(open, kGateOwner, std::memory_order_seq_cst) && !is_alone) return false;
  const std::uint64_t size = area_.size();
  const std::uint64_t unread = std::min(own_->written.load(std::memory_order_acquire) - read, size);
  const std::uint64_t start = (read - base_) % size;
  const std::uint64_t end = start + unread;
  if (end <= size) {
    give(area_.subspan(end));
    give(area_.first(start));
  } else {
    give(area_.subspan(end - size, size - unread));
  }
  own_->gate.store(kGateOpen, std::memory_order_seq_cst);
  return true;
}

}  // namespace ringsock::engine
