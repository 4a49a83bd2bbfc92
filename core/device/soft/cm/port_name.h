// Which port of which address an id holds, and the name in the abstract AF_UNIX space that says so.
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
  bool v6_only = false;  ///< means something for the wildcard of IPv6 only: it does not cover IPv4
};

/// Mapped addresses become IPv4, the scope id stays only where it tells addresses apart (link-local).
SocketAddress canonical_address(const SocketAddress& address);

/// Whether both cover a common address and port, by the rules of bind(2).
bool overlap(const PortBinding& a, const PortBinding& b);

enum class PortRole {
  bound,          ///< bound or connecting; nobody can connect to this name
  bound_reusing,  ///< the same, with SO_REUSEADDR
  listening,
};

struct PortName {
  PortRole role{};
  PortBinding binding;
};

/// Listeners that share a binding (SO_REUSEPORT) have a name each, the first ones that are free.
inline constexpr unsigned kMaxSharingListeners = 32;

/// The name of a listening socket, so that connectors can compute it.
/// @param sharer  0, or of listeners that share the binding the number below kMaxSharingListeners
std::string listening_name(const PortBinding& binding, unsigned sharer = 0);
/// Bindings whose listener serves `destination`, most specific first.
std::vector<PortBinding> listener_bindings(const PortBinding& destination);
/// Names of those that listen at a binding: one when nobody shares it, whether or not it is taken, else all that are
/// taken. Another failing connect(2) than is_listener_name_taken().
std::vector<std::string> sharing_listeners(const PortBinding& binding);
/// Whether anybody has one of these names: two or three failing connect(2) calls, some 0.3 us each, that no listener
/// notices. It proves nothing about who that is. Threads: any.
bool is_listener_name_taken(const PortBinding& destination);
/// A name that shows that a port is taken. `unique` tells apart those who share a port.
std::string bound_name(const PortBinding& binding, bool reuse, std::uint32_t unique);
/// What all names of a port begin with.
std::string port_prefix(verbs::PortSpace space, std::uint16_t port);
/// The inverse of both; nothing for names that are not ours.
std::optional<PortName> parse_port_name(std::string_view name);

/// A sockaddr_un with its length.
struct AbstractAddress {
  sockaddr_un address{};
  socklen_t length = 0;
  explicit AbstractAddress(std::string_view name);
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

}  // namespace ringsock::soft
