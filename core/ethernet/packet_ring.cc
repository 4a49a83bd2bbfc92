#include "core/ethernet/packet_ring.h"

#include <sys/epoll.h>

#include <algorithm>
#include <limits>
#include <span>

#include "core/device/packet/packet_queue_pair.h"
#include "core/ethernet/interface.h"
#include "core/ethernet/told.h"

namespace ringsock::ethernet {

namespace {
/// TCP packets are shown at any length, as the kernel has merged them.
constexpr std::size_t kAnyLength = std::numeric_limits<std::size_t>::max();

/// Begins to load the payload; the headers are read at once anyway.
void prefetch(const soft::ReceivedPacket& packet, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const std::span payload = packet.payload.first(std::min(bytes, packet.payload.size()));
  for (std::size_t offset = 0; offset < payload.size(); offset += kLine) __builtin_prefetch(payload.data() + offset);
}
}  // namespace

PacketRing::~PacketRing() {
  for (const auto watch : alarm_watches_) runtime::service_thread().unwatch(watch);
  stop();
}

Status PacketRing::start() {
  packets_ = &soft::PacketQueuePair::of(*qp_);
  if (settings_.most_drained != 0) watch_alarms();
  return ok();
}

template <bool kPrefetches, bool kCaptures>
[[gnu::always_inline]] inline unsigned PacketRing::take_some(Told& told, WaitingCall* waiting) {
  const bool wants_times = wants_times_.load(std::memory_order_relaxed);
  unsigned count = 0;
  while (count < settings_.batch) {
    const soft::ReceivedPacket* const packet = packets_->take_packet(kAnyLength);
    if (packet == nullptr) break;
    ++count;
    if constexpr (kPrefetches) prefetch(*packet, settings_.prefetch_bytes);
    const Packet shown{.headers = packet->headers,
                       .payload = packet->payload.first(packet->layout.payload_bytes),
                       .layout = packet->layout,
                       .ifindex = interface_->ifindex(),
                       .time = wants_times ? Nanos(packet->wallclock_ns) : Nanos::zero()};
    if constexpr (kCaptures) capture_->note_received(shown);
    Incoming incoming(shown, waiting, spares_);
    const bool is_ours = sinks_.deliver(incoming, told);
    packets_->release_packet();
    if (!is_ours) [[unlikely]]
      counters_->count(RingCount::rx_dropped);
    if (waiting != nullptr && waiting->is_served) break;
  }
  packets_->note_poll(static_cast<int>(count));
  return count;
}

unsigned PacketRing::take(Told& told, WaitingCall* waiting) { return take_some<false>(told, waiting); }
unsigned PrefetchingRing::take(Told& told, WaitingCall* waiting) { return take_some<true>(told, waiting); }
unsigned CapturingRing::take(Told& told, WaitingCall* waiting) { return take_some<false, true>(told, waiting); }

/// Without a service thread, packets wait in the device's ring only.
void PacketRing::watch_alarms() {
  const auto fds = packets_->alarms();
  for (std::size_t i = 0; i < fds.size(); ++i) {
    if (fds[i] < 0) continue;
    // The weak reference keeps a ring that is being destroyed from being drained.
    const auto watch = runtime::service_thread().watch(fds[i], EPOLLIN, [this, weak = weak_from_this()](std::uint32_t) {
      if (const auto ring = weak.lock()) drain();
    });
    if (watch) alarm_watches_[i] = *watch;
  }
}

/// Runs on the service thread while the application does not receive. Moves packets to the sockets' queues, up to their
/// limits.
void PacketRing::drain() {
  packets_->silence_alarms();
  for (unsigned left = settings_.most_drained / settings_.batch + 1; left > 0; --left) {
    if (poll_in_turn() == Look::nothing) return;
  }
}

Ring::Look PacketRing::poll(WaitingCall* waiting) {
  return poll_by([&](Told& told) { return take_some<false>(told, waiting); });
}
Ring::Look PrefetchingRing::poll(WaitingCall* waiting) {
  return poll_by([&](Told& told) { return take_some<true>(told, waiting); });
}

int PacketRing::send(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) {
  if (has_train()) [[unlikely]]
    send_train();  // the train was first
  return packets_->send_datagram(room, header_bytes, payload);
}

Ring::Look CapturingRing::poll(WaitingCall* waiting) {
  return poll_by([&](Told& told) { return take_some<false, true>(told, waiting); });
}

int CapturingRing::send(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) {
  const int error = PacketRing::send(room, header_bytes, payload);
  if (error == 0) capture_->note(room.headers().first(header_bytes), payload);
  return error;
}

int CapturingRing::post_to_device(ibv_send_wr& request) {
  const int error = Ring::post_to_device(request);
  if (error == 0) capture_->note_request(request);
  return error;
}

int PacketRing::rehearse(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) {
  if (has_train()) [[unlikely]]
    send_train();
  return packets_->rehearse_datagram(room, header_bytes, payload);
}

}  // namespace ringsock::ethernet
