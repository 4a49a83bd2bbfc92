// The RC queue pair: two inboxes in shared memory and a link (core/device/shm/README.md).
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "core/base/biased_mutex.h"
#include "core/device/shm/link/link.h"
#include "core/device/shm/queue/arming.h"
#include "core/device/shm/queue/connection_memory.h"
#include "core/device/shm/queue/link_watches.h"
#include "core/device/shm/queue/own_regions.h"
#include "core/device/shm/queue/queue_pair.h"
#include "core/device/shm/queue/rc_attributes.h"
#include "core/device/shm/queue/rc_owner.h"
#include "core/device/shm/queue/rc_receiver.h"
#include "core/device/shm/queue/rc_wiring.h"
#include "core/device/shm/queue/receive_end.h"
#include "core/device/shm/queue/send_queue.h"
#include "core/verbs/saved_queue_pair.h"

namespace ringsock::soft {

/// Joins the parts of a connection: who calls which of them, and with which lock.
///
/// Locks: RcReceiver is under the receive queue's poll lock. send_lock_ guards SendQueue, RcAttributes and the link.
/// Order: see CompletionQueue.
class ReliableQueuePair final : public QueuePair, public RcWiring, private RcOwner, private Link::Sink {
 public:
  /// Makes one in state INIT, with its inbox in `room` if it fits there, otherwise in a memfd of its own.
  static Result<std::unique_ptr<ReliableQueuePair>> create(DeviceContext& device, ibv_pd& pd, ibv_qp_init_attr& attr,
                                                           ArenaBytes arena, const SpareRoom* room,
                                                           std::optional<SegmentPeer> peer = std::nullopt);
  ~ReliableQueuePair() override;

  // QueuePair
  int post_send(ibv_send_wr* wr, ibv_send_wr** bad) override;
  int post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad) override { return receiver_.post(wr, bad); }
  Status modify(ibv_qp_attr& attr, int mask) override;
  void query(ibv_qp_attr& attr) override;
  int poll_receives(int count, ibv_wc* wc) override { return receiver_.poll(count, wc); }
  void push_sends() override;
  bool arm(CompletionQueue& queue, ArmKind kind) override;
  std::shared_ptr<Link> link() override;
  [[nodiscard]] bool has_left_over() const override { return receiver_.has_left_over(); }
  [[nodiscard]] bool has_memory_in_use() const override { return own_regions_.is_arena_registered(); }

  // RcWiring
  QueuePairOffer offer() override;
  std::shared_ptr<const UniqueFd> offer_memfd() override { return memory_.memfd(); }
  Status attach(const QueuePairOffer& offer, std::shared_ptr<MappedSegment> peer_segment, std::shared_ptr<Link> link,
                Peer peer, std::uint8_t rnr_retry_count) override;
  void abandon() override;
  void take_over() override;
  [[nodiscard]] bool has_waiting(bool (*is_wanted)(std::uint32_t)) const override {
    return receiver_.has_waiting(is_wanted);
  }
  void withdraw_memory() override { own_regions_.withdraw(); }
  [[nodiscard]] MappedSegment& own_segment() override { return memory_.own_segment(); }

  // What verbs::Device offers under the same names.
  [[nodiscard]] RcReceiver& receiver() { return receiver_; }
  [[nodiscard]] std::uint64_t peer_group() const { return peer_group_.load(std::memory_order_relaxed); }
  [[nodiscard]] PeerProcess peer_process();
  [[nodiscard]] Arming& arming() { return arming_; }
  int write_at_once(const verbs::InlineWrite& write);
  /// Calls `use(SendQueue&)` under the send lock.
  template <class Use>
  auto with_sends(Use use) {
    const std::lock_guard guard(send_lock_);
    return use(sends_);
  }
  [[nodiscard]] ConnectionMemory& memory() { return memory_; }
  /// verbs::RcExtensions::add_hot_lines(), without those of the receive queue.
  void add_hot_lines(HotLines& lines);
  std::optional<verbs::SavedQueuePair> save();
  Status restore(const verbs::SavedQueuePair& saved);
  /// verbs::RcExtensions::is_untouched_since().
  bool is_untouched_since(const verbs::SavedQueuePair& saved);

  /// Moves it from RESET to INIT, the state in which the connection manager returns queue pairs, and registers its
  /// arena. Returns null when that has no bytes.
  Result<MemoryRegion*> start_in_init(std::size_t arena_bytes);

 private:
  ReliableQueuePair(DeviceContext& device, ibv_pd& pd, const ibv_qp_init_attr& attr, ConnectionMemory memory);
  Status join(const QueuePairOffer& offer, std::shared_ptr<MappedSegment> peer_segment, std::shared_ptr<Link> link,
              Peer peer, std::uint8_t rnr_retry_count);
  void unplug();

  // RcOwner
  [[nodiscard]] bool may_peer_map() override;
  void fail(ibv_wc_status first) override;

  // Link::Sink
  void on_packet(LinkPacket type, std::span<const std::byte> bytes, PassedFd memory) override;
  void on_wake() override;
  void on_peer_gone() override;

  // What each poll accesses comes first, then what each send does: the end of receiver_ with the start of receive_end_,
  // and from there to the middle of sends_. With thousands of connections the number of cache lines is what a message
  // costs.
  RcReceiver receiver_;
  ReceiveEnd receive_end_;
  BiasedMutex send_lock_;
  SendQueue sends_;
  RcAttributes attributes_;
  StalledPeer stalled_peer_;
  Arming arming_;
  std::atomic<std::uint64_t> peer_group_{0};
  ConnectionMemory memory_;
  const InboxView inbox_;
  OwnRegions own_regions_;
  LinkWatches watches_;
  std::shared_ptr<Link> link_;  ///< under send_lock_
};

}  // namespace ringsock::soft
