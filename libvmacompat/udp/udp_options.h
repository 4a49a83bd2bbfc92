// The effect on rings of a UDP socket's option that the kernel has accepted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/runtime/endpoint.h"

namespace ringsock::vma {

enum class OptionEffect {
  none,
  sending,          ///< changes headers or paths: known destinations are looked up again
  bound_interface,  ///< SO_BINDTODEVICE
  broadcast,        ///< SO_BROADCAST
  socket_filter,    ///< SO_ATTACH_FILTER and the like: rings do not apply filters; rings are left before the kernel's
                    ///< call
  receive_buffer,   ///< SO_RCVBUF
  time_outs,        ///< SO_RCVTIMEO, SO_SNDTIMEO
  shared_port,      ///< SO_REUSEPORT
  segments,         ///< UDP_SEGMENT
  shared_address,   ///< SO_REUSEADDR
  kernel_sends,     ///< rings do not support it; receiving is not concerned
  kernel_only,      ///< rings do not support it, or its effect is unknown
};
/// For options that are neither in ReceiveOptions nor about groups.
OptionEffect effect_of(int level, int name);

/// Returns how many bytes of payload may wait, according to SO_RCVBUF.
std::size_t receive_buffer_of(int fd);
bool is_v6_only(int fd);
/// Returns the number of datagrams that the kernel's socket has dropped so far.
std::uint32_t kernel_drops_of(int fd);
/// Has the socket's multicast not looped back to members on this host.
void stop_multicast_loop(int fd, int domain);
/// Copies SO_RCVTIMEO and SO_SNDTIMEO of the kernel's socket to the endpoint.
void learn_time_outs(runtime::Endpoint& endpoint, int fd);

}  // namespace ringsock::vma
