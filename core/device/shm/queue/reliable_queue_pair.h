// The RC queue pair: two inboxes in shared memory and a link (core/device/shm/README.md).
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/barrier.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/ready_map.h"
#include "core/device/common/receive_queue.h"
#include "core/device/shm/link/link.h"
#include "core/device/shm/memory/peer_memory.h"
#include "core/device/shm/memory/peer_space.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/queue/queue_pair.h"
#include "core/device/shm/queue/rc_wiring.h"
#include "core/verbs/saved_queue_pair.h"

namespace ringsock::soft {

/// The header of an assisted request in the payload ring, in front of its data: what the owner's progress must do to
/// its memory.
struct AssistHeader {
  std::uint32_t kind;  ///< AssistKind
  std::uint32_t rkey;
  std::uint64_t address;
  std::uint64_t length;  ///< bytes behind the header: data to write, or room for the data read
  std::uint64_t compare_add;
  std::uint64_t swap;
  std::uint64_t original;  ///< result of an atomic operation
};
static_assert(sizeof(AssistHeader) == 48);
/// Atomic operations on 8-byte aligned memory, which may be shared with another process. They return the former value.
std::uint64_t compare_and_swap(std::byte* memory, std::uint64_t expected, std::uint64_t desired);
std::uint64_t fetch_and_add(std::byte* memory, std::uint64_t addend);
/// Returns the row of the table for a region with this key. Row 0 is the arena's.
std::size_t row_of(std::uint32_t rkey);
enum class AssistKind : std::uint32_t { write = 1, read = 2, compare_swap = 3, fetch_add = 4 };

/// Returns whether a counter that wraps has reached a number.
inline bool has_reached(std::uint32_t counter, std::uint32_t number) {
  return static_cast<std::int32_t>(counter - number) >= 0;
}

/// Locks: the receive side is under the receive queue's poll lock, the send side under send_lock_, posting of receives
/// under receive_lock_. Order: see CompletionQueue.
class ReliableQueuePair final : public QueuePair, public RcWiring, public RemoteAccess, private Link::Sink {
 public:
  /// Makes one in state INIT, with its inbox in `room` if it fits there, otherwise in a memfd of its own.
  static Result<std::unique_ptr<ReliableQueuePair>> create(DeviceContext& device, ibv_pd& pd, ibv_qp_init_attr& attr,
                                                           ArenaBytes arena, const SpareRoom* room,
                                                           std::optional<PeerProcess> peer = std::nullopt);
  ~ReliableQueuePair() override;

  // QueuePair
  int post_send(ibv_send_wr* wr, ibv_send_wr** bad) override;
  int post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad) override;
  Status modify(ibv_qp_attr& attr, int mask) override;
  void query(ibv_qp_attr& attr) override;
  int poll_receives(int count, ibv_wc* wc) override;
  void push_sends() override;
  bool arm(CompletionQueue& queue, ArmKind kind) override;
  std::shared_ptr<Link> link() override;
  [[nodiscard]] bool has_left_over() const override { return left_over_; }
  [[nodiscard]] bool has_memory_in_use() const override { return arena_registered_.load(std::memory_order_relaxed); }

  // RcWiring
  QueuePairOffer offer() override;
  std::shared_ptr<const UniqueFd> offer_memfd() override { return memfd_; }
  Status attach(const QueuePairOffer& offer, std::shared_ptr<MappedSegment> peer_segment, std::shared_ptr<Link> link,
                Peer peer, std::uint8_t rnr_retry_count) override;
  void abandon() override;
  void take_over() override;
  [[nodiscard]] bool has_waiting(bool (*is_wanted)(std::uint32_t)) const override;
  void withdraw_memory() override;
  void keep_for_nobody() override { segment_->forget_peer(); }

  // RemoteAccess
  [[nodiscard]] bool may_share() override;
  void publish(const MemoryRegion& region) override;
  void retract(const MemoryRegion& region) override;
  bool retract_all() override;

  /// verbs::Device::ask_for_stamps(). Without locks.
  void ask_for_stamps();
  /// verbs::Device::peer_group(), list_at() and unlist().
  [[nodiscard]] std::uint64_t peer_group() const { return peer_group_.load(std::memory_order_relaxed); }
  [[nodiscard]] PeerProcess peer_process();
  Listing list_at(const std::shared_ptr<ReadyMap>& map, std::uint32_t place);
  void unlist();
  /// verbs::Device::peer_memory(), has_sent_all() and leaves_traces().
  std::byte* peer_memory(std::uint32_t rkey, std::uint64_t address, std::uint64_t length);
  [[nodiscard]] bool has_sent_all();
  void leaves_traces();
  /// verbs::Device::save() and restore().
  friend std::optional<verbs::SavedQueuePair> save(ReliableQueuePair& queue_pair);
  friend Status restore(ReliableQueuePair& queue_pair, const verbs::SavedQueuePair& saved);
  [[nodiscard]] std::byte* arena() const { return inbox_.arena; }
  /// Moves it from RESET to INIT, the state in which the connection manager returns queue pairs.
  void start_in_init() { set_state(IBV_QPS_INIT); }
  Result<MemoryRegion*> register_arena(std::size_t bytes);

 private:
  /// After this many entries without a sleep their fences cost more than the sleeper's barriers did.
  static constexpr std::uint32_t kManyEntriesAwake = 1024;
  static constexpr unsigned kManyArmings = 4;
  /// The result of a step of a send.
  enum class Step {
    done,     ///< carried out
    unacked,  ///< handed over; complete when SendProgress::ack is acknowledged; later sends may continue
    stalled,  ///< cannot go on now
    failed,   ///< SendProgress::status tells why
  };
  struct SendProgress {
    std::uint64_t offset = 0;  ///< bytes of the payload that were transferred
    std::uint32_t ack = 0;     ///< number of the acknowledgement that completes it, or the assisted piece under way
    bool piece_out = false;    ///< an assisted piece is under way
    std::uint32_t room = 0;    ///< place of that piece in the payload ring
    std::uint32_t piece_bytes = 0;
    Nanos rnr_deadline{0};
    ibv_wc_status status = IBV_WC_SUCCESS;
  };
  /// A send that could not be carried out at once. Owns copies of the list and of inline data, which the caller may
  /// reuse.
  struct QueuedSend {
    QueuedSend(const ibv_send_wr& posted, const SendProgress& so_far);
    ibv_send_wr wr;
    SendProgress progress;
    std::vector<ibv_sge> sges;
    std::vector<std::byte> inline_data;
  };
  /// The destination of a remote address.
  struct Target {
    enum class Kind { denied, arena, process, assisted } kind;
    std::byte* memory = nullptr;  ///< arena
    MrRow* row = nullptr;         ///< process
  };

  ReliableQueuePair(DeviceContext& device, ibv_pd& pd, const ibv_qp_init_attr& attr);
  Status make_inbox(ArenaBytes arena, const SpareRoom* room, std::optional<PeerProcess> peer);

  // rc_send.cc: under send_lock_
  int post_one(const ibv_send_wr& wr);
  int post_queued(const ibv_send_wr& wr, const SendProgress& progress, Step step);
  Step execute(const ibv_send_wr& wr, SendProgress& progress);
  Step carry_on(QueuedSend& send);
  static Step fail(SendProgress& progress, ibv_wc_status status);
  Step write(const ibv_send_wr& wr, SendProgress& progress);
  Step send(const ibv_send_wr& wr, SendProgress& progress);
  bool local_memory_ok(const ibv_send_wr& wr, unsigned access) const;
  bool may_send(SendProgress& progress, Step& step);
  bool has_receive();
  bool has_entry();
  bool peer_closed() const;
  std::uint32_t payload_room();
  void put_entry(EntryType type, std::uint8_t flags, std::uint32_t imm, std::uint64_t length);
  void follow_fence_wish(bool fences);
  void complete(const ibv_send_wr& wr, ibv_wc_status status);
  // rc_remote.cc: under send_lock_
  Step read(const ibv_send_wr& wr, SendProgress& progress);
  Step atomic(const ibv_send_wr& wr, SendProgress& progress);
  Step write_elsewhere(const ibv_send_wr& wr, SendProgress& progress, const Target& target, std::uint64_t length);
  Step assist(const ibv_send_wr& wr, SendProgress& progress, AssistKind kind, std::uint64_t length);
  bool reserve_room(SendProgress& progress, std::uint32_t bytes);
  bool copy_elsewhere(const ibv_send_wr& wr, MrRow& row, bool to_peer);
  bool shared_copy(const ibv_send_wr& wr, const MrRow& row, const SpaceMark& mark, bool to_peer);
  bool process_copy(const ibv_send_wr& wr, const SpaceMark& mark, bool to_peer);
  Target find_target(std::uint32_t rkey, std::uint64_t address, std::uint64_t length, unsigned access);
  // rc_progress.cc: under send_lock_
  void progress_sends();
  void retire_acked();
  void enqueue(QueuedSend&& send);
  void pop_queued();
  void fail_queued(ibv_wc_status first);
  void enter_error(ibv_wc_status first);

  // rc_receive.cc: under the receive queue's poll lock
  bool consume(std::uint64_t head, std::uint64_t body, ibv_wc* wc, int& got);
  bool consume_send(std::uint64_t head, std::uint64_t body, ibv_wc* wc, int& got);
  bool consume_assist(std::uint32_t room);
  ibv_wc_status scatter_piece(const std::byte* from, std::uint32_t length);
  ibv_wc_status carry_out(const AssistHeader& request, std::byte* place, std::uint32_t data_bytes);
  bool take_receive();
  void finish_receive();
  void fill_receive(ibv_wc& wc, std::uint64_t head, std::uint64_t body) const;
  void acknowledge();
  void refuse(ibv_wc_status status_for_peer);
  void peer_broke_rules();
  int flush_receives(int count, ibv_wc* wc);
  void publish_consumed();
  void ring_if_waiting();
  void note_arming();
  void withdraw_fence_wish();
  void begin_with_fences();
  // rc_listing.cc
  bool note_in_map(std::uint32_t armed);  ///< under send_lock_
  bool find_peer_map();                   ///< under send_lock_
  [[nodiscard]] MemoryName peer_map_name() const;
  void pass_map();

  // Link::Sink
  void on_packet(LinkPacket type, std::span<const std::byte> bytes, PassedFd memory) override;
  void on_wake() override;
  void on_peer_gone() override;

  void barrier_light() const {
    if (full_fence_.load(std::memory_order_relaxed)) [[unlikely]] {
      AsymmetricBarrier::full();
    } else {
      AsymmetricBarrier::light();
    }
  }
  // rc_state.cc
  void set_state(ibv_qp_state to) {
    state = to;
    state_.store(to, std::memory_order_relaxed);
  }
  Status check_peer_inbox(const QueuePairOffer& peer, const MappedSegment* peer_segment) const;
  Status watch_link();
  void unplug();
  void store_attributes(const ibv_qp_attr& attr, int mask);
  void reset();
  void publish_mark();
  void wait_for_lease();

  // Send side.
  BiasedMutex send_lock_;
  bool direct_ = false;  ///< in RTS, connected, no queued sends: a send may be carried out at once
  bool signal_all_;
  std::atomic<ibv_qp_state> state_{IBV_QPS_RESET};  ///< ibv_qp::state, for those without send_lock_
  bool peer_uses_srq_ = false;
  std::atomic<bool> full_fence_{true};
  bool needs_full_fence_ = true;  ///< one side could not register for AsymmetricBarrier::heavy()
  bool stamps_entries_ = false;   ///< the peer asks for the times of entries
  bool follows_fence_wish_ = false;
  std::uint32_t entries_at_fence_wish_ = 0;
  std::uint32_t entries_used_ = 0, entries_freed_ = 0;
  std::uint32_t receives_used_ = 0, receives_known_ = 0;
  std::uint32_t peer_receive_bytes_ = 0;
  std::uint32_t payload_used_ = 0;
  std::uint32_t acks_wanted_ = 0, acks_seen_ = 0;
  std::uint32_t max_send_sge_;
  InboxView peer_;
  std::deque<QueuedSend> queued_;
  std::size_t started_ = 0;  ///< number of queued_ that only wait for their acknowledgement
  std::atomic<bool> has_queued_{false};
  std::uint8_t rnr_retry_ = 7;
  std::uint8_t min_rnr_timer_ = 12;
  PeerSpace peer_space_;  ///< under send_lock_
  /// Behind the rows of the peer's table, once one of them is in shared memory; under send_lock_
  std::unique_ptr<std::array<PeerMemory, kMrRows>> peer_memory_;
  std::shared_ptr<ReadyBits> peer_map_;  ///< in which the peer has listed us; under send_lock_
  std::uint64_t peer_map_inode_ = 0;
  ReadyBits::RungFor rung_for_ = 0;  ///< under send_lock_
  unsigned maps_tried_ = 0;
  std::uint64_t peer_quiet_bytes_ = 0;  ///< behind the peer's arena
  PeerProcess peer_process_{};          ///< as SO_PEERCRED names it

  // Receive side.
  InboxView inbox_;
  std::uint32_t index_ = 0, index_published_ = 0;
  std::uint32_t payload_ = 0, payload_published_ = 0;
  std::uint32_t index_at_arming_ = 0;
  unsigned frequent_armings_ = 0;
  std::uint32_t acked_ = 0;
  std::atomic<std::uint32_t> peer_qp_num_{0};
  bool in_message_ = false;    ///< part of a SEND has arrived, into receive_
  bool left_over_ = false;     ///< the last poll stopped although there may be more
  bool inbox_broken_ = false;  ///< the inbox is no longer read
  PostedReceive receive_;
  std::uint32_t message_bytes_ = 0;
  std::vector<ibv_sge> srq_sges_;
  std::atomic<bool> peer_ended_{false};  ///< kVendorErrPeerEnded
  std::atomic<bool> flushing_{false};    ///< once the inbox is empty, posted receives complete with IBV_WC_WR_FLUSH_ERR

  // Posting of receives.
  BiasedMutex receive_lock_;
  ReceiveQueue receives_;
  std::uint32_t smallest_receive_ = 0;
  std::atomic<Link*> ringing_{nullptr};  ///< link_, for those without send_lock_

  // Arming.
  Mutex arm_lock_;
  bool armed_here_ = false;              ///< we set DoorbellLine::armed and have not seen it cleared
  bool owed_ = false;                    ///< the arming was consumed, but renewed before the wake packet was read
  std::shared_ptr<ReadyMap> listed_in_;  ///< under arm_lock_
  unsigned maps_passed_ = 0;             ///< under arm_lock_
  std::atomic<std::uint64_t> peer_group_{0};

  // Set up once.
  std::shared_ptr<MappedSegment> segment_;
  std::shared_ptr<MappedSegment> peer_segment_;
  std::shared_ptr<const UniqueFd> memfd_;
  MemoryName memory_name_{};  ///< of memfd_
  std::optional<PeerProcess> segment_kept_for_;
  InboxLayout layout_{};
  InboxLayout spare_{};
  std::uint64_t quiet_bytes_ = 0;  ///< at the end of our arena
  std::shared_ptr<Link> link_;
  std::uint64_t send_watch_ = 0, receive_watch_ = 0;  ///< in the channels of the completion queues; 0: none
  bool wired_ = false;                                ///< attach() was called; under send_lock_
  bool gone_untold_ = false;  ///< the peer has gone and no send has failed for it yet; under send_lock_
  std::atomic<bool> arena_registered_{false};
  std::array<std::uint32_t, kMrRows>
      row_keys_{};  ///< published keys; row 0 is the arena's, others under the domain's lock
  ibv_qp_attr attr_{};
};

std::optional<verbs::SavedQueuePair> save(ReliableQueuePair& queue_pair);
Status restore(ReliableQueuePair& queue_pair, const verbs::SavedQueuePair& saved);

}  // namespace ringsock::soft
