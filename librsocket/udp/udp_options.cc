#include "librsocket/udp/udp_options.h"

#include <netinet/in.h>
#include <sys/time.h>

#include <chrono>

namespace ringsock::rs {

namespace {

UdpOptionEffect effect_of_socket_option(int name) {
  switch (name) {
    case SO_RCVTIMEO_OLD:
    case SO_RCVTIMEO_NEW:
    case SO_SNDTIMEO_OLD:
    case SO_SNDTIMEO_NEW: return UdpOptionEffect::time_outs;
    case SO_REUSEADDR: return UdpOptionEffect::shared_address;
    case SO_REUSEPORT: return UdpOptionEffect::shared_port;
    case SO_RCVBUF:
    case SO_SNDBUF:
    case SO_RCVBUFFORCE:
    case SO_SNDBUFFORCE:
    case SO_BROADCAST:  // broadcasts and multicasts are the kernel's anyway
    case SO_KEEPALIVE:
    case SO_LINGER:
    case SO_OOBINLINE:
    case SO_PRIORITY:
    case SO_BUSY_POLL:
    case SO_INCOMING_CPU: return UdpOptionEffect::none;
    default: return UdpOptionEffect::kernel_only;
  }
}

UdpOptionEffect effect_of_ip_option(int name) {
  switch (name) {
    case IP_TOS:
    case IP_TTL:
    case IP_MTU_DISCOVER:
    case IP_MULTICAST_TTL:
    case IP_MULTICAST_LOOP:
    case IP_MULTICAST_IF:
    case IP_MULTICAST_ALL:
    case IP_ADD_MEMBERSHIP:
    case IP_DROP_MEMBERSHIP: return UdpOptionEffect::none;
    default: return UdpOptionEffect::kernel_only;
  }
}

UdpOptionEffect effect_of_ip6_option(int name) {
  switch (name) {
    case IPV6_V6ONLY:
    case IPV6_TCLASS:
    case IPV6_UNICAST_HOPS:
    case IPV6_MTU_DISCOVER:
    case IPV6_MULTICAST_HOPS:
    case IPV6_MULTICAST_LOOP:
    case IPV6_MULTICAST_IF:
    case IPV6_JOIN_GROUP:
    case IPV6_LEAVE_GROUP: return UdpOptionEffect::none;
    default: return UdpOptionEffect::kernel_only;
  }
}

}  // namespace

UdpOptionEffect effect_of_udp_option(int level, int name) {
  switch (level) {
    case SOL_SOCKET: return effect_of_socket_option(name);
    case IPPROTO_IP: return effect_of_ip_option(name);
    case IPPROTO_IPV6: return effect_of_ip6_option(name);
    default: return UdpOptionEffect::kernel_only;
  }
}

Nanos time_out_of(int fd, int name) {
  timeval time{};
  socklen_t length = sizeof time;
  if (::getsockopt(fd, SOL_SOCKET, name, &time, &length) != 0) return Nanos::max();
  const Nanos limit = std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  return limit == Nanos::zero() ? Nanos::max() : limit;
}

}  // namespace ringsock::rs
