// The raw packet queue pair: posted receives, a ring, and what is between them.
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
/// Longest that is sent as one packet, to be segmented: headers and payload.
inline constexpr std::uint32_t kMaxTsoBytes = 65535;

/// A packet that has come, in two pieces. Its lengths and checksums are right.
struct ReceivedPacket {
  std::span<const std::byte>
      headers;  ///< Ethernet's, with a tag that was taken off back in its place, to UDP's or TCP's
  std::span<const std::byte> payload;  ///< to the end that IP's header tells
  wire::FrameLayout layout;
  std::uint64_t wallclock_ns = 0;  ///< CLOCK_REALTIME of arrival
};

/// Where the headers of a datagram are written that is to be sent. In front of them and behind is room for what the
/// queue pair adds, so that a small one leaves in one piece.
class DatagramRoom {
 public:
  DatagramRoom() = default;  // the bytes are not initialised: headers are written over them
  [[nodiscard]] std::span<std::byte, wire::kMaxHeaderBytes> headers() {
    return std::span(bytes_).subspan<kOffloadBytes, wire::kMaxHeaderBytes>();
  }

 private:
  friend class PacketQueuePair;
  static constexpr std::size_t kOffloadBytes = sizeof(virtio_net_hdr);
  static constexpr std::size_t kSmallPayload = 256;
  std::array<std::byte, kOffloadBytes + wire::kMaxHeaderBytes + kSmallPayload> bytes_;
};

/// Receives are completed in poll_receives(), under the receive queue's poll lock; sends in post_send(), with no lock:
/// the kernel's socket is what threads share. Who knows this class need not post receives: take_packet() shows packets
/// where they lie.
class PacketQueuePair final : public ibv_qp {
 public:
  /// In state RESET. Errors: EINVAL capacities or queues, EOPNOTSUPP other kinds; those of RingMaker::make_ring().
  static Result<std::unique_ptr<PacketQueuePair>> create(PacketDevice& device, ibv_pd& pd, ibv_qp_init_attr& attr);
  PacketQueuePair(const PacketQueuePair&) = delete;
  PacketQueuePair& operator=(const PacketQueuePair&) = delete;
  ~PacketQueuePair();

  // The verbs of the same names; errors are errno values.
  int post_send(ibv_send_wr* wr, ibv_send_wr** bad);
  int post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad);
  Status modify(const ibv_qp_attr& attr, int mask);
  void query(ibv_qp_attr& attr, ibv_qp_init_attr& init_attr) const;
  Result<ibv_flow*> create_flow(const ibv_flow_attr& attr);
  static int destroy_flow(ibv_flow* flow);
  verbs::PacketCounters counters();

  static PacketQueuePair& of(ibv_qp& qp) { return static_cast<PacketQueuePair&>(qp); }
  /// Instead of posting a request: sends one datagram. The headers in `room` are complete (Ethernet to UDP), but that
  /// UDP's checksum is the sum of the pseudo header. At most kMaxPacketSge parts of payload.
  /// 0 or an errno value: as post_send(), and ENODEV once the interface is gone. Any thread.
  int send_datagram(DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload);
  // Instead of posting receives, and polling the receive queue: for one thread at a time.
  /// The oldest packet, or null. Such as the kernel has put together are shown one by one; those of TCP only when they
  /// are longer than `room`.
  const ReceivedPacket* take_packet(std::size_t room);
  /// The end of what take_packet() has shown. Before it is called again.
  void release_packet() {
    if (!segmented_ || end_segment()) [[likely]]
      ring_->pop();
  }
  /// Readable while packets come that nobody takes, a quarter of what there is room for; -1: none.
  [[nodiscard]] std::array<int, 2> alarms() const { return ring_->alarms(); }
  /// Before packets are taken because of that. Any thread.
  void silence_alarms() { ring_->silence_alarms(); }
  /// After a look for packets has found so many.
  void note_poll(int taken) { receive_queue().note_poll(taken); }

  // For the receive queue, with its poll lock held.
  int poll_receives(int count, PacketCompletion* out);
  /// Makes the channel readable when something comes.
  void arm();
  /// Undoes arm(). The event of the receive queue is pending.
  void disarm();
  /// Looks whether the interface is still there; if not, tells the device.
  void look();

  /// The interface is gone, or a program has done what ends a queue pair: receives flush, sleepers wake. Any thread.
  void enter_error();
  [[nodiscard]] bool in_use() const { return flows_.load(std::memory_order_relaxed) != 0; }
  void forget_after_fork();

 private:
  struct FlowHandle;
  /// Outlives the queue pair for a completion channel that is just calling.
  struct Gate {
    Mutex lock;
    PacketQueuePair* queue_pair = nullptr;
  };
  /// A frame that is several packets, and how far it has been delivered.
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
  /// What post_send() is to do with a request: send it (0), or fail with an errno value.
  [[nodiscard]] int check_send(const ibv_send_wr& wr) const;
  [[nodiscard]] bool may_read(const ibv_send_wr& wr) const;
  /// Sends what is in the batch. @return 0, or an errno value; `next` is then the request that it is about.
  int send_batch(OutgoingBatch& batch, ibv_send_wr*& next);
  /// Whether an IBV_WR_TSO is several datagrams that the kernel cannot take apart.
  [[nodiscard]] bool must_segment(const ibv_send_wr& wr) const;
  /// Sends them. 0, or an errno value.
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
  std::uint64_t watch_ = 0;  ///< of the receive queue's completion channel; 0: none

  BiasedMutex post_lock_;
  ReceiveQueue receives_;
  std::optional<Segmented> segmented_;
  ReceivedPacket packet_;
  std::unique_ptr<wire::Reassembler> reassembler_;  ///< made with the first fragment
  RingFrame whole_;                                 ///< what it has put together last
  std::array<std::byte, wire::kMaxHeaderBytes + sizeof(wire::VlanTag)> tagged_headers_;

  // Written by who receives, read by anybody.
  std::atomic<std::uint64_t> rx_packets_{0};
  std::atomic<std::uint64_t> rx_bytes_{0};
  std::atomic<std::uint64_t> rx_bad_length_{0};
  std::atomic<std::uint64_t> rx_bad_checksum_{0};
  std::atomic<std::uint64_t> rx_too_long_{0};
  // Written by any sender.
  std::atomic<std::uint64_t> tx_packets_{0};
  std::atomic<std::uint64_t> tx_bytes_{0};
};

}  // namespace ringsock::soft
