// Where a socket's packets to one address go, and the headers in front of them.
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
#include "core/wire/ethernet.h"
#include "core/wire/ip.h"

namespace ringsock::ethernet {

/// The headers of a packet, complete but for what differs from one to the next: Ethernet's, IP's and, of a datagram,
/// UDP's. What is behind them is the payload here; a TCP segment's header belongs to it.
class HeaderTemplate {
 public:
  static constexpr std::size_t kMaxBytes = 64;

  HeaderTemplate() = default;
  /// Both addresses of one family (IPv4-mapped ones as IPv4), with their ports. `numbers` are for IPv4 without DF.
  /// @param protocol  IPPROTO_UDP or IPPROTO_TCP
  HeaderTemplate(const net::MacAddress& source_mac, const net::MacAddress& destination_mac, const SocketAddress& source,
                 const SocketAddress& destination, const SendOptions& options, std::uint8_t hop_limit,
                 std::uint8_t protocol, engine::IdentificationNumbers& numbers);

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// IPv4 without DF.
  [[nodiscard]] bool may_be_cut() const { return may_be_cut_; }
  /// The sum of the pseudo header for `bytes` of UDP or TCP, header included: what a checksum that is left to the
  /// device begins with.
  [[nodiscard]] wire::InternetSum pseudo_sum(std::size_t bytes) const {
    return wire::InternetSum(pseudo_sum_).add(wire::Be16(static_cast<std::uint16_t>(bytes)));
  }
  /// Writes the headers of a packet of `payload` bytes. UDP's checksum is the sum of the pseudo header: the device
  /// adds the rest. An IPv4 packet that may be cut on its way gets a number. @return the headers, within `out`.
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

  // Complete for datagrams of the last one's size: most are as long as the one before.
  alignas(16) std::array<std::byte, kMaxBytes> data_{};
  std::size_t payload_bytes_ = std::numeric_limits<std::size_t>::max();  ///< none yet
  std::uint8_t bytes_ = 0;
  bool is_v4_ = true;
  bool may_be_cut_ = false;  ///< no DF
  std::uint8_t protocol_ = wire::kIpProtocolUdp;
  engine::IdentificationNumbers* numbers_ = nullptr;
  // Of all but lengths:
  wire::InternetSum ip_sum_;
  wire::InternetSum pseudo_sum_;
};

/// One destination of a socket, and perhaps what control data says of the way there. Threads: the socket's sender.
class Destination {
 public:
  Destination(const SocketAddress& address, const WayControl* control, std::uint8_t protocol)
      : address_(address), protocol_(protocol), control_(control != nullptr ? std::optional(*control) : std::nullopt) {}

  [[nodiscard]] bool is(const SocketAddress& address, const WayControl* control) const {
    return address_ == address && (control == nullptr ? !control_ : control_ == *control);
  }
  /// Whether an application means it by that name, without control data. Not all that mean it need be recognised.
  [[nodiscard]] bool is_named(const void* name, socklen_t length) const {
    const auto same = [&](std::size_t from, std::size_t to) {
      const auto* const own = reinterpret_cast<const std::byte*>(address_.get());
      return std::memcmp(static_cast<const std::byte*>(name) + from, own + from, to - from) == 0;
    };
    if (control_) return false;
    if (address_.family() == AF_INET) return length >= sizeof(sockaddr_in) && same(0, offsetof(sockaddr_in, sin_zero));
    // All but the flow information.
    return length >= sizeof(sockaddr_in6) && same(0, offsetof(sockaddr_in6, sin6_flowinfo)) &&
           same(offsetof(sockaddr_in6, sin6_addr), sizeof(sockaddr_in6));
  }
  [[nodiscard]] const SocketAddress& address() const { return address_; }
  /// Of the packets: AF_INET for IPv4-mapped addresses.
  [[nodiscard]] int family() const { return address_.unmapped().family(); }
  /// Whether what find_way() found still holds: a load and a comparison.
  [[nodiscard]] bool is_current(const net::NetworkState& network, std::uint32_t options_generation) const {
    return generation_ == network.generation() && options_generation_ == options_generation;
  }
  /// Asks the routing and neighbour tables. `local` is what the socket is bound to.
  /// `choice` says which of an interface's rings.
  void find_way(Ethernet& ethernet, const SocketAddress& local, const SendOptions& options,
                std::uint32_t options_generation, RingChoice& choice);
  /// Instead of find_way(): by the kernel.
  void leave_to_kernel(const Ethernet& ethernet, std::uint32_t options_generation);
  /// The ring to send by; null: by the kernel, which also waits for neighbours, fragments, and knows the errors.
  [[nodiscard]] const std::shared_ptr<Ring>& ring() const { return ring_; }
  /// Whether that is because of rules of netfilter.
  [[nodiscard]] bool is_left_to_netfilter() const { return is_left_to_netfilter_; }
  /// Largest payload that fits into one packet, behind header().
  [[nodiscard]] std::size_t max_payload() const { return max_payload_; }
  [[nodiscard]] const HeaderTemplate& header() const { return header_; }
  [[nodiscard]] HeaderTemplate& header() { return header_; }
  /// The address that peers see: what answers are sent to.
  [[nodiscard]] const SocketAddress& source() const { return source_; }
  /// To be called with each datagram: keeps the kernel's knowledge of the neighbour fresh. False: only a datagram by
  /// the kernel's socket does that; without CAP_NET_ADMIN nobody else may ask for it.
  [[nodiscard]] bool note_use(net::NetworkState& network) {
    if (neighbour_->needs_refresh()) [[unlikely]]
      return static_cast<bool>(network.request_resolution(*neighbour_));
    return true;
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
  SocketAddress source_;
  HeaderTemplate header_;
};

}  // namespace ringsock::ethernet
