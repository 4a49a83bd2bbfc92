// The file preload_config: which sockets of which programs the preload library takes.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/socket_address.h"
#include "core/config/rsocket_config.h"

namespace ringsock::config {

enum class PreloadAction : std::uint8_t {
  rdma,  ///< an rsocket, TCP where the other side has none
  tcp,   ///< a kernel socket
  off,   ///< the library does nothing in this process
};

/// An IPv4 or IPv6 network: the addresses whose first `prefix_bits` bits are those of `address`. IPv4-mapped IPv6
/// addresses and networks count as the IPv4 ones that they stand for.
struct AddressPattern {
  SocketAddress address;  ///< port 0, unmapped
  unsigned prefix_bits;   ///< 0..32 or 0..128

  /// Parses "10.1.2.3", "10.0.0.0/8" or "fe80::/10". Errors: EINVAL.
  static Result<AddressPattern> parse(std::string_view text);
  [[nodiscard]] bool matches(const SocketAddress& other) const;
};

/// One line of the file without its program. A field that is absent matches any value.
struct PreloadRule {
  std::optional<int> domain{};
  std::optional<int> type{};      ///< without SOCK_NONBLOCK and SOCK_CLOEXEC
  std::optional<int> protocol{};  ///< never 0
  std::optional<AddressPattern> address{};
  std::uint16_t first_port = 0;
  std::uint16_t last_port = 65535;
  PreloadAction action = PreloadAction::rdma;

  [[nodiscard]] bool matches_socket(int domain, int type, int protocol) const;
  [[nodiscard]] bool matches_address(const SocketAddress& address) const;
  /// Returns whether the rule matches without the address being known.
  [[nodiscard]] bool matches_any_address() const { return !address && first_port == 0 && last_port == 65535; }
};

/// The rules that concern one program. Immutable: any thread may ask at any time.
///
/// Grammar of a line, its fields separated by blanks; a field that begins with '#' ends it:
///
///     program domain type protocol [address [port]] [action]
///
/// The first line that matches a socket decides. Then come built-in rules: programs that hand their connections to
/// other programs or share one between processes go by TCP. A socket that nothing matches is taken when the file has no
/// line with the action rdma (a list of exceptions, or no file), else left to the kernel. preload_config(5) has the
/// details, and tells what the first four fields mean upstream.
class PreloadRules {
 public:
  /// Returns the rules in `text` that concern `program` (as program_invocation_short_name(3) gives it).
  /// @param file    the name of `text` in reports
  /// @param report  gets one line per wrong line: file, line number, reason. The line is then skipped.
  static PreloadRules parse(std::string_view text, const std::string& file, std::string_view program,
                            const Report& report);
  /// Loads `directory`/preload_config. Only the built-in rules apply when there is no file. A file that cannot be read
  /// is reported.
  static PreloadRules load(const char* directory, std::string_view program, const Report& report);

  /// Returns whether the first line that names the program says `off`: the library then does nothing in this process.
  [[nodiscard]] bool process_is_off() const { return !rules_.empty() && rules_.front().action == PreloadAction::off; }
  /// Decides at socket(2), before an address is known: rdma when for_address() may decide so later, otherwise tcp.
  [[nodiscard]] PreloadAction for_socket(int domain, int type, int protocol) const;
  /// Decides at connect(2) by the peer's address, at listen(2) by the local address with the port that bind(2) gave.
  /// Returns rdma or tcp.
  [[nodiscard]] PreloadAction for_address(int domain, const SocketAddress& address, int type = SOCK_STREAM,
                                          int protocol = IPPROTO_TCP) const;

 private:
  [[nodiscard]] PreloadAction otherwise() const { return takes_rest_ ? PreloadAction::rdma : PreloadAction::tcp; }

  std::vector<PreloadRule> rules_;
  bool takes_rest_ = true;
};

}  // namespace ringsock::config
