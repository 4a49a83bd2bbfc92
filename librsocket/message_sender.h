// The sending side of a connection.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/hot_lines.h"
#include "core/base/result.h"
#include "core/engine/stream/send_window.h"
#include "core/wire/rs_message.h"
#include "librsocket/connection_core.h"
#include "librsocket/io_vector.h"
#include "librsocket/send_requests.h"

namespace ringsock::rs {

/// Turns bytes into data messages, as far as the peer's buffers and credits reach, and puts what is behind them into
/// the peer's overflow area.
///
/// The ConnectionCore is in here, because the other parts may afford the further load by which they find it.
///
/// Threads: one sender at a time, but where something else is said.
class MessageSender {
 public:
  MessageSender(verbs::Device& device, const QueueSettings& settings);
  MessageSender(const MessageSender&) = delete;
  MessageSender& operator=(const MessageSender&) = delete;
  /// Call it when the queue pair exists.
  /// @param capacity    what the queue pair has
  /// @param ring        see SendRequests::begin()
  void begin(const ibv_qp_cap& capacity, bool control_inline, SendRing ring);
  /// Processes what the peer says of its first buffer and its credits. Error: EPROTO for invalid sizes.
  Status start(const wire::PeerSge& first_buffer, std::uint16_t credits);

  [[nodiscard]] ConnectionCore& core() { return core_; }
  [[nodiscard]] const ConnectionCore& core() const { return core_; }
  [[nodiscard]] SendRequests& requests() { return requests_; }
  [[nodiscard]] const SendRequests& requests() const { return requests_; }

  /// Returns whether a sender that waits should go on. Threads: any; the answer may then be outdated.
  [[nodiscard]] bool is_writable() const {
    return (!core_.overflow.in_use() && window_.is_writable() && requests_.has_room()) || core_.overflow.has_room();
  }
  /// Returns the number of bytes that send() would post now, whatever happens before it but other sends and direct
  /// writes.
  [[nodiscard]] std::size_t assured_room();
  /// Posts as much of `data` as buffers, credits and queue allow, and advances it. Returns the bytes posted, 0 when
  /// none fits.
  std::size_t send(IoCursor& data);
  /// Does the usual case of send() at half the cost: all `length` bytes in one inline message. Returns false when
  /// nothing was posted.
  bool send_at_once(const void* data, std::size_t length);
  /// Puts as much of `data` as fits into the peer's overflow area, and advances it. Call it for a rest that send() has
  /// left after a poll(). Returns the bytes put there.
  std::size_t send_ahead(IoCursor& data);
  /// Writes to the peer's memory by RDMA WRITE without notification. Returns the bytes posted: `size`, or less when the
  /// queue is full.
  std::size_t write_direct(const std::byte* data, std::size_t size, std::uint64_t remote_address, std::uint32_t key);
  /// Returns whether direct writes, and so the messages behind them, wait for the peer's help, as of the last poll().
  /// Threads: any.
  [[nodiscard]] bool has_direct_under_way() const {
    return requests_.has_under_way(direct_end_.load(std::memory_order_acquire));
  }
  /// Returns the number of data work requests, and of appends to the overflow area, so far, which wraps. Threads: any.
  [[nodiscard]] std::uint32_t posted() const { return requests_.posted() + core_.overflow.appends(); }

  /// Adds what each message uses, but for the core().
  void add_hot_lines(HotLines& lines) const { lines.add(&requests_, &gather_); }

  // -- by the thread that polls
  /// Sends what was held back: the peer is ready.
  void let_go_of_hold() {
    if (requests_.let_go()) window_.set_limit(held_credits_);
  }
  /// Called for the peer's new cumulative credit limit.
  void set_credits(std::uint32_t limit) { window_.set_limit(limit); }
  /// Takes a buffer that the peer has announced. Error: EPROTO.
  Status add_buffer(const wire::PeerSge& buffer) { return window_.add_buffer(buffer); }
  /// Returns whether the peer has left room for a further message.
  [[nodiscard]] bool can_send() const { return window_.can_send(); }
  /// Returns the number of bytes that were put into the peer's ring, without those that were put there after the peer's
  /// end. Threads: any.
  [[nodiscard]] std::uint64_t sent_to_ring() const { return window_.sent_bytes() - unheard_bytes(); }
  /// Returns the bytes of the message that rang in vain if the peer has got it nevertheless, otherwise 0. They count as
  /// sent then. Called once the peer's end is known.
  std::size_t count_heard_after_all() noexcept;
  [[nodiscard]] std::uint64_t unheard_bytes() const { return unheard_bytes_.load(std::memory_order_relaxed); }

  // -- fork(2): see StateOf. With the sender's lock.
  void save(SavedConnection& saved) const;
  Status restore_window(const SavedConnection& saved);
  void restore(const SavedConnection& saved);

 private:
  /// Returns whether bytes may go to the ring, because none wait in the peer's overflow area.
  bool sends_on_ring();
  /// Called when a message of `length` bytes was not posted.
  void note_not_posted(std::size_t length);
  // Make the next message, at most `limit` bytes, the gather list, of which they store the length in `pieces`. They
  // return the length of the message.
  std::uint32_t gather_inline(IoCursor& data, std::uint32_t limit, int& pieces);
  std::uint32_t gather_from_ring(IoCursor& data, std::uint32_t limit, int& pieces);
  void address(ibv_send_wr& request, std::uint32_t length);
  std::size_t send_around_end(IoCursor& data);
  verbs::WritePair::Part next_part(std::uint32_t length);

  ConnectionCore core_;
  SendRequests requests_;
  std::uint32_t max_inline_ = 0;  ///< of data
  engine::SendWindow window_;
  std::vector<ibv_sge> gather_;  ///< of max_pieces_ from the first send() on
  std::size_t max_pieces_ = 0;
  std::uint16_t held_credits_ = 0;  ///< of a peer that is not known to be ready
  std::atomic<std::uint64_t> unheard_bytes_{0};
  std::atomic<std::uint32_t> direct_end_{0};  ///< SendRequests::posted() behind the last direct write
};

}  // namespace ringsock::rs
