#include "libvmacompat/socket_options.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>

#include "libvmacompat/process.h"

namespace ringsock::vma {

namespace {

constexpr std::size_t kDefaultReceiveBytes = 212992;

OptionEffect socket_level(int name) {
  switch (name) {
    case SO_RCVBUF:
    case SO_RCVBUFFORCE: return OptionEffect::receive_buffer;
    case SO_RCVTIMEO:
    case SO_SNDTIMEO: return OptionEffect::time_outs;
    case SO_REUSEPORT: return OptionEffect::shared_port;
    case SO_BINDTODEVICE:
    case SO_MARK:
    case SO_PRIORITY: return OptionEffect::sending;
    case SO_REUSEADDR:
    case SO_BROADCAST:
    case SO_SNDBUF:
    case SO_SNDBUFFORCE:
    case SO_KEEPALIVE:
    case SO_LINGER:
    case SO_OOBINLINE:
    case SO_BUSY_POLL:
    case SO_INCOMING_CPU:
    case SO_PREFER_BUSY_POLL: return OptionEffect::none;
    default: return OptionEffect::kernel_only;
  }
}

OptionEffect v4_level(int name) {
  switch (name) {
    case IP_TOS:
    case IP_TTL:
    case IP_MTU_DISCOVER:
    case IP_MULTICAST_IF:
    case IP_MULTICAST_TTL:
    case IP_MULTICAST_LOOP: return OptionEffect::sending;
    case IP_RECVERR:
    case IP_FREEBIND:
    case IP_BIND_ADDRESS_NO_PORT:
    case IP_MULTICAST_ALL:
    case IP_ADD_MEMBERSHIP:
    case IP_DROP_MEMBERSHIP:
    case IP_ADD_SOURCE_MEMBERSHIP:
    case IP_DROP_SOURCE_MEMBERSHIP:
    case IP_BLOCK_SOURCE:
    case IP_UNBLOCK_SOURCE:
    case MCAST_JOIN_GROUP:
    case MCAST_LEAVE_GROUP:
    case MCAST_JOIN_SOURCE_GROUP:
    case MCAST_LEAVE_SOURCE_GROUP:
    case MCAST_BLOCK_SOURCE:
    case MCAST_UNBLOCK_SOURCE: return OptionEffect::none;
    default: return OptionEffect::kernel_only;
  }
}

OptionEffect v6_level(int name) {
  switch (name) {
    case IPV6_UNICAST_HOPS:
    case IPV6_MULTICAST_HOPS:
    case IPV6_MULTICAST_IF:
    case IPV6_MULTICAST_LOOP:
    case IPV6_TCLASS:
    case IPV6_MTU_DISCOVER: return OptionEffect::sending;
    case IPV6_V6ONLY:
    case IPV6_RECVERR:
    case IPV6_JOIN_GROUP:
    case IPV6_LEAVE_GROUP:
    case IPV6_MULTICAST_ALL:
    case MCAST_JOIN_GROUP:
    case MCAST_LEAVE_GROUP:
    case MCAST_JOIN_SOURCE_GROUP:
    case MCAST_LEAVE_SOURCE_GROUP: return OptionEffect::none;
    default: return OptionEffect::kernel_only;
  }
}

Nanos time_out_of(int fd, int name) {
  timeval time{};
  socklen_t length = sizeof time;
  if (::getsockopt(fd, SOL_SOCKET, name, &time, &length) != 0) return Nanos::max();
  const Nanos limit = std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  return limit == Nanos::zero() ? Nanos::max() : limit;
}

}  // namespace

OptionEffect effect_of(int level, int name) {
  switch (level) {
    case SOL_SOCKET: return socket_level(name);
    case IPPROTO_IP: return v4_level(name);
    case IPPROTO_IPV6: return v6_level(name);
    default: return OptionEffect::kernel_only;
  }
}

std::size_t receive_buffer_of(int fd) {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  if (::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &length) != 0 || bytes <= 0) return kDefaultReceiveBytes;
  return std::max<std::size_t>(static_cast<std::size_t>(bytes), process().config.rx_bytes_min);
}

bool is_v6_only(int fd) {
  int on = 0;
  socklen_t length = sizeof on;
  return ::getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, &length) == 0 && on != 0;
}

void learn_time_outs(runtime::Endpoint& endpoint, int fd) {
  endpoint.set_receive_timeout(time_out_of(fd, SO_RCVTIMEO));
  endpoint.set_send_timeout(time_out_of(fd, SO_SNDTIMEO));
}

}  // namespace ringsock::vma
