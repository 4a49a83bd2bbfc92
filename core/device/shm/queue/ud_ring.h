// A ring of datagrams in shared memory, from one UD queue pair to another one of the same user.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/base/result.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/queue/ud_wire.h"

namespace ringsock::soft {

/// The first page of the segment; the bytes of the ring follow. Positions count bytes since the ring was made.
struct UdRingLines {
  // Written by the sender.
  alignas(kLineBytes) std::atomic<std::uint64_t> tail;  ///< behind the last datagram
  std::atomic<std::uint64_t> lost;                      ///< datagrams for which there was no room
  std::atomic<std::uint32_t> ended;                     ///< not 0: the sender sends no more
  // Written by the receiver.
  alignas(kLineBytes) std::atomic<std::uint64_t> head;  ///< what comes before was taken
  std::atomic<std::uint32_t> armed;                     ///< not 0: the next datagram rings; the sender clears it
  std::atomic<std::uint32_t> closed;                    ///< not 0: the receiver takes no more; kUdRingFinished
  /// Of rings of core/device/shm/datagrams: 0, kUdRingExpectsMark, or the last mark (mark.h) that has come.
  std::atomic<std::uint32_t> mark;
  std::atomic<std::uint32_t> is_sole;  ///< not 0: nobody goes on with the receiver's port once that has ended
};

/// UdRingLines::mark: the receiver knows the ring.
inline constexpr std::uint32_t kUdRingExpectsMark = 1;

/// UdRingLines::closed: the receiver has also taken all that it will take.
inline constexpr std::uint32_t kUdRingFinished = 2;

inline constexpr std::size_t kUdRingBytes = 256 << 10;
inline constexpr std::size_t kUdSegmentBytes = kPageBytes + kUdRingBytes;

/// The sender's end.
class UdRingWriter {
 public:
  explicit UdRingWriter(std::shared_ptr<MappedSegment> segment) : segment_(std::move(segment)) {}

  enum class Put { done, full, closed };
  /// Adds a datagram: header and payload of `bytes` in `parts`.
  Put put(const DatagramHeader& header, std::span<const iovec> parts, std::size_t bytes);
  /// Returns whether there is room for a datagram of `bytes`.
  [[nodiscard]] bool has_room(std::size_t bytes);
  /// Returns whether the receiver wants to be rung, without a promise.
  [[nodiscard]] bool is_armed() const { return lines().armed.load(std::memory_order_relaxed) != 0; }
  /// Returns whether the receiver wants to be rung for what was put last, once.
  [[nodiscard]] bool must_ring();
  /// Returns whether the receiver wants to be rung for the next datagram, once. It sleeps, then, unless it has just
  /// found something else.
  [[nodiscard]] bool take_arming() {
    return lines().armed.load(std::memory_order_relaxed) != 0 && lines().armed.exchange(0) != 0;
  }
  /// Undoes take_arming(), where the receiver was not woken.
  void give_arming_back() { lines().armed.store(1, std::memory_order_seq_cst); }
  /// Returns how many bytes of the ring the receiver has taken since the ring was made.
  [[nodiscard]] std::uint64_t taken() const { return lines().head.load(std::memory_order_relaxed); }
  /// Returns whether the receiver has taken all that was put.
  [[nodiscard]] bool is_drained() const { return lines().head.load(std::memory_order_acquire) == tail_; }
  /// Returns what the receiver has told by tell_sole().
  [[nodiscard]] bool is_sole() const { return lines().is_sole.load(std::memory_order_acquire) != 0; }
  /// Returns what the receiver has told by tell_mark() last, 0: nothing.
  [[nodiscard]] std::uint32_t told_mark() const { return lines().mark.load(std::memory_order_acquire); }
  /// Returns whether the receiver closed the ring during the last put(), and has not taken that datagram. Call it after
  /// must_ring(). Waits for the receiver's finish(), 2 ms at most; a receiver that takes longer counts as one that has
  /// taken the datagram.
  [[nodiscard]] bool was_missed() const {
    return lines().closed.load(std::memory_order_acquire) != 0 && has_finished_without_it();
  }
  void end() { lines().ended.store(1, std::memory_order_release); }

 private:
  [[nodiscard]] UdRingLines& lines() const { return *reinterpret_cast<UdRingLines*>(segment_->base()); }
  std::byte* place(std::uint64_t position) const;
  [[nodiscard]] std::size_t skipped_before(std::size_t needed) const;
  [[nodiscard]] bool has_finished_without_it() const;

  std::shared_ptr<MappedSegment> segment_;
  std::uint64_t tail_ = 0;
  std::uint64_t known_head_ = 0;
};

/// The receiver's end. All that it reads was written by another process.
class UdRingReader {
 public:
  /// @param most_bytes  the largest payload that the sender may put
  explicit UdRingReader(std::shared_ptr<MappedSegment> segment, std::size_t most_bytes = kMaxDatagramBytes)
      : segment_(std::move(segment)), most_bytes_(most_bytes) {}

  [[nodiscard]] bool is_empty() const { return lines().tail.load(std::memory_order_acquire) == head_; }
  /// Returns the oldest datagram, in the ring, until pop(); nothing when it is empty. Error: EPROTO the sender has
  /// written nonsense.
  Result<std::optional<ParsedDatagram>> front();
  void pop();
  /// Tells kUdRingExpectsMark, or the mark that has come.
  void tell_mark(std::uint32_t mark) { lines().mark.store(mark, std::memory_order_release); }
  /// Tells whether other processes have the receiver's port, too: what is put once it has ended is for them, then.
  void tell_sole(bool is) { lines().is_sole.store(is ? 1 : 0, std::memory_order_release); }
  void arm() { lines().armed.store(1, std::memory_order_relaxed); }
  void disarm() { lines().armed.store(0, std::memory_order_relaxed); }
  /// Returns how many datagrams the sender has lost since the last call.
  std::uint64_t lost();
  [[nodiscard]] bool has_ended() const { return lines().ended.load(std::memory_order_acquire) != 0; }
  /// Makes the sender's put() fail. What the sender has put before, or is just putting, can still be read.
  void close() { lines().closed.store(1, std::memory_order_seq_cst); }
  /// Called after close(), and after the last pop(): the sender finds out which of its datagrams were taken.
  void finish() { lines().closed.store(kUdRingFinished, std::memory_order_release); }

 private:
  [[nodiscard]] UdRingLines& lines() const { return *reinterpret_cast<UdRingLines*>(segment_->base()); }

  std::shared_ptr<MappedSegment> segment_;
  std::size_t most_bytes_;
  std::uint64_t head_ = 0;
  std::uint64_t next_ = 0;  ///< behind the datagram of front()
  std::uint64_t lost_ = 0;
};

}  // namespace ringsock::soft
