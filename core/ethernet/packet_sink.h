// Receivers of the packets of a flow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/ethernet/arrival.h"
#include "core/ethernet/incoming.h"
#include "core/runtime/endpoint.h"

namespace ringsock::ethernet {

/// What a socket has done with a packet.
enum class Delivery {
  refused,  ///< the packet is not for this socket
  done,     ///< copied to a waiting call, or dropped and counted
  waits,    ///< kept for a later call
};

/// Something that a socket of a ring tells a program that polls the ring (ring_events.h).
struct SinkEvent {
  std::optional<Arrival> packet{};
  std::uint32_t events = 0;     ///< EPOLL* bits
  std::uint64_t user_data = 0;  ///< by which the program knows the socket
};

/// The call of such a program: takes packets as they come, without passing through their sockets' queues.
struct RingPoll : WaitingCall {
  explicit RingPoll(std::span<SinkEvent> events) : room(events) {}

  /// Returns the place of the next event. The call is served when there is no further place.
  SinkEvent& next() {
    is_served = count + 1 == room.size();
    return room[count++];
  }

  const std::span<SinkEvent> room;  ///< not empty
  std::size_t count = 0;
};

/// The part of a socket of any protocol that tells such programs. Called as PacketSink::deliver() is.
class EventSource {
 public:
  /// Returns the number of packets that nobody has read yet.
  [[nodiscard]] virtual std::size_t count_waiting() noexcept = 0;
  /// Takes the oldest of them. Returns false when there is none.
  virtual bool take_packet(SinkEvent& out) noexcept = 0;
  /// Returns false when nothing but packets of rings has happened to the socket. Costs a system call.
  virtual bool look_elsewhere(SinkEvent& out) noexcept = 0;

 protected:
  ~EventSource() = default;
};

/// A socket of any protocol, as rings see it. The thread that polls the ring calls these functions under the ring's
/// receive lock: they must neither sleep nor call the ring.
class PacketSink {
 public:
  /// Returns whether it accepts packets from that source: it may be connected to another one.
  [[nodiscard]] virtual bool accepts(const wire::EndName& source) const noexcept = 0;
  /// Takes an accepted packet, or drops and counts it when there is no room.
  virtual Delivery deliver(Incoming& incoming, const wire::EndName& source) noexcept = 0;
  /// The endpoint whose watchers are told.
  virtual runtime::Endpoint& endpoint() noexcept = 0;
  /// SO_REUSEPORT: flows are spread over all such sockets. Otherwise the socket that was bound last gets all packets
  /// (udp(7)).
  [[nodiscard]] virtual bool shares_port() const noexcept = 0;
  /// Returns whether it has kept packets that nobody has read yet.
  [[nodiscard]] virtual bool has_waiting() const noexcept = 0;
  /// Returns null for a socket whose packets are only read.
  virtual EventSource* event_source() noexcept { return nullptr; }

 protected:
  ~PacketSink() = default;
};

}  // namespace ringsock::ethernet
