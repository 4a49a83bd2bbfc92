// What an option means for a UDP socket that may use rings.
#pragma once

#include <sys/socket.h>

#include "core/base/clock.h"

namespace ringsock::rs {

enum class UdpOptionEffect {
  none,            ///< the kernel's socket has it, and rings need not know
  time_outs,       ///< SO_RCVTIMEO, SO_SNDTIMEO
  shared_address,  ///< SO_REUSEADDR: another socket may get the port later
  shared_port,     ///< SO_REUSEPORT: the kernel chooses one of several sockets for each datagram
  kernel_only,     ///< changes what a datagram is, where it goes or what is told with it
};
/// Returns the effect of setsockopt(2). Options that are not known here are kernel_only. Pure.
UdpOptionEffect effect_of_udp_option(int level, int name);

/// Returns SO_RCVTIMEO or SO_SNDTIMEO of the kernel's socket, Nanos::max() for none.
Nanos time_out_of(int fd, int name);

}  // namespace ringsock::rs
