// One line of libvma.conf. Grammar: libvma.conf(5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "core/base/socket_address.h"
#include "core/config/preload_rules.h"

namespace ringsock::config {

/// The occasion for which a rule is asked, and the addresses that are known then.
enum class VmaRole : std::uint8_t {
  tcp_server,    ///< listen(2): local
  tcp_client,    ///< connect(2): remote, local
  udp_receiver,  ///< bind(2), or joining a group: local, or the group with the port
  udp_sender,    ///< a destination: remote, local
  udp_connect,   ///< connect(2): remote, local
};
inline constexpr std::size_t kVmaRoles = 5;

enum class VmaTransport : std::uint8_t {
  vma,  ///< rings
  os,   ///< the kernel's
};

/// The "address:ports" of a rule.
struct VmaTuple {
  std::optional<AddressPattern> address{};  ///< absent: any, of whatever family
  std::uint16_t first_port = 0;
  std::uint16_t last_port = 65535;

  [[nodiscard]] bool matches(const SocketAddress& other) const {
    return other.port() >= first_port && other.port() <= last_port && (!address || address->matches(other));
  }
  [[nodiscard]] bool matches_all() const { return !address && first_port == 0 && last_port == 65535; }
};

/// A use line.
struct VmaRule {
  std::optional<VmaTransport> transport;  ///< absent: sdp or sa, which decide nothing
  VmaRole role;
  VmaTuple first{};
  std::optional<VmaTuple> second{};
};

/// An application-id line.
struct VmaApplication {
  std::string program;  ///< a pattern for fnmatch(3)
  std::string id;       ///< "*": any
  bool operator==(const VmaApplication&) const = default;
};

/// A log line: accepted, without effect; VMA_TRACELEVEL and VMA_LOG_FILE are for that.
struct VmaLogLine {};

/// What is wrong with a line.
struct VmaProblem {
  std::string text;
};

/// monostate: nothing but blanks and comment.
using VmaLine = std::variant<std::monostate, VmaRule, VmaApplication, VmaLogLine, VmaProblem>;

/// Reads one line, with or without its newline.
VmaLine parse_vma_line(std::string_view line);

/// Returns whether the role has a second address that a rule can name.
constexpr bool has_second_tuple(VmaRole role) { return role != VmaRole::tcp_server && role != VmaRole::udp_receiver; }

/// Returns the word of the file.
const char* name_of(VmaRole role);

}  // namespace ringsock::config
