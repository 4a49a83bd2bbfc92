// The work requests that a connection sends.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/base/log.h"
#include "core/base/result.h"
#include "core/verbs/rc_extensions.h"
#include "core/wire/rs_message.h"
#include "librsocket/connection_ends.h"
#include "librsocket/send_ring.h"
#include "librsocket/work_requests.h"

namespace ringsock::rs {

/// Posts work requests, and knows which are under way. Most entries are for data; those of control messages, and those
/// of the messages of the end, are reserved. A request that the queue pair refuses ends the connection.
///
/// Threads: what says so, by the sender only; finish() and note_failed_work() by the thread that polls; everything else
/// by any thread.
class alignas(64) SendRequests {
 public:
  /// @param entries        for data and control messages
  /// @param words_by_send  the device has no immediate data (iWARP): message words travel by SEND
  SendRequests(ConnectionEnds& ends, std::uint16_t entries, bool words_by_send);
  /// Call it once, before anything is posted.
  /// @param control_inline  the device takes the payload of every control message inline
  /// @param ring            of which the first kScratchBytes of extra() are for control messages; none on a device that
  ///                        takes everything inline
  void begin(ibv_qp& qp, bool control_inline, SendRing ring);

  /// Holds back all messages until the peer is known to be ready, by Connection::established() or because a message
  /// came. Call it before Connection::start(). Messages that reach a queue pair too early are lost, and sent again only
  /// after the acknowledgement time-out.
  void hold() { held_.store(true, std::memory_order_relaxed); }
  /// Returns whether messages were held back.
  bool let_go() { return held_.exchange(false, std::memory_order_acq_rel); }
  [[nodiscard]] bool is_held() const { return held_.load(std::memory_order_acquire); }

  // -- data, by the sender
  /// Returns whether a data message may be begun. Threads: any; the answer may then be outdated.
  [[nodiscard]] bool has_room() const { return data_slots() > 0 && (!ring_ || ring_.free_bytes() >= kMinRingRoom); }
  [[nodiscard]] bool has_room_for(std::uint32_t messages) const { return has_room() && data_slots() >= messages; }
  [[nodiscard]] SendRing& ring() { return ring_; }
  [[nodiscard]] const SendRing& ring() const { return ring_; }
  /// Posts a data request, which is signalled when it is time or if `signalled`. Returns false when the connection has
  /// failed, or the peer was found to have gone (is_unheard()).
  /// @param ring_bytes  the request's bytes of the ring
  bool post_data(ibv_send_wr& request, std::uint32_t ring_bytes, bool signalled);
  /// Does the same for bytes that travel inline, for less where the device can carry that out at once.
  bool post_inline(verbs::RcExtensions& rc, const verbs::InlineWrite& write);
  /// Posts two messages that the peer gets together, where the device can do that. Returns as post_data().
  bool post_pair(verbs::RcExtensions& rc, const verbs::WritePair& pair);
  /// Returns the number of data requests so far, which wraps. Threads: any.
  [[nodiscard]] std::uint32_t posted() const { return posted_.load(std::memory_order_relaxed); }
  /// Returns whether some of the first `count` data requests are under way, and can still be finished. Threads: any.
  [[nodiscard]] bool has_under_way(std::uint32_t count) const {
    const std::uint32_t left = count - retired_.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(left) > 0 && !has_failed_work_.load(std::memory_order_acquire);
  }

  /// Returns whether a data request has told that the peer has gone, and nobody has looked for the end since.
  [[nodiscard]] bool is_unheard() const { return is_unheard_.load(std::memory_order_relaxed); }
  /// Returns the same, until the next one.
  bool take_unheard() { return is_unheard() && is_unheard_.exchange(false, std::memory_order_relaxed); }

  // -- control messages, by any thread
  /// Sends SHUTDOWN or DISCONNECT, each at most once; there is always room for them. Errors: ECONNRESET; ENOTCONN while
  /// held.
  Status send_end(wire::RsControl control);
  /// Makes the peer look at its overflow area, or at the room in ours.
  void send_look();
  /// Returns a number below kControlSlots, nothing when all are in use.
  std::optional<unsigned> take_control_slot();
  /// Posts in a slot that was taken. Error: ECONNRESET.
  Status post_in_control_slot(ibv_send_wr& request, unsigned slot);
  /// Takes a slot and posts. Errors: EAGAIN when no slot is free; ECONNRESET.
  Status post_control(ibv_send_wr& request);

  // -- completions
  /// Retires a send. A thread that waits for room is woken by the queue pair's next completion at the latest.
  /// @param id  its wr_id
  void finish(std::uint64_t id);
  /// Called when a request has failed: no more messages are sent.
  void note_failed_work() { has_failed_work_.store(true, std::memory_order_release); }
  [[nodiscard]] bool has_failed_work() const { return has_failed_work_.load(std::memory_order_relaxed); }
  /// Returns whether the control messages, and with them all earlier requests, have been carried out.
  [[nodiscard]] bool is_drained() const {
    // Control and end messages are always signalled.
    return free_control_slots_.load(std::memory_order_acquire) == kAllControlSlots &&
           ends_under_way_.load(std::memory_order_acquire) == 0;
  }

  [[nodiscard]] bool has_words_by_send() const { return words_by_send_; }

  // -- fork(2): see StateOf. With the sender's lock.
  /// Returns whether requests are under way. A queue that has failed finishes none.
  [[nodiscard]] bool is_busy() const;
  void save(SavedConnection& saved) const;
  [[nodiscard]] bool is_possible(const SavedConnection& saved) const;
  void restore(const SavedConnection& saved);

  static constexpr std::uint32_t kControlSlots = 4;
  static constexpr std::size_t kScratchBytes = kControlSlots * sizeof(wire::PeerIomap);
  /// SHUTDOWN and DISCONNECT have reserved entries, because they must not wait for any completion.
  static constexpr std::uint32_t kEndSlots = 2;
  /// One message in each direction may be under way: about bytes put into the peer's area, about room in ours.
  static constexpr unsigned kLookSlots = 2;

 private:
  /// Returns the entries that data may use now; the others are reserved for control messages.
  [[nodiscard]] std::uint32_t data_slots() const {
    return entries_ - kControlSlots -
           (posted_.load(std::memory_order_relaxed) - retired_.load(std::memory_order_acquire));
  }
  /// Makes the data request signalled, when it is time or if `always`. Its wr_id tells what it retires.
  void ask_for_completion(ibv_send_wr& request, std::uint32_t ring_bytes, bool always);
  void count_posted() { posted_.store(posted_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  bool was_data_posted(int error);
  bool post_one_by_one(const verbs::WritePair& pair);
  int post_inline_as_request(const verbs::InlineWrite& write);
  /// Posts the request in the form that the device uses for messages. Returns false when the connection has failed.
  bool post(ibv_send_wr& request);
  /// Does the same. Returns the error.
  int post_as_message(ibv_send_wr& request);
  /// Handles the result of ibv_post_send(3). Returns false when the connection has failed.
  bool was_posted(int error);
  int post_as_write_and_send(ibv_send_wr& request);

  static constexpr std::uint32_t kAllControlSlots = (1u << kControlSlots) - 1;
  /// The room that the send ring must have before a message is begun.
  static constexpr std::uint32_t kMinRingRoom = 2048;

  // Each message uses the second cache line, which begins with the counts of the ring.
  ConnectionEnds& ends_;
  SendRing ring_;
  ibv_qp* qp_ = nullptr;
  const std::uint16_t entries_;
  const bool words_by_send_;
  bool control_inline_ = true;
  std::atomic<bool> held_{false};
  std::atomic<bool> has_failed_work_{false};
  std::atomic<bool> is_unheard_{false};
  // The sender's
  const unsigned signal_every_;
  unsigned unsignalled_ = 0;
  std::uint32_t unsignalled_ring_bytes_ = 0;
  // Two counters with one writer each: a locked instruction per message would wait for the stores to the peer's memory.
  std::atomic<std::uint32_t> posted_{0};   ///< data work requests; written by the sender
  std::atomic<std::uint32_t> retired_{0};  ///< those known to be finished; written by the polling thread
  std::atomic<std::uint32_t> free_control_slots_{kAllControlSlots};  ///< a bit each
  std::atomic<int> ends_under_way_{0};
};

inline bool SendRequests::was_posted(int error) {
  if (error == 0) [[likely]]
    return true;
  log_debug("ibv_post_send: error %d", error);
  ends_.fail(ECONNRESET);
  return false;
}

[[gnu::always_inline]] inline int SendRequests::post_as_message(ibv_send_wr& request) {
  ibv_send_wr* bad = nullptr;
  if (words_by_send_ && request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) [[unlikely]]
    return post_as_write_and_send(request);
  return ibv_post_send(qp_, &request, &bad);
}

inline bool SendRequests::post(ibv_send_wr& request) {
  const int error = post_as_message(request);
  return error == verbs::kPostedUnheard || was_posted(error);
}

inline void SendRequests::ask_for_completion(ibv_send_wr& request, std::uint32_t ring_bytes, bool always) {
  unsignalled_ring_bytes_ += ring_bytes;
  if (++unsignalled_ < signal_every_ && unsignalled_ring_bytes_ <= ring_.size() / 4 && !always) return;
  request.send_flags |= IBV_SEND_SIGNALED;
  request.wr_id = std::exchange(unsignalled_, 0u) | std::uint64_t{std::exchange(unsignalled_ring_bytes_, 0u)}
                                                        << kRingBytesShift;
}

[[gnu::always_inline]] inline bool SendRequests::post_data(ibv_send_wr& request, std::uint32_t ring_bytes,
                                                           bool signalled) {
  ask_for_completion(request, ring_bytes, signalled);
  count_posted();
  return was_data_posted(post_as_message(request));
}

inline bool SendRequests::was_data_posted(int error) {
  if (error == 0) [[likely]]
    return true;
  if (error == verbs::kPostedUnheard) {
    is_unheard_.store(true, std::memory_order_relaxed);
    return false;
  }
  return was_posted(error);
}

[[gnu::always_inline]] inline bool SendRequests::post_inline(verbs::RcExtensions& rc, const verbs::InlineWrite& write) {
  count_posted();
  int error = EAGAIN;
  if (unsignalled_ + 1 < signal_every_) [[likely]] {
    error = rc.write_at_once(*qp_, write);
    if (error != EAGAIN) ++unsignalled_;
  }
  if (error == EAGAIN) [[unlikely]]
    error = post_inline_as_request(write);
  return was_data_posted(error);
}

inline void SendRequests::finish(std::uint64_t id) {
  if ((id & kNotData) == 0) {
    if (ring_) ring_.retire(static_cast<std::uint32_t>(id >> kRingBytesShift));
    retired_.store(retired_.load(std::memory_order_relaxed) + static_cast<std::uint16_t>(id),
                   std::memory_order_release);
  } else if ((id & kControlId) != 0) {
    free_control_slots_.fetch_or(1u << (id & (kControlSlots - 1)), std::memory_order_release);
  } else if ((id & kEndId) != 0) {
    ends_under_way_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace ringsock::rs
