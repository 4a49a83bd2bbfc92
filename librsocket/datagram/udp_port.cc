#include "librsocket/datagram/udp_port.h"

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <vector>

#include "core/base/own_duplicate.h"

namespace ringsock::rs {

namespace {

constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(in6_pktinfo)) + CMSG_SPACE(sizeof(in_pktinfo));

/// Room for control data.
struct Control {
  alignas(cmsghdr) std::array<std::byte, kControlBytes> bytes{};
};

template <class Info>
void put_control(msghdr& message, Control& room, int level, int type, const Info& info) {
  message.msg_control = room.bytes.data();
  message.msg_controllen = CMSG_SPACE(sizeof info);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = level;
  header->cmsg_type = type;
  header->cmsg_len = CMSG_LEN(sizeof info);
  std::memcpy(CMSG_DATA(header), &info, sizeof info);
}

/// Makes the packet leave from `from`, if that is an address.
void put_source(msghdr& message, Control& room, int family, const SocketAddress& from) {
  if (from.is_unspecified() || from.is_wildcard()) return;
  if (family == AF_INET) {
    in_pktinfo info{};
    info.ipi_spec_dst = from.in4().sin_addr;
    put_control(message, room, IPPROTO_IP, IP_PKTINFO, info);
  } else {
    in6_pktinfo info{};
    info.ipi6_addr = from.mapped().in6().sin6_addr;
    put_control(message, room, IPPROTO_IPV6, IPV6_PKTINFO, info);
  }
}

SocketAddress destination_of(msghdr& message) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_PKTINFO) {
      in_pktinfo info{};
      std::memcpy(&info, CMSG_DATA(header), sizeof info);
      return SocketAddress::v4(ntohl(info.ipi_spec_dst.s_addr), 0);
    }
    if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_PKTINFO) {
      in6_pktinfo info{};
      std::memcpy(&info, CMSG_DATA(header), sizeof info);
      const bool has_scope = IN6_IS_ADDR_LINKLOCAL(&info.ipi6_addr);
      return SocketAddress::v6(info.ipi6_addr, 0, has_scope ? info.ipi6_ifindex : 0).unmapped();
    }
  }
  return {};
}

}  // namespace

Result<UdpPort> UdpPort::of(int fd, int family) {
  UdpPort port(own_duplicate(fd), family);
  if (!port) return Error{EMFILE, "datagrams: duplicate"};
  const int on = 1;
  const int failed = family == AF_INET ? ::setsockopt(port.fd(), IPPROTO_IP, IP_PKTINFO, &on, sizeof on)
                                       : ::setsockopt(port.fd(), IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on);
  if (failed != 0) return Error::last("datagrams: packet info");
  return port;
}

Result<SocketAddress> UdpPort::name() const { return name_by(::getsockname, fd(), "getsockname"); }

Status UdpPort::ensure_bound() {
  const auto bound = name();
  if (!bound) return bound.error();
  if (bound->port() != 0) return ok();
  const SocketAddress any = SocketAddress::wildcard(family_, 0);
  return ::bind(fd(), any.get(), any.length()) == 0 ? ok() : Status(Error::last("bind"));
}

Status UdpPort::send(std::span<const std::byte> header, std::span<const iovec> parts, const SocketAddress& to,
                     const SocketAddress& from) {
  constexpr std::size_t kFew = 8;
  std::array<iovec, kFew> few;
  std::vector<iovec> many;
  // The kernel takes no more than IOV_MAX parts: the caller's last one has no room beside the header then.
  if (parts.size() >= IOV_MAX) return Error{EMSGSIZE, "datagrams: parts"};
  iovec* all = few.data();
  if (parts.size() >= kFew) {
    many.resize(parts.size() + 1);
    all = many.data();
  }
  all[0] = {const_cast<std::byte*>(header.data()), header.size()};
  std::copy(parts.begin(), parts.end(), all + 1);
  const SocketAddress name = family_ == AF_INET6 ? to.mapped() : to;
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(name.get());
  message.msg_namelen = name.length();
  message.msg_iov = all;
  message.msg_iovlen = parts.size() + 1;
  Control control;
  put_source(message, control, family_, from);
  return ::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? ok() : Status(Error::last("sendmsg"));
}

Result<UdpPort::Packet> UdpPort::receive(std::span<std::byte> buffer) {
  sockaddr_storage name{};
  Control control;
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_name = &name;
  message.msg_namelen = sizeof name;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const int saved_errno = errno;
  const ssize_t got = ::recvmsg(fd(), &message, MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0) {
    const Error why = Error::last("recvmsg");
    errno = saved_errno;
    return why;
  }
  const auto from = SocketAddress::from(reinterpret_cast<const sockaddr*>(&name), message.msg_namelen);
  if (!from) return from.error();
  return Packet{*from, destination_of(message), static_cast<std::size_t>(got)};
}

}  // namespace ringsock::rs
