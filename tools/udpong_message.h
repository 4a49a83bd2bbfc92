// What udpong's client and server say to each other, as the udpong of rdma-core does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/wire/big_endian.h"

namespace ringsock::tools {

enum class UdpongOp : std::uint8_t {
  login = 0,  ///< asks for a number; the answer has it
  start = 1,  ///< the server counts from zero
  data = 2,   ///< counted
  echo = 3,   ///< counted and sent back
  end = 4,    ///< the answer has the count
};

/// The beginning of each message. Messages other than data and echo have nothing more, and are sent back.
struct UdpongHeader {
  UdpongOp op;
  std::uint8_t client;    ///< the number that the server gave
  std::uint8_t sequence;  ///< of what is answered
  std::uint8_t zero;
  wire::Be32 count;  ///< messages of data and echo that the server has received since `start`
  std::uint8_t unused[8];
};
static_assert(sizeof(UdpongHeader) == 16);

inline constexpr std::size_t kMinUdpongBytes = sizeof(UdpongHeader);
inline constexpr std::size_t kMaxUdpongBytes = 2048;  ///< that rdma-core's takes

}  // namespace ringsock::tools
