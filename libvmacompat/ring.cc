#include "libvmacompat/ring.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <mutex>

#include "core/device/soft/packet/packet_queue_pair.h"
#include "core/verbs/buffer_pool.h"
#include "libvmacompat/bursts.h"
#include "libvmacompat/interface.h"
#include "libvmacompat/told.h"

namespace ringsock::vma {

namespace {
using Count = runtime::VmaRingCount;
/// What a device's ring holds at least.
constexpr unsigned kDeviceFrames = 256;
constexpr int kMostPieces = 16;
/// Of TCP packets, which are none of ours.
constexpr std::size_t kAnyLength = std::numeric_limits<std::size_t>::max();

std::uint32_t most_pieces_of(verbs::Device& device) {
  const auto attr = device.query_device();
  return static_cast<std::uint32_t>(attr && attr->max_sge > 0 ? std::min(attr->max_sge, kMostPieces) : kMostPieces);
}
}  // namespace

Result<std::shared_ptr<Ring>> Ring::create(std::shared_ptr<Interface> interface, const RingSettings& settings) {
  std::shared_ptr<Ring> ring(new Ring(std::move(interface), settings));
  if (Status made = ring->make_queues(); !made) return made.error();
  if (ring->packets_ == nullptr) {
    if (Status posted = ring->post_first_receives(); !posted) return posted.error();
  } else if (settings.most_drained != 0) {
    ring->watch_alarms();
  }
  if (ring->makes_trains_) bursts().enter(*ring);
  if (!settings.makes_trains) bursts().stop();
  return ring;
}

Ring::Ring(std::shared_ptr<Interface> interface, const RingSettings& settings)
    : interface_(std::move(interface)),
      settings_(settings),
      makes_trains_(settings.makes_trains && interface_->joins_datagrams()),
      spares_(interface_->pool(), interface_->large_buffers()),
      statistics_(interface_->ifindex()) {}

Ring::~Ring() {
  for (const auto watch : alarm_watches_) runtime::service_thread().unwatch(watch);
  if (makes_trains_) bursts().leave(*this);
  send_train();
  // Flushes the posted receives, whose buffers are ours again.
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  if (!qp_ || !interface_->device().modify_qp(*qp_, attr, IBV_QP_STATE)) return;
  collect_flushed();
}

Status Ring::make_queues() {
  verbs::Device& device = interface_->device();
  auto channel = device.create_comp_channel();
  if (!channel) return channel.error();
  channel_ = *std::move(channel);
  auto receive_cq = device.create_cq(static_cast<int>(settings_.receive_entries), this, channel_.get(), 0);
  if (!receive_cq) return receive_cq.error();
  receive_cq_ = *std::move(receive_cq);
  timed_cq_ = device.with_wallclock(*receive_cq_);
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
  attr.cap.max_inline_data = device.max_inline_data();
  auto qp = device.create_qp(interface_->pd(), attr);
  if (!qp) return qp.error();
  qp_ = *std::move(qp);
  if (interface_->is_embedded()) packets_ = &soft::PacketQueuePair::of(*qp_);
  inline_bytes_ = attr.cap.max_inline_data;
  return verbs::start_raw_packet_qp(device, *qp_);
}

// -- receiving
// ---------------------------------------------------------------------------------------------------------

Status Ring::attach(const verbs::FlowTuple& tuple, DatagramSink& sink) {
  const std::lock_guard guard(receive_lock_);
  return flows_.attach(tuple, sink, [&] {
    verbs::FlowTuple known = tuple;
    if (!known.destination_mac) known.destination_mac = interface_->steering_mac();
    verbs::FlowRule rule(known);
    return verbs::create_flow(interface_->device(), *qp_, rule.attr());
  });
}

void Ring::detach(const verbs::FlowTuple& tuple, DatagramSink& sink) {
  const std::lock_guard guard(receive_lock_);
  flows_.detach(tuple, sink);
}

/// How many: a batch at most, and none after the one that serves the call.
[[gnu::always_inline]] inline unsigned Ring::take_packets(Told& told, WaitingCall* waiting) {
  const bool wants_times = wants_times_.load(std::memory_order_relaxed);
  unsigned count = 0;
  while (count < settings_.batch) {
    const soft::ReceivedPacket* const packet = packets_->take_packet(kAnyLength);
    if (packet == nullptr) break;
    ++count;
    bool is_ours = !packet->layout.is_tcp;
    if (is_ours) [[likely]] {
      const std::size_t payload_bytes = udp_payload_bytes(packet->headers, packet->layout);
      const Datagram datagram{.headers = packet->headers,
                              .payload = packet->payload.first(payload_bytes),
                              .frame = udp_frame_of(packet->layout, payload_bytes),
                              .ifindex = interface_->ifindex(),
                              .time = wants_times ? Nanos(packet->wallclock_ns) : Nanos::zero()};
      Incoming incoming(datagram, waiting, spares_);
      is_ours = flows_.deliver(incoming, told);
    }
    packets_->release_packet();
    if (!is_ours) [[unlikely]]
      statistics_.count(Count::rx_dropped);
    if (waiting != nullptr && waiting->answer) break;
  }
  packets_->note_poll(static_cast<int>(count));
  return count;
}

[[gnu::always_inline]] inline bool Ring::take_batch(Told& told, WaitingCall* waiting) {
  const unsigned count = packets_ != nullptr ? take_packets(told, waiting) : take_completions(told, waiting);
  if (count == 0) return false;
  statistics_.raise(runtime::VmaRingLevel::drained_max, count);
  return true;
}

Ring::Look Ring::poll(WaitingCall* waiting) {
  Told told;
  {
    const std::unique_lock guard(receive_lock_, std::try_to_lock);
    if (!guard) return Look::busy;
    if (!take_batch(told, waiting)) return Look::nothing;
  }
  told.tell();
  return Look::some;
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

void Ring::leave(const verbs::FlowTuple& tuple, DatagramSink& sink) {
  Told told;
  {
    const std::lock_guard guard(receive_lock_);
    flows_.stop(tuple, sink);
    // Others' flows may fill it as fast as we empty it: twice what it holds is enough.
    const unsigned most = 2 * (settings_.receive_entries + kDeviceFrames);
    for (unsigned i = 0; i < most && take_batch(told); ++i) {
    }
    flows_.detach(tuple, sink);
  }
  told.tell();
}

void Ring::arm() {
  const std::lock_guard guard(receive_lock_);
  ibv_req_notify_cq(receive_cq_.get(), 0);
  statistics_.count(Count::interrupts_requested);
}

void Ring::woken() {
  verbs::Device& device = interface_->device();
  Told told;
  {
    const std::lock_guard guard(receive_lock_);
    while (auto cq = device.get_cq_event(*channel_)) {
      device.ack_cq_events(**cq, 1);
      statistics_.count(Count::interrupts_received);
    }
    // Others may be asleep: the next event is theirs. Armed before the last look, or it would be missed.
    ibv_req_notify_cq(receive_cq_.get(), 0);
    for (unsigned i = 0; i < kBatchesPerWakeUp && take_batch(told); ++i) {
    }
  }
  told.tell();
}

/// Where there is no service thread the ring holds what it holds.
void Ring::watch_alarms() {
  const auto fds = packets_->alarms();
  for (std::size_t i = 0; i < fds.size(); ++i) {
    if (fds[i] < 0) continue;
    // A ring that is about to end waits for nobody who works for it.
    const auto watch = runtime::service_thread().watch(fds[i], EPOLLIN, [weak = weak_from_this()](std::uint32_t) {
      if (const auto ring = weak.lock()) ring->drain();
    });
    if (watch) alarm_watches_[i] = *watch;
  }
}

/// By the service thread: the application is elsewhere. What has come waits in the sockets' queues, as long as those
/// are.
void Ring::drain() {
  packets_->silence_alarms();
  for (unsigned left = settings_.most_drained / settings_.batch + 1; left > 0; --left) {
    if (poll_in_turn() == Look::nothing) return;
  }
}

void Ring::refresh_statistics() {
  const auto now = interface_->device().packet_counters(*qp_);
  if (!now) return;
  statistics_.set(Count::rx_packets, now->rx_packets);
  statistics_.set(Count::rx_bytes, now->rx_bytes);
  statistics_.set(Count::device_drops,
                  now->rx_ring_full + now->rx_bad_length + now->rx_bad_checksum + now->rx_too_long);
  statistics_.set(Count::tx_bytes, now->tx_bytes);
  {
    const std::lock_guard guard(send_lock_);
    statistics_.set(Count::tx_dropped, now->tx_dropped + lost_);
    // The device counts trains.
    const std::uint64_t joined = statistics_.value(Count::tx_joined) - statistics_.value(Count::tx_trains);
    statistics_.set(Count::tx_packets, now->tx_packets + joined);
  }
  const std::lock_guard guard(receive_lock_);
  statistics_.set(runtime::VmaRingLevel::buffers, posted_ + due_count_ + spares_.count());
}

// -- sending
// -----------------------------------------------------------------------------------------------------------

[[gnu::always_inline]] inline int Ring::post_locked(ibv_send_wr& request) {
  if (under_way_ == settings_.send_entries) {
    reap_sends();
    if (under_way_ == settings_.send_entries) return ENOMEM;
  }
  verbs::BufferRef copy;
  ibv_sge whole;
  if (!interface_->is_embedded()) {
    if (const int error = adapt(request, copy, whole); error != 0) return error;
  }
  if (++unsignalled_ >= std::min(settings_.sends_per_completion, settings_.send_entries / 2)) {
    request.send_flags |= IBV_SEND_SIGNALED;
    request.wr_id = unsignalled_;
  }
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(qp_.get(), &request, &bad); error != 0) {
    --unsignalled_;
    return error;
  }
  ++under_way_;
  if (!interface_->is_embedded()) copies_.push_back(std::move(copy));
  if (request.wr_id != 0) {
    unsignalled_ = 0;
    reap_sends();
  }
  return 0;
}

[[gnu::always_inline]] inline int Ring::post(ibv_send_wr& request) {
  const std::lock_guard guard(send_lock_);
  if (train_.count() != 0) [[unlikely]]
    send_train_locked();
  return post_locked(request);
}

int Ring::post_held(ibv_send_wr& request) { return post_locked(request); }

int Ring::send(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) {
  if (packets_ == nullptr) [[unlikely]]
    return post_datagram(room.headers().first(header_bytes), payload);
  if (train_began_.load(std::memory_order_relaxed) != Nanos::zero()) [[unlikely]]
    send_train();  // which is in front of us
  return packets_->send_datagram(room, header_bytes, payload);
}

int Ring::post_datagram(std::span<std::byte> headers, std::span<const iovec> payload) {
  DatagramPieces pieces(headers, payload);
  ibv_send_wr request = frame_request(pieces.all(), IBV_SEND_INLINE | IBV_SEND_IP_CSUM);
  return post(request);
}

int Ring::send_segments(std::span<std::byte> headers, std::span<const iovec> payload, std::uint16_t segment_bytes) {
  DatagramPieces pieces(headers, payload);
  ibv_send_wr request = segments_request(headers, pieces.payload(), segment_bytes);
  return post(request);
}

bool Ring::segments_udp() const { return interface_->device().segments_udp(); }

void Ring::reap_sends() {
  ibv_wc completions[kBatch];
  for (int count = kBatch; count == kBatch;) {
    count = ibv_poll_cq(send_cq_.get(), kBatch, completions);
    for (int i = 0; i < count; ++i) {
      const auto done = static_cast<unsigned>(completions[i].wr_id);
      under_way_ -= done;
      if (!copies_.empty()) copies_.erase(copies_.begin(), copies_.begin() + done);
    }
  }
}

}  // namespace ringsock::vma
