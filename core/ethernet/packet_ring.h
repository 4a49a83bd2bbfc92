// A ring of the embedded device, which shows packets where they lie, and sends datagrams without work requests.
#pragma once

#include <array>
#include <memory>

#include "core/ethernet/ring.h"
#include "core/runtime/service_thread.h"

namespace ringsock::soft {
class PacketQueuePair;
}  // namespace ringsock::soft

namespace ringsock::ethernet {

class PacketRing : public Ring {
 public:
  PacketRing(std::shared_ptr<Interface> interface, const RingSettings& settings, std::unique_ptr<RingCounters> counters)
      : Ring(std::move(interface), settings, std::move(counters)) {}
  ~PacketRing() override;

  Look poll(WaitingCall* waiting) override;
  int send(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) override;
  int rehearse(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) override;

 protected:
  /// Implements take().
  template <bool kPrefetches, bool kCaptures = false>
  unsigned take_some(Told& told, WaitingCall* waiting);

 private:
  Status start() override;
  unsigned take(Told& told, WaitingCall* waiting) override;
  void watch_alarms();
  void drain();

  soft::PacketQueuePair* packets_ = nullptr;  ///< qp_ as its real type
  std::array<runtime::ServiceThread::Id, 2> alarm_watches_{};
};

/// One that loads packets into the cache; a class, so that others do not ask for each packet whether they do.
class PrefetchingRing final : public PacketRing {
 public:
  using PacketRing::PacketRing;
  Look poll(WaitingCall* waiting) override;

 private:
  unsigned take(Told& told, WaitingCall* waiting) override;
};

/// One that writes copies of its packets to a file, for the same reason.
class CapturingRing final : public PacketRing {
 public:
  using PacketRing::PacketRing;
  Look poll(WaitingCall* waiting) override;
  int send(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) override;

 private:
  unsigned take(Told& told, WaitingCall* waiting) override;
  int post_to_device(ibv_send_wr& request) override;
};

}  // namespace ringsock::ethernet
