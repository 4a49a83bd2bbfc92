// Resets TCP connections whose process has died, at the other end.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <tuple>

#include "core/base/clock.h"

namespace ringsock::tools {

/// The ends of a connection; ours is the source. Network order.
struct TcpPair {
  std::uint32_t source = 0, destination = 0;
  std::uint16_t source_port = 0, destination_port = 0;
  bool operator==(const TcpPair&) const = default;
  bool operator<(const TcpPair& other) const {
    return std::tie(source, destination, source_port, destination_port) <
           std::tie(other.source, other.destination, other.source_port, other.destination_port);
  }
};

/// An IPv4 packet with a TCP segment without options and payload.
using TcpPacket = std::array<std::byte, 40>;
/// SYN with sequence number 1: the peer of a connection that it knows answers with an ACK (RFC 9293, 3.10.7.4), which
/// this host's kernel, who knows no such connection, answers with a reset.
TcpPacket make_syn(const TcpPair& pair);
/// RST with a sequence number that the peer accepts.
TcpPacket make_rst(const TcpPair& pair, std::uint32_t sequence);

/// An ACK of the peer.
struct TcpAnswer {
  TcpPair pair;  ///< as we see it: the packet's destination is our source
  std::uint32_t acknowledged = 0;
  bool is_reset = false;  ///< the peer knows no such connection
};
/// Reads an IPv4 packet. Returns nothing when it has no TCP segment with ACK or RST, or is cut.
std::optional<TcpAnswer> parse_answer(std::span<const std::byte> packet);

/// The resets that are under way. Used by one thread.
class TcpResets {
 public:
  static constexpr unsigned kAttempts = 3;
  static constexpr std::size_t kMost = 65536;

  struct Settings {
    Nanos interval = std::chrono::seconds(1);  ///< between attempts
    bool forced = false;                       ///< sends the reset itself, instead of leaving it to the host's kernel
  };
  using Send = std::function<void(const TcpPacket& packet, std::uint32_t destination)>;
  TcpResets(Settings settings, Send send) : settings_(settings), send_(std::move(send)) {}

  /// Begins to reset a connection. Does nothing when there are kMost.
  void begin(const TcpPair& pair, Nanos now);
  /// Sends what is due.
  void go_on(Nanos now);
  /// Returns when go_on() has something to do, Nanos::max() for never.
  [[nodiscard]] Nanos next() const;
  /// A packet has come.
  void received(std::span<const std::byte> packet);
  [[nodiscard]] std::size_t count() const { return under_way_.size(); }

 private:
  struct Attempt {
    unsigned number = 0;
    Nanos due{};
  };
  const Settings settings_;
  const Send send_;
  std::map<TcpPair, Attempt> under_way_;
};

}  // namespace ringsock::tools
