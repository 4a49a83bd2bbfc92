#include "libvmacompat/udp/send_control.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "core/base/socket_address.h"

namespace ringsock::vma {

namespace {

constexpr int kMostOfByte = 255;

/// Reads one item's value; returns false when its size is not that of `out`.
template <class Value>
bool read(std::span<const std::byte> bytes, Value& out) {
  if (bytes.size() != sizeof out) return false;
  std::memcpy(&out, bytes.data(), sizeof out);
  return true;
}

class Reader {
 public:
  bool read_item(int level, int type, std::span<const std::byte> value) {
    if (level == IPPROTO_IP) return read_v4(type, value);
    if (level == IPPROTO_IPV6) return read_v6(type, value);
    if (level != IPPROTO_UDP || type != UDP_SEGMENT) return false;
    out.has_segment_bytes = true;
    return read(value, out.segment_bytes);
  }
  SendControl out;

 private:
  bool is_for(int family) {
    if (out.family != AF_UNSPEC && out.family != family) return false;
    out.family = family;
    return true;
  }

  bool read_v4(int type, std::span<const std::byte> value) {
    if (!is_for(AF_INET)) return false;
    switch (type) {
      case IP_PKTINFO: {
        in_pktinfo info;
        if (!read(value, info)) return false;
        out.way.ifindex = info.ipi_ifindex;
        if (info.ipi_spec_dst.s_addr != INADDR_ANY) out.way.source = net::IpAddress::v4(info.ipi_spec_dst);
        return true;
      }
      case IP_TTL: return read_number(value, 1, out.way.hop_limit);
      case IP_TOS: {
        std::uint8_t byte;
        if (!read(value, byte)) return read_number(value, 0, out.way.traffic_class);
        out.way.traffic_class = byte;
        return true;
      }
      default: return false;
    }
  }

  bool read_v6(int type, std::span<const std::byte> value) {
    switch (type) {
      case IPV6_PKTINFO: {
        in6_pktinfo info;
        if (!read(value, info)) return false;
        out.way.ifindex = static_cast<int>(info.ipi6_ifindex);
        const SocketAddress source = SocketAddress::v6(info.ipi6_addr, 0).unmapped();
        if (!source.is_wildcard()) out.way.source = net::IpAddress::of(source);
        return is_for(source.family());
      }
      case IPV6_HOPLIMIT: return is_for(AF_INET6) && read_number(value, -1, out.way.hop_limit);
      case IPV6_TCLASS: return is_for(AF_INET6) && read_number(value, -1, out.way.traffic_class);
      default: return false;
    }
  }

  static bool read_number(std::span<const std::byte> value, int least, int& out) {
    return read(value, out) && out >= least && out <= kMostOfByte;
  }
};

}  // namespace

std::optional<SendControl> read_send_control(const msghdr& message) {
  Reader reader;
  const auto* const end = static_cast<const std::byte*>(message.msg_control) + message.msg_controllen;
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
       item = CMSG_NXTHDR(const_cast<msghdr*>(&message), item)) {
    const auto left = static_cast<std::size_t>(end - reinterpret_cast<const std::byte*>(item));
    if (item->cmsg_len < CMSG_LEN(0) || item->cmsg_len > left) return std::nullopt;
    const std::span value(reinterpret_cast<const std::byte*>(CMSG_DATA(item)), item->cmsg_len - CMSG_LEN(0));
    if (!reader.read_item(item->cmsg_level, item->cmsg_type, value)) return std::nullopt;
  }
  return reader.out;
}

}  // namespace ringsock::vma
