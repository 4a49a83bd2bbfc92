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
#include "core/device/packet/ring/frame_ring.h"
#include "core/device/packet/ring/packet_segments.h"
#include "core/verbs/device.h"
#include "core/wire/ethernet.h"
#include "core/wire/frame_layout.h"
#include "core/wire/reassembler.h"

namespace ringsock::soft {

class KeyTable;
class PacketDevice;
class OutgoingBatch;

inline constexpr std::uint32_t kMaxPacketQueueEntries = 1 << 16;
inline constexpr std::uint32_t kMaxPacketSge = 16;
/// The longest packet that is sent for segmentation: headers and payload.
inline constexpr std::uint32_t kMaxTsoBytes = 65535;

/// A received packet in two pieces, with right lengths and checksums.
struct ReceivedPacket {
  std::span<const std::byte> headers;  ///< from Ethernet to UDP or TCP, with the VLAN tag
  std::span<const std::byte> payload;  ///< up to the end according to the IP header
  wire::FrameLayout layout;
  std::uint64_t wallclock_ns = 0;  ///< CLOCK_REALTIME of arrival
};

/// Room for the headers of a datagram to send. There is further room in front of them and behind them for the queue
/// pair, so that a small datagram is sent in one piece.
class DatagramRoom {
 public:
  DatagramRoom() = default;  // does not initialise the bytes, which headers overwrite
  [[nodiscard]] std::span<std::byte, wire::kMaxHeaderBytes> headers() {
    return std::span(bytes_).subspan<kOffloadBytes, wire::kMaxHeaderBytes>();
  }

 private:
  friend class PacketQueuePair;
  static constexpr std::size_t kOffloadBytes = sizeof(virtio_net_hdr);
  static constexpr std::size_t kSmallPayload = 256;
  std::array<std::byte, kOffloadBytes + wire::kMaxHeaderBytes + kSmallPayload> bytes_;
};

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
  // Used instead of posting receives and polling the receive queue, by one thread at a time:
  /// Returns the oldest packet, or null. Packets that the kernel has merged are shown one by one; TCP packets only when
  /// they are longer than `room`.
  const ReceivedPacket* take_packet(std::size_t room);
  /// Releases the packet of take_packet(). Must be called before take_packet() is called again.
  void release_packet() {
    if (!segmented_ || end_segment()) [[likely]]
      ring_->pop();
  }
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
  /// A frame that contains several packets, and how many of them have been delivered.
  struct Segmented {
    PacketSegments segments;
    wire::FrameLayout layout;
    const RingFrame* frame;
  };

  PacketQueuePair(PacketDevice& device, ibv_pd& pd, const ibv_qp_init_attr& attr, std::unique_ptr<FrameRing> ring);
  void watch_ring();
  [[nodiscard]] ibv_qp_state current_state() const { return state_.load(std::memory_order_acquire); }
  void set_state(ibv_qp_state to);
  void forget_receives();
  PacketCompletionQueue& send_queue() const { return PacketCompletionQueue::of(*send_cq); }
  PacketCompletionQueue& receive_queue() const { return PacketCompletionQueue::of(*recv_cq); }

  // Receiving.
  [[nodiscard]] bool may_receive() const;
  const ReceivedPacket* next_packet(std::size_t room);
  const RingFrame* accept_frame(const RingFrame* frame, wire::FrameLayout& layout);
  const RingFrame* accept_other(const RingFrame* frame, wire::FrameLayout& layout);
  bool reassemble(const RingFrame& frame);
  bool accept_found(const RingFrame& frame, wire::FrameLayout& layout);
  const ReceivedPacket* begin_segments(const RingFrame& frame);
  const ReceivedPacket* show_segment();
  bool end_segment();
  void put_tag_back(std::uint16_t control);
  bool receive_one(PacketCompletion& out);
  bool complete_receive(const ReceivedPacket& packet, PacketCompletion& out);
  [[nodiscard]] bool may_write(const PostedReceive& receive) const;
  void count_received(const ReceivedPacket& packet);
  int flush_receives(int count, PacketCompletion* out);

  // Sending.
  /// Returns what post_send() does with a request: 0: send it, or an errno value: fail.
  [[nodiscard]] int check_send(const ibv_send_wr& wr) const;
  [[nodiscard]] bool may_read(const ibv_send_wr& wr) const;
  /// Sends the frames in the batch. Returns 0 or an errno value; then `next` is the request that has failed.
  int send_batch(OutgoingBatch& batch, ibv_send_wr*& next);
  /// Returns whether an IBV_WR_TSO contains several datagrams that the kernel cannot separate.
  [[nodiscard]] bool must_segment(const ibv_send_wr& wr) const;
  /// Sends such datagrams. Returns 0 or an errno value.
  int send_segments(const ibv_send_wr& wr);
  int send_failure(int code);
  int send_in_parts(const iovec& head, std::span<const iovec> payload);
  void count_sent(std::size_t packets, std::size_t bytes);
  void finish_send(const ibv_send_wr& wr, std::size_t bytes);
  void complete_send(const ibv_send_wr& wr, ibv_wc_status status);
  void flush_sends(const ibv_send_wr* wr);

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
  std::optional<Segmented> segmented_;
  ReceivedPacket packet_;
  std::unique_ptr<wire::Reassembler> reassembler_;  ///< made with the first fragment
  RingFrame whole_;                                 ///< the packet that it has completed last
  std::array<std::byte, wire::kMaxHeaderBytes + sizeof(wire::VlanTag)> tagged_headers_;

  // Written by the receiving thread, read by any thread.
  std::atomic<std::uint64_t> rx_packets_{0};
  std::atomic<std::uint64_t> rx_bytes_{0};
  std::atomic<std::uint64_t> rx_bad_length_{0};
  std::atomic<std::uint64_t> rx_bad_checksum_{0};
  std::atomic<std::uint64_t> rx_too_long_{0};
  // Written by any sending thread.
  std::atomic<std::uint64_t> tx_packets_{0};
  std::atomic<std::uint64_t> tx_bytes_{0};
};

}  // namespace ringsock::soft
