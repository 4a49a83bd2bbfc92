#include "core/net/path_mtu_watch.h"

#include <linux/filter.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>

namespace ringsock::net {

namespace {

constexpr std::size_t kMessagesAtOnce = 64;
constexpr std::size_t kIcmpHeaderBytes = 8;
constexpr std::size_t kIpv4DestinationOffset = 16;
constexpr std::size_t kIpv6DestinationOffset = 24;

std::uint8_t byte_at(std::span<const std::byte> bytes, std::size_t offset) {
  return offset < bytes.size() ? static_cast<std::uint8_t>(bytes[offset]) : 0;
}

std::optional<IpAddress> address_at(int family, std::span<const std::byte> bytes, std::size_t offset) {
  const std::size_t length = family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
  if (bytes.size() < offset + length) return std::nullopt;
  return IpAddress::from_bytes(family, bytes.subspan(offset, length));
}

/// Lets only "fragmentation needed" in, so that other ICMP traffic wakes nobody.
bool filter_v4(int fd) {
  static constexpr std::uint32_t kWholePacket = 0xffffffff;
  std::array program = {
      sock_filter BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, 0),  // X: length of the IPv4 header
      sock_filter BPF_STMT(BPF_LD | BPF_B | BPF_IND, 0),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ICMP_DEST_UNREACH, 0, 3),
      sock_filter BPF_STMT(BPF_LD | BPF_B | BPF_IND, 1),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ICMP_FRAG_NEEDED, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, kWholePacket),
      sock_filter BPF_STMT(BPF_RET | BPF_K, 0),
  };
  const sock_fprog filter{program.size(), program.data()};
  return ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
}

bool filter_v6(int fd) {
  icmp6_filter filter;
  ICMP6_FILTER_SETBLOCKALL(&filter);
  ICMP6_FILTER_SETPASS(ICMP6_PACKET_TOO_BIG, &filter);
  return ::setsockopt(fd, IPPROTO_ICMPV6, ICMP6_FILTER, &filter, sizeof filter) == 0;
}

UniqueFd raw_socket(int family, int protocol) {
  return out_of_the_way(UniqueFd(::socket(family, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol)));
}

}  // namespace

std::optional<IpAddress> too_big_destination_v4(std::span<const std::byte> packet) {
  const std::size_t header = std::size_t{byte_at(packet, 0) & 0x0fU} * 4U;
  if (header < sizeof(ip) || byte_at(packet, header) != ICMP_DEST_UNREACH ||
      byte_at(packet, header + 1) != ICMP_FRAG_NEEDED) {
    return std::nullopt;
  }
  return address_at(AF_INET, packet, header + kIcmpHeaderBytes + kIpv4DestinationOffset);
}

std::optional<IpAddress> too_big_destination_v6(std::span<const std::byte> message) {
  if (byte_at(message, 0) != ICMP6_PACKET_TOO_BIG) return std::nullopt;
  return address_at(AF_INET6, message, kIcmpHeaderBytes + kIpv6DestinationOffset);
}

PathMtuWatch PathMtuWatch::open() {
  PathMtuWatch out;
  out.v4_ = raw_socket(AF_INET, IPPROTO_ICMP);
  if (out.v4_ && !filter_v4(out.v4_.get())) out.v4_.reset();
  out.v6_ = raw_socket(AF_INET6, IPPROTO_ICMPV6);
  if (out.v6_ && !filter_v6(out.v6_.get())) out.v6_.reset();
  return out;
}

std::vector<IpAddress> PathMtuWatch::read() {
  std::vector<IpAddress> out;
  const auto drain = [&out](int fd, auto destination_of) {
    // Room for the longest IPv4 header, the ICMP header, and the headers with the address of the packet that was too
    // big.
    std::array<std::byte, 128> buffer;
    for (std::size_t i = 0; fd >= 0 && i < kMessagesAtOnce / 2; ++i) {
      const ssize_t length = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (length < 0) return;
      const auto message = std::span(buffer).first(static_cast<std::size_t>(length));
      if (const auto destination = destination_of(std::span<const std::byte>(message))) out.push_back(*destination);
    }
  };
  drain(v4_.get(), too_big_destination_v4);
  drain(v6_.get(), too_big_destination_v6);
  return out;
}

}  // namespace ringsock::net
