// One established rsocket connection: its queue pair, its buffers, and the messages over it.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/biased_mutex.h"
#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/engine/stream/receive_window.h"
#include "core/engine/stream/send_window.h"
#include "core/runtime/listable.h"
#include "core/verbs/connection_manager.h"
#include "core/wire/rs_connect.h"
#include "core/wire/rs_message.h"
#include "librsocket/io_vector.h"
#include "librsocket/overflow_areas.h"
#include "librsocket/send_ring.h"

namespace ringsock::runtime {
class ForkLocks;
}

namespace ringsock::rs {

/// The settings of SOL_RDMA, SO_RCVBUF and the configuration files. Accepted sockets inherit them.
struct QueueSettings {
  std::uint16_t send_queue = 384;     ///< entries, 16..65534
  std::uint16_t receive_queue = 384;  ///< entries, 16..65534
  std::uint32_t inline_bytes = 64;
  std::uint32_t receive_ring = 131072;  ///< bytes
  std::uint32_t send_ring = 131072;     ///< bytes
  std::uint32_t iomap_entries = 0;      ///< slots in which the peer may map buffers for us
  /// Bytes that may wait unread beside the ring, whatever the size of the messages: those of the peer, which we offer,
  /// and ours. 0: none. Only between processes on this host.
  std::uint32_t receive_overflow = 0;
  std::uint32_t send_overflow = 0;
};
/// What librspreload's sockets take: about as much as the kernel does over the loopback.
inline constexpr std::uint32_t kOverflowBytes = 4u << 20;
/// Receives are posted so many at a time.
inline constexpr unsigned kReceiveBatch = 32;

/// The wire protocol of the fact sheet, section 2, over one RC queue pair.
///
/// Bytes for which the peer has no room or credits go to its overflow area (core/engine/stream/overflow.h), where both
/// ends are ringsock's on one host. Such bytes are read behind those of the ring.
///
/// Threads: the owner serialises senders (send(), send_ahead(), write_direct()) with one lock and readers (receive(),
/// announce_if_due()) with another; any thread may call everything else. poll() serialises itself.
class Connection final : public runtime::Listable {
 public:
  /// Makes the resources on `id` (after route_resolved, or on a connect request) and posts the receives.
  static Result<std::unique_ptr<Connection>> create(verbs::ConnectionId& id, const QueueSettings& settings);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Returns the data for the request or the reply.
  [[nodiscard]] wire::RsConnectMore connect_data() const;
  /// Processes the peer's data. Nothing may be sent or polled before. Error: EPROTO for invalid sizes.
  Status start(const wire::RsConnect& peer, const std::optional<wire::RsOverflow>& overflow = std::nullopt);
  /// Begins to use the overflow areas, if both ends have one. Call it once the connection is made, before it is used.
  /// @param other_user  verbs::ConnectionId::other_user()
  void open_overflow(std::optional<uid_t> other_user);
  /// Holds back all messages until the peer is known to be ready, by established() or because a message came. Call it
  /// before start(). Messages that reach a queue pair too early are lost, and sent again only after the acknowledgement
  /// time-out.
  void hold() { held_.store(true, std::memory_order_relaxed); }
  /// Called when the connection manager reports that the peer is ready.
  void established();

  // -- sending, under the sender's lock
  /// Returns whether a sender that waits should go on. Threads: any; the answer may then be outdated.
  [[nodiscard]] bool is_writable() const {
    return (!overflow_.in_use() && send_window_.is_writable() && has_room_to_post()) || overflow_.has_room();
  }
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
    const std::uint32_t left = direct_end_.load(std::memory_order_acquire) - retired_.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(left) > 0 && !has_failed_work_.load(std::memory_order_acquire);
  }

  // -- reading, under the reader's lock --
  [[nodiscard]] std::uint64_t readable() const { return in_ring() + overflow_.readable(); }
  /// Returns the first part of readable(), at half the cost.
  [[nodiscard]] std::uint64_t in_ring() const { return receive_window_.readable(); }
  /// Returns whether the peer may have to wait for a reader. Threads: any; the answer may be outdated.
  [[nodiscard]] bool should_be_read() const { return receive_window_.is_half_full() || overflow_.readable() != 0; }
  /// Copies received bytes to `out` and advances it; with `peek` they also stay. Returns the bytes copied.
  std::size_t receive(IoCursor& out, bool peek);
  /// The same into one buffer.
  std::size_t receive(void* data, std::size_t length);
  /// Announces free buffer and credits to the peer once there is enough. Returns false when no control slot is free:
  /// poll() and try again. The peer uses only credits it was granted, so a slot is free by then, whatever the peer
  /// does.
  bool announce_if_due() { return !is_announcement_due() || announce_due(); }
  /// Threads: any; the answer may be outdated.
  [[nodiscard]] bool is_announcement_due() const { return receive_window_.is_due(); }

  /// Gives the memory of overflow areas that are not used back to the kernel. Under the locks of sender and reader.
  void give_back();
  [[nodiscard]] OverflowAreas& overflow() { return overflow_; }

  // -- control, by any thread
  /// Sends SHUTDOWN or DISCONNECT, each at most once; there is always room for them. Errors: ECONNRESET; ENOTCONN while
  /// held.
  Status send_control(wire::RsControl control);
  /// Sends an empty RDMA WRITE, the proof of life of fact sheet 2.11.
  Status send_keepalive();
  /// Sets entry `index` of the peer's iomap table. Error: EAGAIN when no control slot is free: poll() and try again.
  Status send_iomap(std::uint32_t index, const wire::PeerIomap& entry);

  // -- fork(2) --
  void add_fork_locks(runtime::ForkLocks& locks);
  /// suspend() makes all functions do nothing until resume(), because another process may be using the connection. All
  /// locks must be held, or StateOf::save_and_suspend() does it. Any thread may call resume(), which arms if arm() was
  /// called meanwhile; call poll() afterwards.
  void suspend() { suspended_.store(true, std::memory_order_relaxed); }
  void resume();
  /// Processes completions. Returns true when something changed: bytes or space arrived, the peer shut down, the
  /// connection failed.
  bool poll();
  /// Requests a completion notification. Returns the descriptor that becomes readable with it, -1 for that of the
  /// connection id. While suspended, arming is postponed to resume().
  int arm();
  // The functions of runtime::Listable. While suspended there is no listing.
  std::uint64_t peer_group() noexcept override { return device_.peer_group(*memory_.qp); }
  Result<std::shared_ptr<ReadyMap>> make_ready_map() noexcept override { return device_.make_ready_map(); }
  Listing list_at(const std::shared_ptr<ReadyMap>& map, std::uint32_t place) noexcept override;
  void unlist() noexcept override;
  /// Returns, once each time, whether arm() found that there is more to poll, for which no notification will come.
  bool must_look_again() {
    return must_look_again_.load(std::memory_order_relaxed) &&
           must_look_again_.exchange(false, std::memory_order_relaxed);
  }
  /// Consumes the notification.
  void woken();
  /// Returns the peer's order_stamp() (clock.h) of the first data, or end, that the latest poll() brought, 0 if
  /// unknown. From the first call on the peer is asked for stamps. Threads: any.
  [[nodiscard]] std::uint32_t arrival_stamp();
  /// Returns the number of data work requests, and of appends to the overflow area, so far, which wraps. Threads: any.
  [[nodiscard]] std::uint32_t posted() const { return posted_.load(std::memory_order_relaxed) + overflow_.appends(); }

  /// verbs::Device::works_on_our_cpus().
  [[nodiscard]] bool works_on_our_cpus() const { return device_.works_on_our_cpus(); }
  [[nodiscard]] bool peer_shut_down() const { return peer_shut_down_.load(std::memory_order_acquire); }
  [[nodiscard]] bool peer_disconnected() const { return peer_disconnected_.load(std::memory_order_acquire); }
  /// Returns the errno value of the failure that ended the connection, or 0. Bytes that arrived before it remain
  /// readable.
  [[nodiscard]] int failure() const { return failure_.load(std::memory_order_acquire); }
  /// Returns whether the control messages, and with them all earlier requests, have been carried out.
  [[nodiscard]] bool is_drained() const {
    // Control and end messages are always signalled.
    return free_control_slots_.load(std::memory_order_acquire) == kAllControlSlots &&
           ends_under_way_.load(std::memory_order_acquire) == 0;
  }
  /// Makes flushed requests expected instead of a failure.
  void expect_flush() { closing_.store(true, std::memory_order_release); }
  /// Called when the connection manager reports that the peer has disconnected: the stream ends after the bytes that
  /// have arrived.
  void peer_left() { peer_disconnected_.store(true, std::memory_order_release); }
  /// Returns whether the queue pair has been flushed for a reason that is not known yet. If the peer caused it, the
  /// connection manager will report it.
  [[nodiscard]] bool is_flushed() const {
    return flushed_.load(std::memory_order_acquire) && failure() == 0 && !peer_disconnected();
  }
  /// Returns whether message words travel by SEND (iWARP).
  [[nodiscard]] bool has_words_by_send() const { return words_by_send_; }
  /// Ends the connection with this error (errno value), unless it had failed before.
  void fail(int error);

  /// Returns the buffer that the peer has mapped for us and that contains `offset`.
  [[nodiscard]] std::optional<wire::PeerIomap> find_iomap(std::uint64_t offset);
  /// Returns the number of slots of the peer's table, in which we may map buffers for it.
  [[nodiscard]] std::uint32_t peer_iomap_entries() const { return peer_iomap_entries_; }
  /// Registers memory in this connection's protection domain, so that no other peer can use the key.
  Result<verbs::Mr> register_memory(void* data, std::size_t length, int access) {
    return device_.reg_mr(*pd_, data, length, access);
  }
  [[nodiscard]] const QueueSettings& settings() const { return settings_; }

 private:
  friend class StateOf;
  Connection(verbs::Device& device, const QueueSettings& settings);
  bool announce_due();
  Status make_resources(verbs::ConnectionId& id);
  Status make_queue_pair(verbs::ConnectionId& id);
  Result<verbs::ConnectionQp> create_queue_pair(verbs::ConnectionId& id, ibv_qp_init_attr& attr);
  Status make_local_memory();
  Status post_first_receives();
  void make_word_requests();
  Status post_receives(unsigned count);
  /// Makes receive `number` the `i`th of those that post_receives() posts next.
  void will_post_receive(unsigned i, std::uint32_t number) {
    if (words_by_send_) [[unlikely]]
      word_numbers_[i] = number;
  }
  void name_word_buffers(unsigned count);
  [[nodiscard]] unsigned receives() const { return settings_.receive_queue + kControlReceives; }
  /// Returns the buffer for the message word of receive `index`, if words travel by SEND.
  [[nodiscard]] std::byte* word_buffer(std::size_t index) const {
    return send_ring_.extra().data() + kControlScratchBytes + index * sizeof(std::uint32_t);
  }

  /// Returns the send queue entries that data may use now; the others are reserved for control messages.
  [[nodiscard]] std::uint32_t data_slots() const {
    return settings_.send_queue - kControlSlots -
           (posted_.load(std::memory_order_relaxed) - retired_.load(std::memory_order_acquire));
  }
  [[nodiscard]] bool has_room_to_post() const {
    return data_slots() > 0 && (!send_ring_ || send_ring_.free_bytes() >= kMinRingRoom);
  }
  // Make the next message, at most `limit` bytes, the gather list of data_request_. They return its length.
  std::uint32_t gather_inline(IoCursor& data, std::uint32_t limit);
  std::uint32_t gather_from_ring(IoCursor& data, std::uint32_t limit);
  void address_data_request(std::uint32_t length);
  /// Makes the data request that is about to be posted signalled, when it is time or if `always`. Its wr_id tells what
  /// it retires.
  void ask_for_completion(ibv_send_wr& request, std::uint32_t ring_bytes, bool always);

  /// Returns a number below kControlSlots, nothing when all are in use.
  std::optional<unsigned> take_control_slot();
  void free_control_slot(unsigned slot);
  Status post_control(ibv_send_wr& request);
  Status post_in_control_slot(ibv_send_wr& request, unsigned slot);
  /// Posts the request in the form that the device uses for messages. Returns false when the connection has failed.
  bool post(ibv_send_wr& request);
  /// Handles the result of ibv_post_send(3). Returns false when the connection has failed.
  bool was_posted(int error);
  int post_as_write_and_send(ibv_send_wr& request);

  bool post_owed_receives();
  void note_flush();
  void arm_locked();
  bool handle(const ibv_wc& completion);
  void handle_sent(std::uint64_t id);
  bool handle_failed(const ibv_wc& completion);
  bool handle_received(const ibv_wc& completion);
  bool handle_message(std::uint32_t word);
  bool take_stamp(std::span<const ibv_wc> completions);
  bool handle_control(const wire::RsMessage& message);
  void count_posted() { posted_.store(posted_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void take_announced_buffer();
  void take_iomap_entry(std::uint32_t index);
  void let_go_of_hold();
  // The overflow areas
  [[nodiscard]] std::size_t overflow_offset() const;
  bool sends_on_ring();
  std::size_t receive_from_ring(IoCursor& out, bool peek, std::size_t ahead);
  std::size_t receive_overflow(IoCursor& out, bool peek, std::size_t ahead);
  void consume_overflow(std::uint64_t bytes);
  void post_look();
  bool look_into_overflow();

  static constexpr std::uint32_t kSglEntries = 2;
  static constexpr std::uint32_t kControlSlots = 4;
  static constexpr std::uint32_t kAllControlSlots = (1u << kControlSlots) - 1;
  /// SHUTDOWN and DISCONNECT have reserved entries, because they must not wait for any completion.
  static constexpr std::uint32_t kEndSlots = 2;
  /// Receives beyond the granted credits, for control messages, which need no credits.
  static constexpr unsigned kControlReceives = 8;
  /// The room that the send ring must have before a message is begun.
  static constexpr std::uint32_t kMinRingRoom = 2048;
  static constexpr std::size_t kControlScratchBytes = kControlSlots * sizeof(wire::PeerIomap);
  static constexpr std::size_t kSglBytes = kSglEntries * sizeof(wire::PeerSge);

  [[nodiscard]] std::size_t ring_offset() const;

  verbs::Device& device_;
  QueueSettings settings_;
  // Parents come first: members are destroyed in reverse order.
  verbs::Pd pd_;
  verbs::CompChannel channel_;
  verbs::Cq cq_;
  SendRing send_ring_;  ///< none on a device that takes everything inline
  verbs::ConnectionQp memory_;
  std::byte* ring_ = nullptr;  ///< the receive ring, in memory_

  engine::SendWindow send_window_;
  engine::ReceiveWindow receive_window_;
  OverflowAreas overflow_;

  // Of the peer's tables
  bool swap_for_peer_ = false;
  std::uint64_t peer_sgl_address_ = 0;
  std::uint32_t peer_sgl_key_ = 0;
  std::uint32_t peer_sgl_entries_ = 0;
  std::uint32_t peer_sgl_next_ = 0;  ///< the slot for the next announcement; the reader's
  std::uint32_t peer_iomap_entries_ = 0;
  bool has_announced_ = false;  ///< the reader's

  // Used by the sender
  ibv_send_wr data_request_{};
  std::vector<ibv_sge> gather_;
  unsigned unsignalled_ = 0;
  std::uint32_t unsignalled_ring_bytes_ = 0;
  std::uint32_t max_inline_ = 0;  ///< of data
  bool control_inline_ = true;    ///< the device takes the payload of every control message inline
  bool words_by_send_ = false;    ///< iWARP
  unsigned signal_every_ = 1;

  // Two counters with one writer each: a locked instruction per message would wait for the stores to the peer's memory.
  std::atomic<std::uint32_t> posted_{0};      ///< data work requests; written by the sender
  std::atomic<bool> has_failed_work_{false};  ///< no more messages are sent
  std::atomic<std::uint32_t> direct_end_{0};  ///< posted_ behind the last direct write
  std::atomic<std::uint32_t> retired_{
      0};  ///< requests of posted_ that are known to be finished; written by the polling thread
  std::atomic<std::uint32_t> free_control_slots_{kAllControlSlots};  ///< a bit each
  std::atomic<int> ends_under_way_{0};

  // Completion processing
  BiasedMutex poll_lock_;
  std::atomic<bool> suspended_{false};
  bool arms_on_resume_ = false;  ///< under poll_lock_
  std::atomic<bool> must_look_again_{false};
  std::uint32_t own_sgl_next_ = 1;  ///< the slot of the peer's next announcement
  std::vector<wire::PeerIomap> own_iomap_;
  std::atomic<std::uint32_t> stamp_{0};  ///< of the latest poll() that had one
  std::atomic<bool> asked_for_stamps_{false};
  std::atomic<bool> has_stamps_{false};      ///< the device reports stamps
  bool has_control_ = false;                 ///< among these is one that came without a credit
  unsigned owed_receives_ = 0;               ///< used and not posted again yet, at most kReceiveBatch
  std::vector<ibv_recv_wr> word_requests_;   ///< words_by_send_
  std::vector<ibv_sge> word_pieces_;         ///< words_by_send_: the buffers of word_requests_
  std::vector<std::uint32_t> word_numbers_;  ///< words_by_send_: the receives that are posted next
  std::atomic<bool> held_{false};
  std::uint16_t held_credits_ = 0;
  std::atomic<bool> peer_shut_down_{false};
  std::atomic<bool> peer_disconnected_{false};
  std::atomic<bool> closing_{false};
  std::atomic<bool> flushed_{false};
  std::atomic<int> failure_{0};
};

}  // namespace ringsock::rs
