#include "librsocket/socket_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <climits>
#include <iterator>

namespace ringsock::rs {

namespace {

// Times in seconds except TCP_USER_TIMEOUT (ms); limits as tcp(7) and the kernel have them. Options for features of TCP
// that rsockets do not have (Nagle, the window, congestion) are stored and returned.
constexpr IntOption kOptions[] = {
    {SOL_SOCKET, SO_REUSEADDR, 0, INT_MIN, INT_MAX, true},
    {SOL_SOCKET, SO_REUSEPORT, 0, INT_MIN, INT_MAX, true},
    {SOL_SOCKET, SO_BROADCAST, 0, INT_MIN, INT_MAX, true},
    {SOL_SOCKET, SO_KEEPALIVE, 0, INT_MIN, INT_MAX, true},
    {SOL_SOCKET, SO_OOBINLINE, 0, INT_MIN, INT_MAX, true},
    {SOL_SOCKET, SO_PRIORITY, 0, 0, INT_MAX, false},
    {SOL_SOCKET, SO_RCVLOWAT, 1, INT_MIN, INT_MAX, false},
    {SOL_SOCKET, SO_DONTROUTE, 0, INT_MIN, INT_MAX, true},
    {IPPROTO_IP, IP_TOS, 0, 0, 255, false},
    {IPPROTO_IP, IP_TTL, 64, 1, 255, false},
    {IPPROTO_IPV6, IPV6_V6ONLY, 0, INT_MIN, INT_MAX, true},
    {IPPROTO_IPV6, IPV6_TCLASS, 0, -1, 255, false},
    {IPPROTO_TCP, TCP_NODELAY, 0, INT_MIN, INT_MAX, true},
    {IPPROTO_TCP, TCP_CORK, 0, INT_MIN, INT_MAX, true},
    {IPPROTO_TCP, TCP_QUICKACK, 1, INT_MIN, INT_MAX, true},
    {IPPROTO_TCP, TCP_KEEPIDLE, 7200, 1, 32767, false},
    {IPPROTO_TCP, TCP_KEEPINTVL, 75, 1, 32767, false},
    {IPPROTO_TCP, TCP_KEEPCNT, 9, 1, 127, false},
    {IPPROTO_TCP, TCP_SYNCNT, 6, 1, 127, false},
    {IPPROTO_TCP, TCP_DEFER_ACCEPT, 0, INT_MIN, INT_MAX, false},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP, 0, 0, INT_MAX, false},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, 0, 0, INT_MAX, false},
    {IPPROTO_TCP, TCP_FASTOPEN, 0, 0, INT_MAX, false},
    {IPPROTO_TCP, TCP_LINGER2, 60, INT_MIN, 120, false},
};

}  // namespace

std::optional<std::size_t> find_int_option(int level, int name) {
  for (std::size_t row = 0; row < std::size(kOptions); ++row) {
    if (kOptions[row].level == level && kOptions[row].name == name) return row;
  }
  return std::nullopt;
}

const IntOption& int_option(std::size_t row) { return kOptions[row]; }

IntOptions::IntOptions(runtime::DescriptionValues& values) : values_(values) {
  static_assert(std::size(kOptions) <= runtime::DescriptionValues::kMostOptions);
  for (std::size_t row = 0; row < std::size(kOptions); ++row) set(row, kOptions[row].initial);
}

IntOptions& IntOptions::operator=(const IntOptions& other) {
  for (std::size_t row = 0; row < std::size(kOptions); ++row) set(row, other.get(row));
  return *this;
}

}  // namespace ringsock::rs
