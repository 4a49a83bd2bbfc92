#include "core/device/shm/cm/cm_wire.h"

#include <algorithm>
#include <cstring>

namespace ringsock::soft {
namespace {

using verbs::ConnectionParameters;
using verbs::PortSpace;

struct WireAddress {
  std::uint16_t family;  ///< AF_INET or AF_INET6
  std::uint16_t port;
  std::uint32_t scope_id;
  std::uint8_t address[16];  ///< network order; AF_INET uses the first four
};
static_assert(sizeof(WireAddress) == 24);

struct WireParameters {
  std::uint8_t responder_resources;
  std::uint8_t initiator_depth;
  std::uint8_t flow_control;
  std::uint8_t retry_count;
  std::uint8_t rnr_retry_count;
  std::uint8_t private_bytes;  ///< length of the private data behind the header
  std::uint16_t reserved;
  std::uint32_t qkey;
};
static_assert(sizeof(WireParameters) == 12);

struct WireRequest {
  std::uint16_t version;
  std::uint16_t port_space;
  std::uint32_t reserved;
  WireAddress source;
  WireAddress destination;
  QueuePairOffer offer;
  WireParameters parameters;
  std::uint32_t padding;
};
static_assert(sizeof(WireRequest) == 168);

struct WireReply {
  std::uint16_t version;
  std::uint16_t flags;
  std::uint32_t reserved;
  QueuePairOffer offer;
  WireParameters parameters;
  std::uint32_t padding;
};
static_assert(sizeof(WireReply) == 120);
constexpr std::uint16_t kReplyFromListeningProcess = 1;

struct WireReject {
  std::uint16_t version;
  std::uint8_t private_bytes;
  std::uint8_t reserved[5];
};
static_assert(sizeof(WireReject) == 8);

static_assert(sizeof(WireRequest) + verbs::kMaxRequestPrivateData < kMaxLinkPacket);
static_assert(sizeof(WireReply) + verbs::kMaxReplyPrivateData < kMaxLinkPacket);

WireAddress to_wire(const SocketAddress& address) {
  WireAddress out{};
  out.family = static_cast<std::uint16_t>(address.family());
  out.port = address.port();
  if (address.family() == AF_INET) {
    std::memcpy(out.address, &address.in4().sin_addr, sizeof(in_addr));
  } else {
    out.scope_id = address.in6().sin6_scope_id;
    std::memcpy(out.address, &address.in6().sin6_addr, sizeof(in6_addr));
  }
  return out;
}

Result<SocketAddress> from_wire(const WireAddress& wire) {
  SocketAddress out;
  if (wire.family == AF_INET) {
    std::uint32_t network_order = 0;
    std::memcpy(&network_order, wire.address, sizeof network_order);
    out = SocketAddress::v4(ntohl(network_order), wire.port);
  } else if (wire.family == AF_INET6) {
    in6_addr address{};
    std::memcpy(&address, wire.address, sizeof address);
    out = SocketAddress::v6(address, wire.port, wire.scope_id);
  } else {
    return Error{EPROTO, "cm packet: address family"};
  }
  if (out.port() == 0 || out.is_wildcard() || out.is_v4_mapped()) return Error{EPROTO, "cm packet: address"};
  return out;
}

WireParameters to_wire(const ConnectionParameters& from, std::size_t private_bytes) {
  WireParameters out{};
  out.responder_resources = from.responder_resources;
  out.initiator_depth = from.initiator_depth;
  out.flow_control = from.flow_control;
  out.retry_count = from.retry_count;
  out.rnr_retry_count = from.rnr_retry_count;
  out.private_bytes = static_cast<std::uint8_t>(private_bytes);
  out.qkey = from.qkey;
  return out;
}

ConnectionParameters from_wire(const WireParameters& wire) {
  constexpr std::uint8_t kForEver = 7;  // both counts are 3-bit fields on InfiniBand
  ConnectionParameters out;
  // One side's limit of responses is the other side's limit of requests.
  out.responder_resources = wire.initiator_depth;
  out.initiator_depth = wire.responder_resources;
  out.flow_control = wire.flow_control;
  out.retry_count = std::min(wire.retry_count, kForEver);
  out.rnr_retry_count = std::min(wire.rnr_retry_count, kForEver);
  out.qkey = wire.qkey;
  return out;
}

template <class Header>
EncodedPacket encode(const Header& header, const PrivateData& private_data) {
  EncodedPacket out;
  out.size = sizeof header + private_data.size;
  std::memcpy(out.bytes.data(), &header, sizeof header);
  std::memcpy(out.bytes.data() + sizeof header, private_data.bytes.data(), private_data.size);
  return out;
}

/// Reads the fixed part of a packet. Checks the version before anything that may differ between versions.
template <class Header>
Result<Header> read_header(std::span<const std::byte> bytes) {
  Header out;
  std::uint16_t version = 0;
  if (bytes.size() < sizeof version) return Error{EPROTO, "cm packet: short"};
  std::memcpy(&version, bytes.data(), sizeof version);
  if (version != kCmVersion) return Error{ENOTSUP, "cm packet: version"};
  if (bytes.size() < sizeof out) return Error{EPROTO, "cm packet: short"};
  std::memcpy(&out, bytes.data(), sizeof out);
  return out;
}

Status read_private_data(std::span<const std::byte> rest, std::size_t announced, std::size_t limit, PrivateData& out) {
  if (rest.size() != announced || announced > limit) return Error{EPROTO, "cm packet: private data"};
  return out.assign(rest, limit);
}

}  // namespace

Status PrivateData::assign(std::span<const std::byte> from, std::size_t limit) {
  if (from.size() > std::min(limit, bytes.size())) return Error{EINVAL, "private data: too long"};
  std::copy(from.begin(), from.end(), bytes.begin());
  size = from.size();
  return ok();
}

EncodedPacket encode_request(const ConnectRequest& request) {
  WireRequest wire{};
  wire.version = kCmVersion;
  wire.port_space = static_cast<std::uint16_t>(request.space);
  wire.source = to_wire(request.source);
  wire.destination = to_wire(request.destination);
  wire.offer = request.offer;
  wire.parameters = to_wire(request.parameters, request.private_data.size);
  return encode(wire, request.private_data);
}

EncodedPacket encode_reply(const ConnectReply& reply) {
  WireReply wire{};
  wire.version = kCmVersion;
  wire.flags = reply.from_listening_process ? kReplyFromListeningProcess : 0;
  wire.offer = reply.offer;
  wire.parameters = to_wire(reply.parameters, reply.private_data.size);
  return encode(wire, reply.private_data);
}

EncodedPacket encode_reject(const PrivateData& private_data) {
  WireReject wire{};
  wire.version = kCmVersion;
  wire.private_bytes = static_cast<std::uint8_t>(private_data.size);
  return encode(wire, private_data);
}

Result<ConnectRequest> parse_request(std::span<const std::byte> bytes) {
  auto wire = read_header<WireRequest>(bytes);
  if (!wire) return wire.error();
  ConnectRequest out;
  if (wire->port_space > static_cast<std::uint16_t>(PortSpace::udp)) return Error{EPROTO, "cm request: port space"};
  out.space = static_cast<PortSpace>(wire->port_space);
  auto source = from_wire(wire->source);
  if (!source) return source.error();
  out.source = *source;
  auto destination = from_wire(wire->destination);
  if (!destination) return destination.error();
  out.destination = *destination;
  out.offer = wire->offer;
  out.parameters = from_wire(wire->parameters);
  Status data = read_private_data(bytes.subspan(sizeof(WireRequest)), wire->parameters.private_bytes,
                                  verbs::kMaxRequestPrivateData, out.private_data);
  if (!data) return data.error();
  return out;
}

Result<ConnectReply> parse_reply(std::span<const std::byte> bytes) {
  auto wire = read_header<WireReply>(bytes);
  if (!wire) return wire.error();
  ConnectReply out;
  out.from_listening_process = (wire->flags & kReplyFromListeningProcess) != 0;
  out.offer = wire->offer;
  out.parameters = from_wire(wire->parameters);
  Status data = read_private_data(bytes.subspan(sizeof(WireReply)), wire->parameters.private_bytes,
                                  verbs::kMaxReplyPrivateData, out.private_data);
  if (!data) return data.error();
  return out;
}

Result<PrivateData> parse_reject(std::span<const std::byte> bytes) {
  auto wire = read_header<WireReject>(bytes);
  if (!wire) return wire.error();
  PrivateData out;
  Status data =
      read_private_data(bytes.subspan(sizeof(WireReject)), wire->private_bytes, verbs::kMaxRejectPrivateData, out);
  if (!data) return data.error();
  return out;
}

}  // namespace ringsock::soft
