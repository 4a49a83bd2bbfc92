// A ring of an AF_PACKET socket: packet(7), TPACKET_V2, with virtio_net_hdr in both directions.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "core/base/unique_fd.h"
#include "core/device/packet/ring/frame_ring.h"
#include "core/device/packet/ring/ring_alarm.h"

struct tpacket2_hdr;

namespace ringsock::soft {

/// Frames of up to 2 KiB are in the mapped ring. Larger frames (segmentation offload makes packets of 64 KiB, and the
/// MTU may grow) are read by recv(2): a ring with places for them would need 64 KiB for each packet of 64 bytes.
/// Frames are sent by sendto(2), one call per doorbell. Measured over veth, this is as fast as a mapped ring for single
/// frames, because the kernel attaches those to the packet page by page, and faster for lists (sendmmsg(2)).
class SocketRing final : public FrameRing {
 public:
  /// The destructor returns `number` to `maker`.
  SocketRing(RingMaker& maker, unsigned number, unsigned ifindex) : maker_(maker), number_(number), ifindex_(ifindex) {}
  SocketRing(const SocketRing&) = delete;
  SocketRing& operator=(const SocketRing&) = delete;
  ~SocketRing() override;
  /// Called first. `object` is loaded, and contains the filter that admits the packets for this ring. Errors: EPERM,
  /// ENODEV, ENOMEM, EMFILE, ENETDOWN.
  Status open(const BpfObject& object, unsigned frames);

  const RingFrame* front() override;
  void pop() override;
  Result<std::size_t> send(std::span<const OutgoingFrame> frames) override;
  Status send_piece(const iovec& frame) override;
  [[nodiscard]] int descriptor() const override { return socket_.get(); }
  [[nodiscard]] std::array<int, 2> alarms() const override { return {alarm_.descriptor(), -1}; }
  void silence_alarms() override { alarm_.silence(); }
  bool look() override;
  Counters counters() override;
  [[nodiscard]] unsigned number() const override { return number_; }
  void forget() override;

 private:
  Status map_ring(unsigned frames);
  [[nodiscard]] tpacket2_hdr& slot() const;
  bool read_slot(tpacket2_hdr& header, std::uint32_t status);
  bool fetch_large();
  bool read_offload(const virtio_net_hdr& offload, std::uint32_t status);
  void release_slot();
  Result<std::size_t> try_to_send(std::span<const OutgoingFrame> frames);
  void take_error();
  Result<std::size_t> send_one(OutgoingFrame frame);
  Result<std::size_t> send_many(std::span<const OutgoingFrame> frames);
  /// Returns the error for a frame according to errno; success: the frame was lost.
  Status judge_failure();

  RingMaker& maker_;
  const unsigned number_;
  const unsigned ifindex_;
  UniqueFd socket_;
  RingAlarm alarm_;
  std::byte* ring_ = nullptr;
  std::size_t slots_ = 0;
  std::size_t next_ = 0;
  bool has_frame_ = false;
  RingFrame frame_;
  std::unique_ptr<std::byte[]> large_;  ///< a frame that did not fit; made on demand

  std::atomic<bool> took_error_{false};  ///< the socket's pending error was read outside look()
  std::atomic<std::uint64_t> lost_{0};   ///< truncated, because the queue for recv(2) was full
  std::atomic<std::uint64_t> tx_dropped_{0};
  std::atomic<std::uint64_t> rx_calls_{0};
  std::atomic<std::uint64_t> tx_calls_{0};
  std::mutex statistics_lock_;
  std::uint64_t ring_full_ = 0;
};

}  // namespace ringsock::soft
