#include "libvmacompat/tcp/tcp_settings.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "core/wire/tcp.h"
#include "libvmacompat/process/kernel_options.h"
#include "libvmacompat/process/vma_process.h"

namespace ringsock::vma {

namespace tcp = engine::tcp;

namespace {

/// A ring keeps 8 MiB of packets that are longer than its places (core/device/packet/ring), counted with the kernel's
/// bookkeeping: a window of this size fits, even if the application reads nothing for a while.
constexpr std::uint32_t kMostReceiveBytes = 2U << 20;

/// SOCK_SNDBUF_LOCK and SOCK_RCVBUF_LOCK of SO_BUF_LOCK: the application has chosen the size.
constexpr int kSendLocked = 1;
constexpr int kReceiveLocked = 2;

/// Returns whether somebody is to get SIGURG.
bool has_owner(int fd) {
  f_owner_ex owner{};
  return ::fcntl(fd, F_GETOWN_EX, &owner) == 0 && owner.pid != 0;
}

}  // namespace

ethernet::SendOptions tcp_send_options_of(int fd, int family) {
  ethernet::SendOptions out;
  out.bound_interface = bound_interface_of(fd);
  out.mark = static_cast<std::uint32_t>(option_of(fd, SOL_SOCKET, SO_MARK, 0));
  if (family == AF_INET) {
    constexpr int kNotificationBits = 3;
    out.traffic_class = static_cast<std::uint8_t>(option_of(fd, IPPROTO_IP, IP_TOS, 0) & ~kNotificationBits);
    out.hop_limit = option_of(fd, IPPROTO_IP, IP_TTL, -1);
  } else {
    out.traffic_class = static_cast<std::uint8_t>(option_of(fd, IPPROTO_IPV6, IPV6_TCLASS, 0));
    out.hop_limit = option_of(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, -1);
  }
  return out;
}

std::uint16_t tcp_payload_of(std::size_t packet_payload) {
  const std::size_t payload =
      std::max<std::size_t>(packet_payload, sizeof(wire::TcpHeader) + 536) - sizeof(wire::TcpHeader);
  return static_cast<std::uint16_t>(std::min<std::size_t>(payload, 65535 - 40));
}

tcp::Settings tcp_settings_of(int fd, std::size_t packet_payload) {
  tcp::Settings out;
  out.mtu_payload = tcp_payload_of(packet_payload);
  out.nodelay = option_of(fd, IPPROTO_TCP, TCP_NODELAY, 0) != 0;
  out.cork = option_of(fd, IPPROTO_TCP, TCP_CORK, 0) != 0;
  out.urgent_inline = option_of(fd, SOL_SOCKET, SO_OOBINLINE, 0) != 0;
  out.keepalive = option_of(fd, SOL_SOCKET, SO_KEEPALIVE, 0) != 0;
  out.keepalive_idle = std::chrono::seconds(option_of(fd, IPPROTO_TCP, TCP_KEEPIDLE, 7200));
  out.keepalive_interval = std::chrono::seconds(option_of(fd, IPPROTO_TCP, TCP_KEEPINTVL, 75));
  out.keepalive_probes = static_cast<std::uint8_t>(option_of(fd, IPPROTO_TCP, TCP_KEEPCNT, 9));
  out.user_timeout = std::chrono::milliseconds(option_of(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0));
  out.notsent_lowat = static_cast<std::uint32_t>(option_of(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, -1));
  if (out.notsent_lowat == 0) out.notsent_lowat = UINT32_MAX;
  out.most_receive_bytes = kMostReceiveBytes;
  const int locks = buffer_locks_of(fd);
  // The kernel doubles the application's value for its own bookkeeping.
  if ((locks & kSendLocked) != 0)
    out.send_bytes = out.most_send_bytes = static_cast<std::uint32_t>(option_of(fd, SOL_SOCKET, SO_SNDBUF, 0)) / 2;
  if ((locks & kReceiveLocked) != 0)
    out.receive_bytes = out.most_receive_bytes =
        static_cast<std::uint32_t>(option_of(fd, SOL_SOCKET, SO_RCVBUF, 0)) / 2;
  return out;
}

void set_first_options(int fd) {
  const config::VmaConfig& config = process().config;
  const int on = 1, mss = static_cast<int>(config.mss);
  if (config.tcp_nodelay) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (config.tcp_cc_algo == 0) ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  if (mss != 0) ::setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof mss);
}

bool reuses_address(int fd) { return option_of(fd, SOL_SOCKET, SO_REUSEADDR, 0) != 0; }

void reuse_address(int fd, bool on) {
  const int value = on ? 1 : 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value);
}

bool has_kernels_options(int fd) {
  for (const int name : {SO_ZEROCOPY, SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING, SO_RXQ_OVFL}) {
    if (option_of(fd, SOL_SOCKET, name, 0) != 0) return true;
  }
  if (option_of(fd, SOL_SOCKET, SO_PEEK_OFF, -1) >= 0) return true;
  std::uint64_t rate = ~std::uint64_t{0};
  socklen_t length = sizeof rate;
  if (::getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &length) == 0 &&
      (length == sizeof rate ? rate != ~std::uint64_t{0} : static_cast<std::uint32_t>(rate) != UINT32_MAX))
    return true;
  if (has_filter(fd) || has_owner(fd)) return true;
  std::array<char, 16> protocol{};
  socklen_t protocol_length = protocol.size();
  return ::getsockopt(fd, IPPROTO_TCP, TCP_ULP, protocol.data(), &protocol_length) == 0 && protocol_length != 0;
}

bool is_kernels_protocol_option(int name) {
  constexpr int kTcpAoAddKey = 38;
  return name == TCP_MD5SIG || name == TCP_MD5SIG_EXT || name == kTcpAoAddKey || name == TCP_REPAIR ||
         name == TCP_WINDOW_CLAMP || name == TCP_CONGESTION;
}

TcpOptionEffect effect_of_tcp_option(int level, int name) {
  using enum TcpOptionEffect;
  if (level == IPPROTO_TCP) {
    switch (name) {
      case TCP_NODELAY:
      case TCP_CORK:
      case TCP_KEEPIDLE:
      case TCP_KEEPINTVL:
      case TCP_KEEPCNT:
      case TCP_USER_TIMEOUT:
      case TCP_NOTSENT_LOWAT: return settings;
      case TCP_QUICKACK: return quick_ack;
      case TCP_DEFER_ACCEPT:
      case TCP_SYNCNT:
      case TCP_LINGER2: return kernels;
      default: return kernel_only;
    }
  }
  if (level == IPPROTO_IP) return name == IP_TOS || name == IP_TTL ? header : kernel_only;
  if (level == IPPROTO_IPV6) return name == IPV6_TCLASS || name == IPV6_UNICAST_HOPS ? header : kernel_only;
  if (level != SOL_SOCKET) return kernel_only;
  switch (name) {
    case SO_MARK: return header;
    case SO_KEEPALIVE:
    case SO_OOBINLINE:
    case SO_SNDBUF:
    case SO_RCVBUF:
    case SO_SNDBUFFORCE:
    case SO_RCVBUFFORCE: return settings;
    case SO_RCVTIMEO:
    case SO_SNDTIMEO:
    case SO_RCVLOWAT: return endpoint;
    case SO_LINGER:
    case SO_REUSEPORT:
    case SO_BUSY_POLL:
    case SO_DEBUG:
    case SO_PRIORITY: return kernels;
    default: return kernel_only;
  }
}

void learn_stream_values(runtime::Endpoint& endpoint, int fd) {
  endpoint.set_receive_timeout(time_out_of(fd, SO_RCVTIMEO));
  endpoint.set_send_timeout(time_out_of(fd, SO_SNDTIMEO));
  endpoint.set_receive_low_mark(static_cast<std::uint32_t>(std::max(1, option_of(fd, SOL_SOCKET, SO_RCVLOWAT, 1))));
}

}  // namespace ringsock::vma
