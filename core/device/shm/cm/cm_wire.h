// The layouts of the packets of the embedded device's connection manager, and their checks on receipt. Both ends run on
// one host, so numbers are in host byte order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/device/shm/link/link.h"
#include "core/device/shm/queue/rc_wiring.h"
#include "core/verbs/connection_manager.h"

namespace ringsock::soft {

/// Changes with every change of a layout below or of the shared memory. Both sides must have the same version.
inline constexpr std::uint16_t kCmVersion = 8;

/// The private data of a packet, by value.
struct PrivateData {
  std::array<std::byte, verbs::kMaxReplyPrivateData> bytes{};
  std::size_t size = 0;

  [[nodiscard]] std::span<const std::byte> view() const { return std::span(bytes).first(size); }
  /// Copies the data. Error: EINVAL when it is longer than `limit`.
  Status assign(std::span<const std::byte> from, std::size_t limit);
};

/// LinkPacket::request, parsed. `parameters.private_data` is not used.
struct ConnectRequest {
  verbs::PortSpace space{};
  SocketAddress source;       ///< never mapped, never a wildcard, with a port
  SocketAddress destination;  ///< the same
  QueuePairOffer offer{};     ///< unchecked; PortSpace::tcp only
  verbs::ConnectionParameters parameters;
  PrivateData private_data;  ///< at most kMaxRequestPrivateData bytes
};

/// LinkPacket::reply, parsed.
struct ConnectReply {
  /// The accepting process is the one that called listen(), so the SO_PEERCRED of the connection names it.
  bool from_listening_process = false;
  QueuePairOffer offer{};  ///< PortSpace::udp: only qp_num is used
  verbs::ConnectionParameters parameters;
  PrivateData private_data;
};

/// The bytes of a packet behind the type byte.
struct EncodedPacket {
  std::array<std::byte, kMaxLinkPacket - 1> bytes;
  std::size_t size = 0;
  [[nodiscard]] std::span<const std::byte> view() const { return std::span(bytes).first(size); }
};

EncodedPacket encode_request(const ConnectRequest& request);
EncodedPacket encode_reply(const ConnectReply& reply);
EncodedPacket encode_reject(const PrivateData& private_data);

/// Pure. Errors: EPROTO wrong length or a value out of range; ENOTSUP another version.
Result<ConnectRequest> parse_request(std::span<const std::byte> bytes);
Result<ConnectReply> parse_reply(std::span<const std::byte> bytes);
Result<PrivateData> parse_reject(std::span<const std::byte> bytes);

}  // namespace ringsock::soft
