// What the kernel counts of a socket's memory.
#pragma once

#include <linux/sock_diag.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>

namespace ringsock {

/// By SK_MEMINFO_RMEM_ALLOC, SK_MEMINFO_RCVBUF, SK_MEMINFO_DROPS and so on: bytes; the drops are packets.
using SocketMemory = std::array<std::uint32_t, SK_MEMINFO_VARS>;

/// Returns SO_MEMINFO, nothing where Linux does not tell it (before 4.12). Threads: any.
inline std::optional<SocketMemory> socket_memory(int fd) {
  SocketMemory counts{};
  socklen_t length = sizeof counts;
  if (::getsockopt(fd, SOL_SOCKET, SO_MEMINFO, counts.data(), &length) != 0) return std::nullopt;
  return counts;
}

}  // namespace ringsock
