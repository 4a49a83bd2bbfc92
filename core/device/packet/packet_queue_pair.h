// The raw packet queue pair: its ring, its posted receives, and the path between them.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "core/base/biased_mutex.h"
#include "core/base/mutex.h"
#include "core/device/common/receive_queue.h"
#include "core/device/packet/packet_completion_queue.h"
#include "core/device/packet/packet_reader.h"
#include "core/device/packet/packet_sender.h"
#include "core/device/packet/ring/frame_ring.h"
#include "core/verbs/device.h"

namespace ringsock::soft {

class KeyTable;
class PacketDevice;

inline constexpr std::uint32_t kMaxPacketQueueEntries = 1 << 16;

/// Receives are completed in poll_receives(), under the receive queue's poll lock. Sends are completed in post_send(),
/// without a lock, because threads may share the kernel's socket. A user of this class need not post receives:
/// take_packet() shows packets in the ring.
class PacketQueuePair final : public ibv_qp {
 public:
  /// Makes a queue pair in state RESET. Errors: EINVAL invalid capacities or queues, EOPNOTSUPP other kinds; those of
  /// RingMaker::make_ring().
  static Result<std::unique_ptr<PacketQueuePair>> create(PacketDevice& device, ibv_pd& pd, ibv_qp_init_attr& attr);
  PacketQueuePair(const PacketQueuePair&) = delete;
  PacketQueuePair& operator=(const PacketQueuePair&) = delete;
  ~PacketQueuePair();

  // The verbs of the same names. Errors are errno values.
  int post_send(ibv_send_wr* wr, ibv_send_wr** bad);
  int post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad);
  Status modify(const ibv_qp_attr& attr, int mask);
  void query(ibv_qp_attr& attr, ibv_qp_init_attr& init_attr) const;
  Result<ibv_flow*> create_flow(const ibv_flow_attr& attr);
  static int destroy_flow(ibv_flow* flow);
  verbs::PacketCounters counters();

  static PacketQueuePair& of(ibv_qp& qp) { return static_cast<PacketQueuePair&>(qp); }
  /// Sends one datagram without a request. The headers in `room` are complete (Ethernet to UDP), except that the UDP
  /// checksum is the sum of the pseudo header. The payload may have up to kMaxPacketSge parts. Returns 0 or an errno
  /// value: those of post_send(), and ENODEV once the interface is gone. Threads: any.
  int send_datagram(DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload);
  /// The same, but the kernel is not called, so nothing leaves, and nothing is counted.
  int rehearse_datagram(DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload);
  // Used instead of posting receives and polling the receive queue, by one thread at a time:
  /// Returns the oldest packet, or null. Packets that the kernel has merged are shown one by one; TCP packets only when
  /// they are longer than `room`.
  const ReceivedPacket* take_packet(std::size_t room);
  /// Releases the packet of take_packet(). Must be called before take_packet() is called again.
  void release_packet() { reader_.release(); }
  /// Descriptors that are readable when a quarter of the ring has filled without packets being taken; -1: none.
  [[nodiscard]] std::array<int, 2> alarms() const { return ring_->alarms(); }
  /// Called before packets are taken because of an alarm. Threads: any.
  void silence_alarms() { ring_->silence_alarms(); }
  /// Called after a look for packets that has found `taken`.
  void note_poll(int taken) { receive_queue().note_poll(taken); }

  // Called by the receive queue with its poll lock held.
  int poll_receives(int count, PacketCompletion* out);
  /// Has the channel become readable when something arrives.
  void arm();
  /// Undoes arm(), when the event of the receive queue is pending.
  void disarm();
  /// Looks whether the interface still exists; if not, tells the device.
  void look();

  /// Called when the interface is gone, or a program has caused an error that ends the queue pair: receives are
  /// flushed, and sleepers wake. Threads: any.
  void enter_error();
  [[nodiscard]] bool in_use() const { return flows_.load(std::memory_order_relaxed) != 0; }
  void forget_after_fork();

 private:
  struct FlowHandle;
  /// Outlives the queue pair while a completion channel is calling.
  struct Gate {
    Mutex lock;
    PacketQueuePair* queue_pair = nullptr;
  };

  PacketQueuePair(PacketDevice& device, ibv_pd& pd, const ibv_qp_init_attr& attr, std::unique_ptr<FrameRing> ring);
  void watch_ring();
  [[nodiscard]] ibv_qp_state current_state() const { return state_.load(std::memory_order_acquire); }
  void set_state(ibv_qp_state to);
  void forget_receives();
  PacketCompletionQueue& send_queue() const { return PacketCompletionQueue::of(*send_cq); }
  PacketCompletionQueue& receive_queue() const { return PacketCompletionQueue::of(*recv_cq); }

  // Receiving.
  [[nodiscard]] bool may_receive() const {
    const ibv_qp_state now = current_state();
    return now == IBV_QPS_RTS || now == IBV_QPS_RTR || now == IBV_QPS_SQD;
  }
  bool receive_one(PacketCompletion& out);
  bool complete_receive(const ReceivedPacket& packet, PacketCompletion& out);
  [[nodiscard]] bool may_write(const PostedReceive& receive) const;
  int flush_receives(int count, PacketCompletion* out);

  PacketDevice& device_;
  const ibv_qp_init_attr init_attr_;
  const KeyTable& keys_;
  std::unique_ptr<FrameRing> ring_;
  std::atomic<ibv_qp_state> state_{IBV_QPS_RESET};
  std::mutex modify_lock_;
  std::atomic<int> flows_{0};
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::uint64_t watch_ = 0;  ///< on the receive queue's completion channel; 0: none

  BiasedMutex post_lock_;
  ReceiveQueue receives_;
  PacketReader reader_;
  PacketSender sender_;
};

}  // namespace ringsock::soft
