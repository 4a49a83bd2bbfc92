#include "libvmacompat/udp/udp_options.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>

#include "core/base/socket_memory.h"
#include "libvmacompat/process/kernel_options.h"
#include "libvmacompat/process/vma_process.h"

namespace ringsock::vma {

namespace {

constexpr int kUdpNoChecksumToV6 = 101;  // UDP_NO_CHECK6_TX of <linux/udp.h>
constexpr std::size_t kDefaultReceiveBytes = 212992;

OptionEffect socket_level(int name) {
  switch (name) {
    case SO_RCVBUF:
    case SO_RCVBUFFORCE: return OptionEffect::receive_buffer;
    case SO_RCVTIMEO:
    case SO_SNDTIMEO: return OptionEffect::time_outs;
    case SO_REUSEPORT: return OptionEffect::shared_port;
    case SO_REUSEADDR: return OptionEffect::shared_address;
    case SO_BINDTODEVICE:
    case SO_BINDTOIFINDEX: return OptionEffect::bound_interface;
    case SO_BROADCAST: return OptionEffect::broadcast;
    case SO_ATTACH_FILTER:
    case SO_DETACH_FILTER:
    case SO_ATTACH_BPF:
    case SO_LOCK_FILTER: return OptionEffect::socket_filter;
    case SO_NO_CHECK:
    case SO_DONTROUTE: return OptionEffect::kernel_sends;
    case SO_MARK:
    case SO_PRIORITY: return OptionEffect::sending;
    case SO_SNDBUF:
    case SO_SNDBUFFORCE:
    case SO_ZEROCOPY:  // sends that ask for zero-copy or a time go by the kernel
    case SO_TXTIME:
    case SO_SELECT_ERR_QUEUE:
    case SO_DEBUG:
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
    case IP_MULTICAST_TTL:
    case IP_MULTICAST_LOOP: return OptionEffect::sending;
    case IP_OPTIONS:
    case IP_UNICAST_IF: return OptionEffect::kernel_sends;
    case IP_RECVERR:
    case IP_FREEBIND:
    case IP_BIND_ADDRESS_NO_PORT:
    case IP_MULTICAST_ALL: return OptionEffect::none;
    default: return OptionEffect::kernel_only;
  }
}

OptionEffect v6_level(int name) {
  switch (name) {
    case IPV6_UNICAST_HOPS:
    case IPV6_MULTICAST_HOPS:
    case IPV6_MULTICAST_LOOP:
    case IPV6_TCLASS:
    case IPV6_MTU_DISCOVER: return OptionEffect::sending;
    case IPV6_UNICAST_IF:
    case IPV6_ADDR_PREFERENCES:
    case IPV6_AUTOFLOWLABEL: return OptionEffect::kernel_sends;
    case IPV6_V6ONLY:
    case IPV6_RECVERR:
    case IPV6_DONTFRAG:  // datagrams longer than a packet go by the kernel
    case IPV6_MULTICAST_ALL: return OptionEffect::none;
    default: return OptionEffect::kernel_only;
  }
}

OptionEffect udp_level(int name) {
  switch (name) {
    case UDP_SEGMENT: return OptionEffect::segments;
    case UDP_CORK:
    case kUdpNoChecksumToV6: return OptionEffect::kernel_sends;
    case UDP_GRO: return OptionEffect::none;  // rings deliver each datagram singly; the kernel merges only its own
    default: return OptionEffect::kernel_only;
  }
}

}  // namespace

OptionEffect effect_of(int level, int name) {
  switch (level) {
    case SOL_SOCKET: return socket_level(name);
    case IPPROTO_IP: return v4_level(name);
    case IPPROTO_IPV6: return v6_level(name);
    case IPPROTO_UDP: return udp_level(name);
    default: return OptionEffect::kernel_only;
  }
}

std::size_t receive_buffer_of(int fd) {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  if (::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &length) != 0 || bytes <= 0) return kDefaultReceiveBytes;
  return std::max<std::size_t>(static_cast<std::size_t>(bytes), process().config.rx_bytes_min);
}

bool is_v6_only(int fd) { return option_of(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0) != 0; }

void stop_multicast_loop(int fd, int domain) {
  const int off = 0;
  ::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &off, sizeof off);
  if (domain == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, &off, sizeof off);
}

std::uint32_t kernel_drops_of(int fd) {
  const auto memory = socket_memory(fd);
  return memory ? (*memory)[SK_MEMINFO_DROPS] : 0;
}

void learn_time_outs(runtime::Endpoint& endpoint, int fd) {
  endpoint.set_receive_timeout(time_out_of(fd, SO_RCVTIMEO));
  endpoint.set_send_timeout(time_out_of(fd, SO_SNDTIMEO));
}

}  // namespace ringsock::vma
