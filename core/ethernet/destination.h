// The path of a socket's packets to one address, and the headers in front of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "core/base/socket_address.h"
#include "core/engine/ip/identification.h"
#include "core/ethernet/ethernet.h"
#include "core/ethernet/ring.h"
#include "core/ethernet/send_options.h"
#include "core/net/neighbour.h"
#include "core/wire/big_endian.h"
#include "core/wire/checksum.h"
#include "core/wire/ethernet_frame.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::ethernet {

/// The headers of a packet: Ethernet, IP, and UDP for datagrams. Only the fields that differ between packets are
/// missing. Here, payload is everything behind these headers; this includes a TCP segment's header.
class HeaderTemplate {
 public:
  static constexpr std::size_t kMaxBytes = 64;

  HeaderTemplate() = default;
  /// Both addresses must be of one family (IPv4-mapped ones as IPv4) and have ports. `numbers` are for IPv4 packets
  /// without DF.
  /// @param protocol  IPPROTO_UDP or IPPROTO_TCP
  HeaderTemplate(const net::MacAddress& source_mac, const net::MacAddress& destination_mac, const SocketAddress& source,
                 const SocketAddress& destination, const SendOptions& options, std::uint8_t hop_limit,
                 std::uint8_t protocol, engine::IdentificationNumbers& numbers);

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Returns true for IPv4 packets without DF.
  [[nodiscard]] bool may_be_cut() const { return may_be_cut_; }
  /// Returns the sum of the pseudo header for `bytes` bytes of UDP or TCP, including the header. It is the initial
  /// value of a checksum that is left to the device.
  [[nodiscard]] wire::InternetSum pseudo_sum(std::size_t bytes) const {
    return wire::InternetSum(pseudo_sum_).add(wire::Be16(static_cast<std::uint16_t>(bytes)));
  }
  /// Changes the destination's port, of UDP headers.
  void set_destination_port(std::uint16_t port) {
    const wire::Be16 value(port);
    std::memcpy(data_.data() + bytes_ - sizeof(wire::UdpHeader) + offsetof(wire::UdpHeader, destination_port), &value,
                sizeof value);
  }
  /// Writes the headers of a packet of `payload` bytes. The UDP checksum field gets the sum of the pseudo header, and
  /// the device adds the rest. An IPv4 packet without DF gets an identification. Returns the headers, within `out`.
  std::span<std::byte> write(std::span<std::byte, kMaxBytes> out, std::size_t payload) {
    if (payload != payload_bytes_) set_lengths(payload);
    std::memcpy(out.data(), data_.data(), kMaxBytes);
    if (may_be_cut_) [[unlikely]]
      set_number(out.data() + sizeof(wire::EthernetHeader));
    return std::span<std::byte>(out).first(bytes_);
  }

 private:
  void set_lengths(std::size_t payload);
  void set_number(std::byte* ip) const;

  // Complete for a datagram of the last size, because most datagrams are as long as the one before.
  alignas(16) std::array<std::byte, kMaxBytes> data_{};
  std::size_t payload_bytes_ = std::numeric_limits<std::size_t>::max();  ///< initially no size
  std::uint8_t bytes_ = 0;
  bool is_v4_ = true;
  bool may_be_cut_ = false;  ///< no DF
  std::uint8_t protocol_ = wire::kIpProtocolUdp;
  engine::IdentificationNumbers* numbers_ = nullptr;
  // Sums of everything but the lengths:
  wire::InternetSum ip_sum_;
  wire::InternetSum pseudo_sum_;
};

/// One destination of a socket, with what control data says about the path there, if any. Threads: the socket's sender.
class Destination {
 public:
  Destination(const SocketAddress& address, const WayControl* control, std::uint8_t protocol)
      : address_(address), protocol_(protocol), control_(control != nullptr ? std::optional(*control) : std::nullopt) {}

  [[nodiscard]] bool is(const SocketAddress& address, const WayControl* control) const {
    return address_ == address && (control == nullptr ? !control_ : control_ == *control);
  }
  /// Returns whether an application's name without control data stands for this destination. May return false for some
  /// names that do.
  [[nodiscard]] bool is_named(const void* name, socklen_t length) const {
    const auto same = [&](std::size_t from, std::size_t to) {
      const auto* const own = reinterpret_cast<const std::byte*>(address_.get());
      return std::memcmp(static_cast<const std::byte*>(name) + from, own + from, to - from) == 0;
    };
    if (control_) return false;
    if (address_.family() == AF_INET) return length >= sizeof(sockaddr_in) && same(0, offsetof(sockaddr_in, sin_zero));
    // Compares all but the flow information.
    return length >= sizeof(sockaddr_in6) && same(0, offsetof(sockaddr_in6, sin6_flowinfo)) &&
           same(offsetof(sockaddr_in6, sin6_addr), sizeof(sockaddr_in6));
  }
  [[nodiscard]] const SocketAddress& address() const { return address_; }
  /// The family of the packets: AF_INET for IPv4-mapped addresses.
  [[nodiscard]] int family() const { return address_.unmapped().family(); }
  /// Returns whether the result of find_way() is still valid; costs a load and a comparison.
  [[nodiscard]] bool is_current(const net::NetworkState& network, std::uint32_t options_generation) const {
    return generation_ == network.generation() && options_generation_ == options_generation;
  }
  /// Asks the routing and neighbour tables. `local` is the address that the socket is bound to; `choice` selects among
  /// the rings of an interface.
  void find_way(Ethernet& ethernet, const SocketAddress& local, const SendOptions& options,
                std::uint32_t options_generation, runtime::RingChoice& choice);
  /// Used instead of find_way() when the kernel has to send.
  void leave_to_kernel(const Ethernet& ethernet, std::uint32_t options_generation);
  /// Returns whether the way there leads by a ring and is also the way to `other`, which differs at most in the port.
  [[nodiscard]] bool shares_way_with(const Destination& other) const;
  /// Used instead of find_way(): takes the way that another destination has found and shares.
  void take_way_of(const Destination& other);
  /// The ring to send by. Null: the kernel sends; it waits for neighbours, fragments, and reports errors.
  [[nodiscard]] const std::shared_ptr<Ring>& ring() const { return ring_; }
  /// Returns whether netfilter rules are the reason for that.
  [[nodiscard]] bool is_left_to_netfilter() const { return is_left_to_netfilter_; }
  /// The largest payload that fits into one packet, behind header().
  [[nodiscard]] std::size_t max_payload() const { return max_payload_; }
  [[nodiscard]] const HeaderTemplate& header() const { return header_; }
  [[nodiscard]] HeaderTemplate& header() { return header_; }
  /// The address that peers see and answer.
  [[nodiscard]] const SocketAddress& source() const { return source_; }
  /// Called with each datagram. Returns whether the kernel's knowledge of the neighbour grows old, so that refresh()
  /// must be called.
  [[nodiscard]] bool needs_refresh() const { return neighbour_->needs_refresh(); }
  /// Returns false when the kernel's socket has to send the datagram for that: without CAP_NET_ADMIN there is no other
  /// way.
  [[nodiscard]] bool refresh(net::NetworkState& network) {
    return static_cast<bool>(network.request_resolution(*neighbour_));
  }

 private:
  bool choose_way(const net::NetworkState& network, const SocketAddress& bound, const SendOptions& options,
                  net::PathQuery& query) const;

  const SocketAddress address_;
  const std::uint8_t protocol_;
  const std::optional<WayControl> control_;
  std::uint64_t generation_ = 0;
  std::uint32_t options_generation_ = 0;
  std::shared_ptr<Ring> ring_;
  std::shared_ptr<net::Neighbour> neighbour_;
  std::size_t max_payload_ = 0;
  bool is_left_to_netfilter_ = false;
  bool depends_on_port_ = false;  ///< other ports of the host may have other ways
  SocketAddress source_;
  HeaderTemplate header_;
};

}  // namespace ringsock::ethernet
