// What a socket option that the kernel has accepted means for a UDP socket's rings.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/runtime/endpoint.h"

namespace ringsock::vma {

enum class OptionEffect {
  none,
  sending,          ///< headers, paths: known destinations are looked up anew
  bound_interface,  ///< SO_BINDTODEVICE
  broadcast,        ///< SO_BROADCAST
  socket_filter,    ///< SO_ATTACH_FILTER and the like: rings do not know it; to be told before the kernel is
  receive_buffer,   ///< SO_RCVBUF
  time_outs,        ///< SO_RCVTIMEO, SO_SNDTIMEO
  shared_port,      ///< SO_REUSEPORT
  segments,         ///< UDP_SEGMENT
  shared_address,   ///< SO_REUSEADDR
  kernel_sends,     ///< rings do not have it, but it does not matter to what is received
  kernel_only,      ///< rings do not have it, or we do not know what it does
};
/// Of an option that is none of ReceiveOptions, and not about groups.
OptionEffect effect_of(int level, int name);

/// Bytes of payload that may wait, as SO_RCVBUF says.
std::size_t receive_buffer_of(int fd);
bool is_v6_only(int fd);
/// Index of the interface that SO_BINDTODEVICE named; 0: none.
int bound_interface_of(int fd);
/// A number that getsockopt(2) tells.
int option_of(int fd, int level, int name, int if_unknown);
/// Datagrams that the kernel's socket has dropped so far.
std::uint32_t kernel_drops_of(int fd);
/// Members on this host do not get what the socket sends to a group.
void stop_multicast_loop(int fd, int domain);
/// SO_RCVTIMEO and SO_SNDTIMEO of the kernel's socket become the endpoint's.
void learn_time_outs(runtime::Endpoint& endpoint, int fd);

}  // namespace ringsock::vma
