// A ring of a network card, which posts receives and polls by verbs, and does in software what the card does not do.
#pragma once

#include <array>
#include <deque>
#include <memory>

#include "core/ethernet/ring.h"
#include "core/verbs/buffer.h"
#include "core/wire/frame_layout.h"

namespace ringsock::ethernet {

class CardRing final : public Ring {
 public:
  CardRing(std::shared_ptr<Interface> interface, const RingSettings& settings, std::unique_ptr<RingCounters> counters)
      : Ring(std::move(interface), settings, std::move(counters)) {}
  ~CardRing() override;

  Look poll(WaitingCall* waiting) override;
  int send(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) override;
  int rehearse(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) override;

 private:
  struct Batch;
  Status start() override;
  unsigned take(Told& told, WaitingCall* waiting) override;
  [[nodiscard]] std::size_t posted_buffers() const override { return posted_ + due_count_; }
  int post_to_device(ibv_send_wr& request) override;
  void note_sent(unsigned count) override;

  void post_receives(std::span<verbs::BufferRef> buffers);
  void replace(verbs::BufferRef buffer);
  void poll_with_times(Batch& batch);
  bool take_one(const ibv_wc& completion, verbs::BufferRef& buffer, Nanos time, Told& told, WaitingCall* waiting);
  void collect_flushed();
  [[nodiscard]] bool has_right_checksums(const ibv_wc& completion, std::span<const std::byte> frame,
                                         const wire::FrameLayout& layout) const;
  /// Changes a request for a frame into one that the device can carry out. Returns 0 or an errno value.
  int adapt(ibv_send_wr& request, verbs::BufferRef& copy, ibv_sge& whole) const;

  ibv_cq_ex* timed_cq_ = nullptr;             ///< receive_cq_, if it reports times
  std::size_t posted_ = 0;                    ///< number of posted receives
  std::array<verbs::BufferRef, kBatch> due_;  ///< to be posted, as a batch, in place of delivered ones
  std::size_t due_count_ = 0;
  std::deque<verbs::BufferRef> copies_;  ///< one for each posted request; null: the request was inline
};

}  // namespace ringsock::ethernet
