// The port and address that an id holds, and the abstract AF_UNIX name that shows it.
#pragma once

#include <sys/un.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/socket_address.h"
#include "core/verbs/device.h"

namespace ringsock::soft {

/// A port of an address. The address is in canonical form (canonical_address()).
struct PortBinding {
  verbs::PortSpace space{};
  SocketAddress address;
  bool v6_only = false;  ///< only for the wildcard of IPv6: it does not cover IPv4
};

/// Returns the canonical form: mapped addresses become IPv4, and the scope id is kept only where it distinguishes
/// addresses (link-local).
SocketAddress canonical_address(const SocketAddress& address);

/// Returns whether both cover a common address and port, by the rules of bind(2).
bool overlap(const PortBinding& a, const PortBinding& b);

enum class PortRole {
  bound,          ///< bound or connecting; this name accepts no connections
  bound_reusing,  ///< the same, with SO_REUSEADDR
  listening,
};

struct PortName {
  PortRole role{};
  PortBinding binding;
};

/// The limit of listeners that share a binding (SO_REUSEPORT). Each takes the first free name.
inline constexpr unsigned kMaxSharingListeners = 32;

/// Returns the name of a listening socket, which connectors can compute.
/// @param sharer 0, or the number, below kMaxSharingListeners, of a listener that shares the binding
std::string listening_name(const PortBinding& binding, unsigned sharer = 0);
/// Returns the bindings whose listener serves `destination`, most specific first.
std::vector<PortBinding> listener_bindings(const PortBinding& destination);
/// Returns the names of the listeners at a binding: a single name, taken or not, when it is not shared, otherwise all
/// taken names. Costs one failing connect(2) more than is_listener_name_taken().
std::vector<std::string> sharing_listeners(const PortBinding& binding);
/// Returns whether a socket has one of these names. Costs two or three failing connect(2) calls, about 0.3 us each,
/// which no listener notices. It proves nothing about the owner. Threads: any.
bool is_listener_name_taken(const PortBinding& destination);
/// Returns a name that shows that a port is taken. `unique` distinguishes the holders of a shared port.
std::string bound_name(const PortBinding& binding, bool reuse, std::uint32_t unique);
/// Returns the common prefix of all names of a port.
std::string port_prefix(verbs::PortSpace space, std::uint16_t port);
/// Parses a listening or bound name. Returns nothing for other names.
std::optional<PortName> parse_port_name(std::string_view name);

/// A sockaddr_un with its length.
struct AbstractAddress {
  sockaddr_un address{};
  socklen_t length = 0;
  explicit AbstractAddress(std::string_view name);
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

}  // namespace ringsock::soft
