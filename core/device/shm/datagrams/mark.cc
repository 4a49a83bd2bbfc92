#include "core/device/shm/datagrams/mark.h"

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "core/base/calls_at_once.h"

namespace ringsock::soft {

ssize_t send_with_mark(int fd, const msghdr& message, int flags, int family, int mark) {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof mark)> control{};
  msghdr marked = message;
  marked.msg_control = control.data();
  marked.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&marked);
  header->cmsg_len = CMSG_LEN(sizeof mark);
  header->cmsg_level = family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP;
  header->cmsg_type = family == AF_INET6 ? IPV6_HOPLIMIT : IP_TTL;
  std::memcpy(CMSG_DATA(header), &mark, sizeof mark);
  return sendmsg_at_once(fd, marked, flags);
}

void tell_marks(int fd, int domain, bool on) {
  const int value = on ? 1 : 0;
  ::setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &value, sizeof value);
  if (domain == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, &value, sizeof value);
}

int mark_of(const msghdr& message) {
  for (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(header))) {
    const bool is_hop_limit = (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_TTL) ||
                              (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_HOPLIMIT);
    int hop_limit = 0;
    if (!is_hop_limit || header->cmsg_len < CMSG_LEN(sizeof hop_limit)) continue;
    std::memcpy(&hop_limit, CMSG_DATA(header), sizeof hop_limit);
    if (hop_limit >= kFirstMark && hop_limit < kFirstMark + kMarks) return hop_limit;
  }
  return 0;
}

}  // namespace ringsock::soft
