// The messages between libvma and vmad(8): datagrams of fixed lengths in host byte order, addresses in network order.
#pragma once

#include <netinet/in.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "core/base/result.h"

namespace ringsock::vma::agent {

/// The version of the messages.
inline constexpr std::uint8_t kVersion = 3;
/// The socket of the service, and the directory for the sockets of its clients.
inline constexpr char kServiceSocket[] = "/var/run/vma_agent.sock";
inline constexpr char kNotifyDirectory[] = "/tmp/vma";

/// The first byte of a message.
enum class Code : std::uint8_t { init = 1, state = 2, exit = 3, flow = 4 };
/// Is set in the code of an answer.
inline constexpr std::uint8_t kAnswer = 0x80;

/// A process with libvma has begun.
struct Init {
  std::uint32_t library_version = 0;  ///< library_version()
  bool operator==(const Init&) const = default;
};
/// A TCP connection of the process has changed.
struct State {
  /// The states of a TCP connection, by the numbers of lwIP. The service needs no others.
  static constexpr std::uint8_t kClosed = 0, kEstablished = 4;

  std::uint32_t id = 0;  ///< of the connection, chosen by the process
  in_addr source{};
  in_addr destination{};
  in_port_t source_port = 0;  ///< network order
  in_port_t destination_port = 0;
  std::uint8_t type = 0;
  std::uint8_t state = kClosed;
};
/// The process ends by itself.
struct Exit {
  bool operator==(const Exit&) const = default;
};
/// A rule of traffic control for a ring over a TAP interface (on Hyper-V). Rings here have none.
struct Flow {
  bool wants_answer = false;
};

struct Message {
  pid_t pid = 0;  ///< as the sender says
  std::uint8_t version = kVersion;
  std::variant<Init, State, Exit, Flow> body;
};

/// Reads a datagram. Errors: EPROTO unknown code, wrong length for the code, or no process id. Longer datagrams than
/// the message are refused, too.
Result<Message> parse(std::span<const std::byte> bytes);

/// A message, or an answer, as it is sent.
struct Encoded {
  std::array<std::byte, 32> bytes{};
  std::size_t size = 0;
  [[nodiscard]] std::span<const std::byte> span() const { return std::span(bytes).first(size); }
};
Encoded encode(const Message& message);
/// The answer to Init.
Encoded accept_init(pid_t pid, std::uint32_t library_version);
/// The answer to Flow: this service makes no such rules.
Encoded refuse_flow(pid_t pid);

/// Reads the answer to Init. Errors: EPROTO it is none, or for another process; EPROTONOSUPPORT the service has an
/// older version of the messages.
Status parse_init_answer(std::span<const std::byte> bytes, pid_t pid);

/// The version of a library as messages have it: 9.8.84 with its last two digits cut to the four bits that they have.
constexpr std::uint32_t library_version(unsigned major, unsigned minor, unsigned release, unsigned revision) {
  return major << 12 | minor << 8 | release << 4 | revision;
}

}  // namespace ringsock::vma::agent
