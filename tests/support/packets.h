// Frames of UDP and TCP in IPv4, as they come from the wire.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/socket_address.h"
#include "core/wire/ethernet_frame.h"
#include "core/wire/frame_layout.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::support {

/// With right checksums.
inline std::vector<std::byte> packet_bytes(std::uint8_t protocol, const SocketAddress& from, const SocketAddress& to,
                                           std::string_view payload) {
  std::vector<std::byte> out;
  const auto append = [&](const auto& header) {
    const auto bytes = std::as_bytes(std::span(&header, 1));
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  const auto address = [](const SocketAddress& end) { return std::bit_cast<wire::Be32>(end.in4().sin_addr.s_addr); };
  const bool is_tcp = protocol == wire::kIpProtocolTcp;
  const std::size_t transport_bytes = is_tcp ? 20 : sizeof(wire::UdpHeader);
  append(wire::EthernetHeader{
      .destination = {2, 0, 0, 0, 0, 1}, .source = {2, 0, 0, 0, 0, 2}, .type = wire::Be16(wire::kEtherTypeIpv4)});
  append(wire::make_ipv4_header({.payload_bytes = static_cast<std::uint16_t>(transport_bytes + payload.size()),
                                 .protocol = protocol,
                                 .source = address(from),
                                 .destination = address(to)}));
  if (is_tcp) {
    std::array<std::uint8_t, 16> rest{};  // behind the ports
    rest[8] = 5 << 4;                     // words of the header
    append(std::array{wire::Be16(from.port()), wire::Be16(to.port())});
    append(rest);
  } else {
    append(wire::make_udp_header(wire::Be16(from.port()), wire::Be16(to.port()),
                                 static_cast<std::uint16_t>(payload.size())));
  }
  const auto text = std::as_bytes(std::span(payload));
  out.insert(out.end(), text.begin(), text.end());
  wire::fill_checksums(out);
  return out;
}

}  // namespace ringsock::support
