// What a socket option that the kernel has accepted means for a UDP socket's rings.
#pragma once

#include <cstddef>

#include "core/runtime/endpoint.h"

namespace ringsock::vma {

enum class OptionEffect {
  none,
  sending,         ///< headers, paths: known destinations are looked up anew
  receive_buffer,  ///< SO_RCVBUF
  time_outs,       ///< SO_RCVTIMEO, SO_SNDTIMEO
  shared_port,     ///< SO_REUSEPORT
  kernel_only,     ///< rings do not have it, or we do not know what it does
};
/// Of an option that is none of ReceiveOptions.
OptionEffect effect_of(int level, int name);

/// Bytes of payload that may wait, as SO_RCVBUF says.
std::size_t receive_buffer_of(int fd);
bool is_v6_only(int fd);
/// SO_RCVTIMEO and SO_SNDTIMEO of the kernel's socket become the endpoint's.
void learn_time_outs(runtime::Endpoint& endpoint, int fd);

}  // namespace ringsock::vma
