// getsockopt() and setsockopt().
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "core/engine/tcp/kernel_info.h"
#include "tests/packetdrill/adapter.h"

namespace ringsock::packetdrill {
namespace {

engine::tcp::KernelTcpInfo make_info(const Socket& s, Nanos now) {
  engine::tcp::KernelTcpInfo out{};
  out.first.tcpi_state = s.listening ? TCP_LISTEN : TCP_CLOSE;
  out.first.tcpi_reordering = 3;
  if (!s.started) return out;
  engine::tcp::fill_tcp_info(s.tcp.info(), out);
  const auto age_ms = [now](Nanos then) {
    return static_cast<std::uint32_t>((now - then) / std::chrono::milliseconds(1));
  };
  out.first.tcpi_last_data_sent = age_ms(s.last_data_sent);
  out.first.tcpi_last_data_recv = age_ms(s.last_data_received);
  out.first.tcpi_last_ack_recv = age_ms(s.last_ack_received);
  out.first.tcpi_advmss = s.settings.mtu_payload;
  out.first.tcpi_pmtu = s.tcp.settings().mtu_payload + (s.remote.is_v4() ? 40u : 60u);
  return out;
}

int seconds(Nanos time) { return static_cast<int>(time / std::chrono::seconds(1)); }

int read_tcp_option(const Socket& s, int name) {
  const auto& set = s.settings;
  if (name == TCP_NODELAY) return set.nodelay;
  if (name == TCP_CORK) return set.cork;
  if (name == TCP_MAXSEG)
    return s.started ? static_cast<int>(s.tcp.info().snd_mss) : set.most_mss != 0 ? set.most_mss : 536;
  if (name == TCP_KEEPIDLE) return seconds(set.keepalive_idle);
  if (name == TCP_KEEPINTVL) return seconds(set.keepalive_interval);
  if (name == TCP_KEEPCNT) return set.keepalive_probes;
  if (name == TCP_SYNCNT) return s.options.syn_retries;
  if (name == TCP_INQ) return s.options.tells_unread;
  if (name == TCP_QUICKACK) return 1;
  if (name == TCP_LINGER2) return seconds(set.fin_wait_2);
  if (name == TCP_DEFER_ACCEPT) return s.options.defer_accept_seconds;
  if (name == TCP_USER_TIMEOUT) return static_cast<int>(set.user_timeout / std::chrono::milliseconds(1));
  if (name == TCP_NOTSENT_LOWAT) return static_cast<int>(set.notsent_lowat);
  return 0;
}

int read_socket_option(Socket& s, int name) {
  if (name == SO_ERROR) return s.take_error();
  if (name == SO_ZEROCOPY) return s.notices.zero_copy;
  if (name == SO_RCVLOWAT) return static_cast<int>(s.options.receive_low);
  if (name == SO_TYPE) return SOCK_STREAM;
  if (name == SO_DOMAIN) return s.v6 ? AF_INET6 : AF_INET;
  if (name == SO_PROTOCOL) return IPPROTO_TCP;
  if (name == SO_ACCEPTCONN) return s.listening;
  if (name == SO_KEEPALIVE) return s.settings.keepalive;
  if (name == SO_OOBINLINE) return s.settings.urgent_inline;
  if (name == SO_SNDBUF) return static_cast<int>(s.settings.send_bytes);
  if (name == SO_RCVBUF) return static_cast<int>(s.options.corrected_receive ? 2 * s.settings.receive_bytes : 131'072);
  const auto found = s.options.others.find({SOL_SOCKET, name});
  return found == s.options.others.end() ? 0 : found->second;
}

/// What there is of options: others are told to be unknown.
bool is_known(int level, int name) { return level != IPPROTO_TCP || (name >= TCP_NODELAY && name <= TCP_TX_DELAY); }

int give(const void* value, socklen_t size, void* to, socklen_t* length) {
  *length = std::min(*length, size);
  std::memcpy(to, value, *length);
  return 0;
}

}  // namespace

int call_getsockopt(void* data, int fd, int level, int name, void* to, socklen_t* length) {
  Call call(data);
  const SocketPtr s = call.socket(fd);
  if (!s) return fail(EBADF);
  if (to == nullptr || length == nullptr) return fail(EFAULT);
  if (level == IPPROTO_TCP && name == TCP_INFO) {
    const engine::tcp::KernelTcpInfo info = make_info(*s, call.all.host.now());
    return give(&info, sizeof info, to, length);
  }
  if (!is_known(level, name)) return fail(ENOPROTOOPT);
  if (level == IPPROTO_TCP && name == TCP_CONGESTION) {
    std::array<char, 16> text{};
    std::strcpy(text.data(), s->settings.algorithm == engine::tcp::Algorithm::cubic ? "cubic" : "reno");
    return give(text.data(), text.size(), to, length);
  }
  if (level == SOL_SOCKET && name == SO_LINGER) {
    const linger value{s->options.linger, s->options.linger_seconds};
    return give(&value, sizeof value, to, length);
  }
  int value = 0;
  if (level == IPPROTO_TCP) value = read_tcp_option(*s, name);
  if (level == SOL_SOCKET) value = read_socket_option(*s, name);
  return give(&value, sizeof value, to, length);
}

namespace {

bool set_tcp_option(Socket& s, int name, int value, Nanos now) {
  auto& set = s.settings;
  const bool one_to_127 = value >= 1 && value <= 127;
  const bool time = value >= 1 && value <= 32'767;
  if (name == TCP_NODELAY) return set.nodelay = value != 0, true;
  if (name == TCP_CORK) return set.cork = value != 0, true;
  if (name == TCP_MAXSEG) return set.most_mss = static_cast<std::uint16_t>(value), value >= 88 && value <= 32'767;
  if (name == TCP_KEEPIDLE) return set.keepalive_idle = std::chrono::seconds(value), time;
  if (name == TCP_KEEPINTVL) return set.keepalive_interval = std::chrono::seconds(value), time;
  if (name == TCP_KEEPCNT) return set.keepalive_probes = static_cast<std::uint8_t>(value), one_to_127;
  if (name == TCP_SYNCNT) return s.options.syn_retries = set.syn_retries = static_cast<std::uint8_t>(value), one_to_127;
  if (name == TCP_INQ) return s.options.tells_unread = value != 0, value == 0 || value == 1;
  if (name == TCP_LINGER2) return set.fin_wait_2 = std::chrono::seconds(std::max(value, 0)), true;
  if (name == TCP_DEFER_ACCEPT) return s.options.defer_accept_seconds = std::max(value, 0), true;
  if (name == TCP_USER_TIMEOUT) return set.user_timeout = std::chrono::milliseconds(value), value >= 0;
  if (name == TCP_NOTSENT_LOWAT) return set.notsent_lowat = static_cast<std::uint32_t>(value), true;
  if (name == TCP_QUICKACK && s.started) s.tcp.set_quick_ack(value != 0, now);
  return true;
}

void set_socket_option(Socket& s, int name, int value) {
  const auto bytes = static_cast<std::uint32_t>(std::clamp(value, name == SO_SNDBUF ? 2304 : 1152, 212'992));
  if (name == SO_ZEROCOPY) s.notices.zero_copy = value != 0;
  if (name == SO_TIMESTAMPING) s.notices.set_time_stamping(static_cast<std::uint32_t>(value));
  if (name == SO_RCVLOWAT) s.options.receive_low = static_cast<std::size_t>(std::max(value, 1));
  if (name == SO_KEEPALIVE) s.settings.keepalive = value != 0;
  if (name == SO_OOBINLINE) s.settings.urgent_inline = value != 0;
  if (name == SO_SNDBUF) s.settings.send_bytes = s.settings.most_send_bytes = 2 * bytes;
  if (name == SO_RCVBUF) {
    s.settings.receive_bytes = s.settings.most_receive_bytes = bytes;  // half of what Linux reserves is for the window
    s.options.corrected_receive = true;
  }
  s.options.others[{SOL_SOCKET, name}] = value;
}

bool set_wide_option(Socket& s, int name, const void* from, socklen_t length) {
  if (name == SO_LINGER && length >= sizeof(linger)) {
    linger value;
    std::memcpy(&value, from, sizeof value);
    s.options.linger = value.l_onoff != 0;
    s.options.linger_seconds = value.l_linger;
    return true;
  }
  if ((name != SO_RCVTIMEO && name != SO_SNDTIMEO) || length < sizeof(timeval)) return false;
  timeval value;
  std::memcpy(&value, from, sizeof value);
  const Nanos time = std::chrono::seconds(value.tv_sec) + std::chrono::microseconds(value.tv_usec);
  (name == SO_RCVTIMEO ? s.options.receive_timeout : s.options.send_timeout) = time;
  return true;
}

/// tcp(7), TCP_CONGESTION.
int set_congestion(Socket& s, std::string_view name, Nanos now) {
  name = name.substr(0, name.find('\0'));
  if (name != "cubic" && name != "reno") return fail(ENOENT);
  s.settings.algorithm = name == "cubic" ? engine::tcp::Algorithm::cubic : engine::tcp::Algorithm::new_reno;
  if (s.started) s.tcp.set(s.settings, now);
  return 0;
}

}  // namespace

int call_setsockopt(void* data, int fd, int level, int name, const void* from, socklen_t length) {
  Call call(data);
  const SocketPtr s = call.socket(fd);
  if (!s) return fail(EBADF);
  if (from == nullptr) return fail(EFAULT);
  if (!is_known(level, name)) return fail(ENOPROTOOPT);
  if (level == IPPROTO_TCP && name == TCP_CONGESTION)
    return set_congestion(*s, {static_cast<const char*>(from), length}, call.all.host.now());
  if (level == SOL_SOCKET && set_wide_option(*s, name, from, length)) return 0;
  if (length < sizeof(int)) return fail(EINVAL);
  int value = 0;
  std::memcpy(&value, from, sizeof value);
  const auto before = s->settings;
  if (level == IPPROTO_TCP && !set_tcp_option(*s, name, value, call.all.host.now())) {
    s->settings = before;
    return fail(EINVAL);
  }
  if (level == SOL_SOCKET) set_socket_option(*s, name, value);
  if ((level == IPPROTO_IP && name == IP_RECVERR) || (level == IPPROTO_IPV6 && name == IPV6_RECVERR))
    s->options.hears_of_icmp = value != 0;
  if (s->started) s->tcp.set(s->settings, call.all.host.now());
  call.all.host.pump();
  return 0;
}

}  // namespace ringsock::packetdrill
