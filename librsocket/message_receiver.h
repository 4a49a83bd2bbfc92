// The receiving side of a connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/hot_lines.h"
#include "core/base/result.h"
#include "core/engine/stream/receive_window.h"
#include "librsocket/buffer_tables.h"
#include "librsocket/connection_core.h"
#include "librsocket/io_vector.h"
#include "librsocket/receive_requests.h"
#include "librsocket/send_requests.h"

namespace ringsock::rs {

/// Copies bytes out of the receive ring, then those out of our overflow area, and announces to the peer what is free
/// again.
///
/// Threads: one reader at a time, but where something else is said.
class MessageReceiver {
 public:
  MessageReceiver(ConnectionCore& core, SendRequests& requests, ReceiveRequests& receives, BufferTables& tables);
  /// @param key  of the receive ring
  void begin(std::byte* ring, std::uint32_t key);
  /// Returns the size of the buffer named in the connect data, which is the start of the ring.
  [[nodiscard]] std::uint32_t first_bytes() const { return window_.first_bytes(); }

  [[nodiscard]] std::uint64_t readable() const { return in_ring() + core_.overflow.readable(); }
  /// Returns the first part of readable(), at half the cost.
  [[nodiscard]] std::uint64_t in_ring() const { return window_.readable(); }
  /// Returns the number of bytes that have been read from the ring.
  [[nodiscard]] std::uint64_t read_from_ring() const { return window_.read_bytes(); }
  /// Returns whether the peer may have to wait for a reader. Threads: any; the answer may be outdated.
  [[nodiscard]] bool should_be_read() const {
    return window_.is_half_full() || core_.overflow.readable() != 0 || window_.is_holding();
  }
  /// Copies received bytes to `out` and advances it; with `peek` they also stay. Returns the bytes copied.
  std::size_t receive(IoCursor& out, bool peek);
  /// The same into one buffer.
  std::size_t receive(void* data, std::size_t length);
  /// From now on received bytes are seen by the application's function first, and are hidden from receive().
  void show_first(bool on) { core_.set(ConnectionCore::kShowsFirst, on, std::memory_order_release); }
  [[nodiscard]] bool shows_first() const { return core_.shows_first(); }
  /// receive() although the bytes are to be seen by the application's function first.
  std::size_t receive_anyway(IoCursor& out, bool peek);
  /// Bytes that the application reads where they lie.
  struct Piece {
    std::span<const std::byte> bytes{};
    std::uint32_t segment = 0;
  };
  /// Takes the next ones of the ring, at most `most`, as far as they lie in one segment.
  Piece lend(std::uint32_t most);
  /// Takes pieces of a segment back. Announce what is free then.
  void take_back(std::uint32_t segment, std::uint32_t pieces) { window_.give_back(segment, pieces); }
  [[nodiscard]] const engine::ReceiveWindow& window() const { return window_; }
  /// This process goes on without those who have pieces.
  void take_all_back() { window_.give_all_back(); }
  /// Announces what the peer must know of a new connection beside its connect data: before any other announcement.
  void begin_announcing();
  /// Announces free buffer and credits to the peer once there is enough. Returns false when no control slot is free:
  /// poll and try again. The peer uses only credits it was granted, so a slot is free by then, whatever the peer does.
  bool announce_if_due() { return !is_announcement_due() || announce_due(); }
  /// Threads: any; the answer may be outdated.
  [[nodiscard]] bool is_announcement_due() const { return window_.is_due(); }
  /// Gives the memory of overflow areas that are not used back to the kernel. Under the locks of sender and reader.
  void give_back();

  /// Adds what each message uses.
  void add_hot_lines(HotLines& lines) const { lines.add(&ring_, reinterpret_cast<const std::byte*>(&ring_) + 127); }

  // -- by the thread that polls, with poll_lock
  /// Counts a data message of `length` bytes. Error: EPROTO.
  Status arrived(std::uint32_t length) { return window_.arrived(length); }
  /// Looks for new bytes, or new room, in the overflow areas. Returns whether there is something new. An impossible
  /// answer ends the connection.
  bool look_into_overflow();
  /// Posts used receives again. Returns true when the queue pair accepts no more, which was not expected.
  bool post_owed_receives();

  // -- fork(2): see StateOf. With the reader's lock.
  void save(SavedConnection& saved) const;
  Status restore_window(const SavedConnection& saved);

 private:
  bool announce_due();
  std::size_t receive_from_ring(IoCursor& out, bool peek, std::size_t ahead);
  std::size_t receive_overflow(IoCursor& out, bool peek, std::size_t ahead);
  void consume_overflow(std::uint64_t bytes);

  SendRequests& requests_;
  ReceiveRequests& receives_;
  BufferTables& tables_;
  std::uint32_t key_ = 0;
  // Each message uses the two cache lines that begin here.
  alignas(64) std::byte* ring_ = nullptr;
  ConnectionCore& core_;
  engine::ReceiveWindow window_;
};

}  // namespace ringsock::rs
