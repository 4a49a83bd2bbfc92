#include "core/ethernet/ring.h"

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "core/base/sleep_while.h"
#include "core/ethernet/bursts.h"
#include "core/ethernet/card_ring.h"
#include "core/ethernet/interface.h"
#include "core/ethernet/packet_ring.h"
#include "core/ethernet/told.h"
#include "core/verbs/buffer_pool.h"

namespace ringsock::ethernet {

namespace {
using Count = RingCount;
/// The least number of frames that a device's ring holds.
constexpr unsigned kDeviceFrames = 256;
constexpr int kMostPieces = 16;

std::uint32_t most_pieces_of(verbs::Device& device) {
  const auto attr = device.query_device();
  return static_cast<std::uint32_t>(attr && attr->max_sge > 0 ? std::min(attr->max_sge, kMostPieces) : kMostPieces);
}

std::shared_ptr<Ring> make_packet_ring(std::shared_ptr<Interface> interface, const RingSettings& settings,
                                       std::unique_ptr<RingCounters> counters, bool captures) {
  if (captures) return std::make_shared<CapturingRing>(std::move(interface), settings, std::move(counters));
  if (settings.prefetch_bytes == 0)
    return std::make_shared<PacketRing>(std::move(interface), settings, std::move(counters));
  return std::make_shared<PrefetchingRing>(std::move(interface), settings, std::move(counters));
}
}  // namespace

Result<std::shared_ptr<Ring>> Ring::create(std::shared_ptr<Interface> interface, const RingSettings& settings,
                                           std::unique_ptr<RingCounters> counters,
                                           std::unique_ptr<PacketCapture> capture) {
  std::shared_ptr<Ring> ring;
  if (interface->is_embedded()) {
    ring = make_packet_ring(std::move(interface), settings, std::move(counters), capture != nullptr);
  } else {
    ring = std::make_shared<CardRing>(std::move(interface), settings, std::move(counters));
  }
  ring->capture_ = std::move(capture);
  if (Status made = ring->make_queues(); !made) return made.error();
  if (Status started = ring->start(); !started) return started.error();
  if (ring->makes_trains_) bursts().enter(*ring);
  if (!settings.makes_trains) bursts().stop();
  if (settings.moderation != Moderation{}) ring->moderate(settings.moderation);
  return ring;
}

Ring::Ring(std::shared_ptr<Interface> interface, const RingSettings& settings, std::unique_ptr<RingCounters> counters)
    : interface_(std::move(interface)),
      settings_(settings),
      spares_(interface_->pool(), interface_->large_buffers(),
              std::clamp<std::size_t>(settings.spare_buffers, 1, SpareBuffers::kMost)),
      counters_(std::move(counters)),
      makes_trains_(settings.makes_trains && interface_->joins_datagrams()),
      adaptive_(settings.adaptive) {}

void Ring::stop() {
  if (makes_trains_) bursts().leave(*this);
  send_train();
  // Threads that sleep on the ring's descriptor would not hear that it is closed.
  const auto follower = with_sinks([](SinkTable& sinks) { return sinks.take_follower(); });
  if (follower) follower->notify_watchers();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  if (qp_) static_cast<void>(interface_->device().modify_qp(*qp_, attr, IBV_QP_STATE));
}

Status Ring::make_queues() {
  verbs::Device& device = interface_->device();
  auto channel = device.create_comp_channel();
  if (!channel) return channel.error();
  channel_ = *std::move(channel);
  auto receive_cq = device.create_cq(static_cast<int>(settings_.receive_entries), this, channel_.get(), 0);
  if (!receive_cq) return receive_cq.error();
  receive_cq_ = *std::move(receive_cq);
  auto send_cq = device.create_cq(static_cast<int>(settings_.send_entries), this, nullptr, 0);
  if (!send_cq) return send_cq.error();
  send_cq_ = *std::move(send_cq);

  ibv_qp_init_attr attr{};
  attr.send_cq = send_cq_.get();
  attr.recv_cq = receive_cq_.get();
  attr.qp_type = IBV_QPT_RAW_PACKET;
  attr.cap.max_send_wr = settings_.send_entries;
  attr.cap.max_recv_wr = settings_.receive_entries;
  attr.cap.max_send_sge = most_pieces_ = most_pieces_of(device);
  attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = device.traits().max_inline_data;
  if (!interface_->is_embedded())
    attr.cap.max_inline_data = std::min(attr.cap.max_inline_data, settings_.most_inline_bytes);
  auto qp = device.create_qp(interface_->pd(), attr);
  if (!qp) return qp.error();
  qp_ = *std::move(qp);
  inline_bytes_ = attr.cap.max_inline_data;
  return verbs::start_raw_packet_qp(device, *qp_);
}

// -- receiving -------------------------------------------------------------------------------------

Status Ring::attach(const verbs::FlowTuple& tuple, PacketSink& sink) {
  const auto make_flow = [&] {
    verbs::FlowTuple known = tuple;
    if (!known.destination_mac) known.destination_mac = interface_->steering_mac();
    verbs::FlowRule rule(known);
    return verbs::create_flow(interface_->device(), *qp_, rule.attr());
  };
  Told told;
  Status attached = ok();
  {
    const std::lock_guard guard(receive_lock_);
    if (sinks_.has_some_of(tuple)) take_what_has_come(told);
    attached = sinks_.attach(tuple, sink, make_flow);
  }
  told.tell();
  return attached;
}

bool Ring::take_batch(Told& told, WaitingCall* waiting) {
  const unsigned count = take(told, waiting);
  if (count == 0) return false;
  counters_->raise(Count::drained_max, count);
  return true;
}

Ring::Look Ring::poll_in_turn(WaitingCall* waiting) {
  Told told;
  {
    const std::lock_guard guard(receive_lock_);
    if (!take_batch(told, waiting)) return Look::nothing;
  }
  told.tell();
  return Look::some;
}

/// Flows of other sockets may fill the ring as fast as it is emptied, so no more than twice its capacity is taken.
void Ring::take_what_has_come(Told& told) {
  const unsigned most = 2 * (settings_.receive_entries + kDeviceFrames);
  for (unsigned i = 0; i < most && take_batch(told); ++i) {
  }
}

void Ring::detach(const verbs::FlowTuple& tuple, PacketSink& sink) {
  Told told;
  {
    const std::lock_guard guard(receive_lock_);
    sinks_.stop(tuple, sink);
    take_what_has_come(told);
    sinks_.detach(tuple, sink);
  }
  told.tell();
}

void Ring::arm() {
  const std::lock_guard guard(receive_lock_);
  ibv_req_notify_cq(receive_cq_.get(), 0);
  counters_->count(Count::interrupts_requested);
}

void Ring::moderate(Moderation moderation) {
  const std::lock_guard guard(receive_lock_);
  counters_->set(Count::moderation_packets, moderation.packets);
  counters_->set(Count::moderation_period_us, static_cast<std::uint64_t>(moderation.period.count()));
  moderation_.store(moderation.period, std::memory_order_relaxed);
}

void Ring::woken() {
  if (settings_.adaptive.interval != Nanos::zero() && adaptive_.is_due(monotonic_now())) [[unlikely]]
    refresh_statistics();
  if (const Nanos period = moderation_.load(std::memory_order_relaxed); period > Nanos::zero()) sleep_for(period);
  verbs::Device& device = interface_->device();
  Told told;
  {
    const std::lock_guard guard(receive_lock_);
    if (auto cq = device.get_cq_event(*channel_)) {
      device.ack_cq_events(**cq, 1);
      counters_->count(Count::interrupts_received);
    }
    // Other threads may be asleep, and the next event wakes them. Armed before the last look, or it would be missed.
    ibv_req_notify_cq(receive_cq_.get(), 0);
    for (unsigned i = 0; i < kBatchesPerWakeUp && take_batch(told); ++i) {
    }
  }
  told.tell();
}

void Ring::refresh_statistics() {
  const auto now = interface_->device().packet_counters(*qp_);
  if (!now) return;
  counters_->set(Count::rx_packets, now->rx_packets);
  counters_->set(Count::rx_bytes, now->rx_bytes);
  counters_->set(Count::device_drops, now->rx_ring_full + now->rx_bad_length + now->rx_bad_checksum + now->rx_too_long);
  counters_->set(Count::tx_bytes, now->tx_bytes);
  {
    const std::lock_guard guard(send_lock_);
    counters_->set(Count::tx_dropped, now->tx_dropped + lost_);
    // The device counts a train as one packet.
    const std::uint64_t joined = counters_->value(Count::tx_joined) - counters_->value(Count::tx_trains);
    counters_->set(Count::tx_packets, now->tx_packets + joined);
  }
  std::optional<Moderation> next;
  {
    const std::lock_guard guard(receive_lock_);
    counters_->set(Count::buffers, posted_buffers() + spares_.count());
    next = adaptive_.next(monotonic_now(), now->rx_packets, now->rx_bytes);
  }
  if (next) moderate(*next);
}

// -- sending ---------------------------------------------------------------------------------------

int Ring::post_to_device(ibv_send_wr& request) {
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp_.get(), &request, &bad);
}

int Ring::post_locked(ibv_send_wr& request) {
  if (under_way_ == settings_.send_entries) {
    reap_sends();
    if (under_way_ == settings_.send_entries) return ENOMEM;
  }
  if (++unsignalled_ >= std::min(settings_.sends_per_completion, settings_.send_entries / 2)) {
    request.send_flags |= IBV_SEND_SIGNALED;
    request.wr_id = unsignalled_;
  }
  if (const int error = post_to_device(request); error != 0) {
    --unsignalled_;
    return error;
  }
  ++under_way_;
  if (request.wr_id != 0) {
    unsignalled_ = 0;
    reap_sends();
  }
  return 0;
}

int Ring::post(ibv_send_wr& request) {
  const std::lock_guard guard(send_lock_);
  if (train_.count() != 0) [[unlikely]]
    send_train_locked();
  return post_locked(request);
}

int Ring::send_segments(std::span<std::byte> headers, std::span<const iovec> payload, std::uint16_t segment_bytes) {
  DatagramPieces pieces(headers, payload);
  ibv_send_wr request = segments_request(headers, pieces.payload(), segment_bytes);
  return post(request);
}

void Ring::reap_sends() {
  ibv_wc completions[kBatch];
  for (int count = kBatch; count == kBatch;) {
    count = ibv_poll_cq(send_cq_.get(), kBatch, completions);
    for (int i = 0; i < count; ++i) {
      const auto done = static_cast<unsigned>(completions[i].wr_id);
      under_way_ -= done;
      note_sent(done);
    }
  }
}

}  // namespace ringsock::ethernet
