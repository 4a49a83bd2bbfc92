#include "core/device/shm/datagrams/mark.h"

#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/calls_at_once.h"

namespace ringsock::soft {

ssize_t send_with_place(int fd, const msghdr& message, int flags, int family, Place place) {
  const bool is_v6 = family == AF_INET6;
  alignas(cmsghdr) std::array<std::byte, kMostControlData + 2 * CMSG_SPACE(sizeof(int))> control{};
  msghdr placed = message;
  placed.msg_control = control.data();
  placed.msg_controllen = CMSG_ALIGN(message.msg_controllen);
  if (placed.msg_controllen > kMostControlData) {
    errno = EINVAL;
    return -1;
  }
  if (message.msg_controllen != 0) std::memcpy(control.data(), message.msg_control, message.msg_controllen);
  const auto add = [&](int type, int value) {
    cmsghdr header{};
    header.cmsg_len = CMSG_LEN(sizeof value);
    header.cmsg_level = is_v6 ? IPPROTO_IPV6 : IPPROTO_IP;
    header.cmsg_type = type;
    std::byte* const to = control.data() + placed.msg_controllen;
    std::memcpy(to, &header, sizeof header);
    std::memcpy(to + CMSG_LEN(0), &value, sizeof value);
    placed.msg_controllen += CMSG_SPACE(sizeof value);
  };
  add(is_v6 ? IPV6_HOPLIMIT : IP_TTL, place & 255);
  add(is_v6 ? IPV6_TCLASS : IP_TOS, place / 256);  // 0, too: the socket may have another one
  return sendmsg_at_once(fd, placed, flags);
}

void tell_places(int fd, int domain, bool on) {
  const int value = on ? 1 : 0;
  for (const int name : {IP_RECVTTL, IP_RECVTOS}) ::setsockopt(fd, IPPROTO_IP, name, &value, sizeof value);
  if (domain != AF_INET6) return;
  for (const int name : {IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS})
    ::setsockopt(fd, IPPROTO_IPV6, name, &value, sizeof value);
}

/// IP_TOS comes as one byte, the others as int.
Place place_of(const msghdr& message) {
  int hop_limit = 0, traffic_class = 0;
  for (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(header))) {
    const bool is_v4 = header->cmsg_level == IPPROTO_IP, is_v6 = header->cmsg_level == IPPROTO_IPV6;
    const bool is_int = header->cmsg_len >= CMSG_LEN(sizeof(int));
    if (is_int && ((is_v4 && header->cmsg_type == IP_TTL) || (is_v6 && header->cmsg_type == IPV6_HOPLIMIT)))
      std::memcpy(&hop_limit, CMSG_DATA(header), sizeof hop_limit);
    if (is_int && is_v6 && header->cmsg_type == IPV6_TCLASS)
      std::memcpy(&traffic_class, CMSG_DATA(header), sizeof traffic_class);
    if (is_v4 && header->cmsg_type == IP_TOS) traffic_class = *CMSG_DATA(header);
  }
  return (hop_limit & 255) + 256 * (traffic_class & 255);
}

}  // namespace ringsock::soft
