// ARP for IPv4 over Ethernet. Sources: RFC 826, RFC 5227.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/result.h"
#include "core/wire/big_endian.h"
#include "core/wire/ethernet.h"

namespace ringsock::wire {

enum class ArpOperation : std::uint16_t { request = 1, reply = 2 };

struct ArpPacket {
  Be16 hardware_type;           ///< 1: Ethernet
  Be16 protocol_type;           ///< kEtherTypeIpv4
  std::uint8_t hardware_bytes;  ///< 6
  std::uint8_t protocol_bytes;  ///< 4
  Be16 operation;               ///< ArpOperation
  MacAddress sender_mac;
  Be32 sender_ip;  ///< 0.0.0.0 in a probe
  MacAddress target_mac;
  Be32 target_ip;
};
static_assert(sizeof(ArpPacket) == 28 && alignof(ArpPacket) == 1);

/// Reads the payload of a frame of type kEtherTypeArp, which may be padded. Errors: EPROTO when it is too short, not
/// for IPv4 over Ethernet, or neither request nor reply.
inline Result<ArpPacket> parse_arp(std::span<const std::byte> bytes) {
  ArpPacket out;
  if (bytes.size() < sizeof out) return Error{EPROTO, "arp: short"};
  std::memcpy(&out, bytes.data(), sizeof out);
  if (out.hardware_type.host() != 1 || out.hardware_bytes != 6 || out.protocol_type.host() != kEtherTypeIpv4 ||
      out.protocol_bytes != 4)
    return Error{EPROTO, "arp: other link or protocol"};
  const auto operation = static_cast<ArpOperation>(out.operation.host());
  if (operation != ArpOperation::request && operation != ArpOperation::reply) return Error{EPROTO, "arp: operation"};
  return out;
}

/// Makes a request for the MAC address of `target_ip`. It is sent by broadcast, or to the last known MAC address.
constexpr ArpPacket make_arp_request(const MacAddress& sender_mac, Be32 sender_ip, Be32 target_ip) {
  return {Be16(1),
          Be16(kEtherTypeIpv4),
          6,
          4,
          Be16(static_cast<std::uint16_t>(ArpOperation::request)),
          sender_mac,
          sender_ip,
          {},
          target_ip};
}
/// Makes the reply of the host that has the request's target address.
constexpr ArpPacket make_arp_reply(const ArpPacket& request, const MacAddress& own_mac) {
  return {Be16(1),
          Be16(kEtherTypeIpv4),
          6,
          4,
          Be16(static_cast<std::uint16_t>(ArpOperation::reply)),
          own_mac,
          request.target_ip,
          request.sender_mac,
          request.sender_ip};
}

}  // namespace ringsock::wire
