// rcopy's messages, in the byte order of the host that sends them. Source: fact sheet 7, observed with rdmacm-utils 44.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "tools/call_table.h"

namespace ringsock::tools {

inline constexpr const char* kRcopyPort = "7427";

enum class RcopyCommand : std::uint8_t { open = 1, close = 2, write = 3 };
inline constexpr std::uint8_t kRcopyReply = 0x80;  ///< set in the command of a reply
inline constexpr std::uint8_t kRcopyVersion = 0;

/// Starts each message. `open` is followed by the path with its NUL, padded to 8 bytes; `write` by the file's size in 8
/// bytes and then, outside of `length`, its contents.
struct RcopyHeader {
  std::uint8_t version;
  std::uint8_t command;  ///< RcopyCommand
  std::uint16_t length;  ///< bytes of the message with this header
  std::uint32_t data;    ///< open: st_mode; reply: 0 or an errno value
  std::uint64_t id;
};
static_assert(sizeof(RcopyHeader) == 16);

inline constexpr std::size_t kRcopyMaxPathBytes = 4096;  ///< padded path, with NUL

/// A blocking stream with a limit for the peer's silence.
class RcopyStream {
 public:
  RcopyStream(const Socket& socket, int idle_timeout_ms) : socket_(socket), idle_timeout_ms_(idle_timeout_ms) {}

  Status send_all(std::span<const std::byte> data) const;
  /// Receives at least one byte. Errors: ECONNRESET when the peer has closed; ETIMEDOUT.
  [[nodiscard]] Result<std::size_t> receive_some(std::span<std::byte> out) const;
  Status receive_all(std::span<std::byte> out) const;

 private:
  const Socket& socket_;
  int idle_timeout_ms_;
};

/// Returns the bytes of a part of a message.
template <class T>
std::span<std::byte> bytes_of(T& object) {
  return std::as_writable_bytes(std::span(&object, 1));
}

/// The size of one read or write of a file: large enough to make system calls cheap, small enough to stay in the cache.
inline constexpr std::size_t kRcopyChunkBytes = 256 << 10;

}  // namespace ringsock::tools
