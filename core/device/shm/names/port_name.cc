#include "core/device/shm/names/port_name.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>

#include "core/base/process_state.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {
namespace {

using verbs::PortSpace;

constexpr std::string_view kPrefix = "ringsock1/";
constexpr std::string_view kListen = "listen";
constexpr std::string_view kBound = "bound";
constexpr std::string_view kReuse = "reuse";
constexpr std::string_view kV6Only = "v6only";

bool same_host(const SocketAddress& a, const SocketAddress& b) {
  SocketAddress copy = a;
  copy.set_port(b.port());
  return copy == b;
}

bool covers_other_family(const PortBinding& wide, const PortBinding& other) {
  return wide.address.family() == AF_INET6 && wide.address.is_wildcard() && !wide.v6_only &&
         other.address.family() == AF_INET;
}

std::string host_text(const SocketAddress& address) {
  const std::uint32_t scope = address.family() == AF_INET6 ? address.in6().sin6_scope_id : 0;
  return scope == 0 ? address.host_to_string() : address.host_to_string() + '%' + std::to_string(scope);
}

template <class T>
bool parse_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

std::optional<SocketAddress> parse_host(std::string_view text, std::uint16_t port) {
  const std::size_t percent = text.find('%');
  const std::string host(text.substr(0, percent));
  std::uint32_t scope = 0;
  if (percent != std::string_view::npos && !parse_number(text.substr(percent + 1), scope)) return std::nullopt;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return SocketAddress::v4(ntohl(v4.s_addr), port);
  in6_addr v6{};
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return SocketAddress::v6(v6, port, scope);
  return std::nullopt;
}

/// Removes the text up to the next '/' from the front and returns it.
std::string_view take_part(std::string_view& rest) {
  const std::size_t slash = rest.find('/');
  const std::string_view part = rest.substr(0, slash);
  rest = slash == std::string_view::npos ? std::string_view{} : rest.substr(slash + 1);
  return part;
}

}  // namespace

SocketAddress canonical_address(const SocketAddress& address) {
  const SocketAddress plain = address.unmapped();
  if (plain.family() != AF_INET6) return plain;
  const in6_addr& host = plain.in6().sin6_addr;
  const bool scoped = IN6_IS_ADDR_LINKLOCAL(&host) || IN6_IS_ADDR_MC_LINKLOCAL(&host);
  return SocketAddress::v6(host, plain.port(), scoped ? plain.in6().sin6_scope_id : 0);
}

bool overlap(const PortBinding& a, const PortBinding& b) {
  if (a.space != b.space || a.address.port() != b.address.port()) return false;
  if (covers_other_family(a, b) || covers_other_family(b, a)) return true;
  if (a.address.family() != b.address.family()) return false;
  return a.address.is_wildcard() || b.address.is_wildcard() || same_host(a.address, b.address);
}

std::string port_prefix(PortSpace space, std::uint16_t port) {
  std::string out(kPrefix);
  out += space == PortSpace::tcp ? "tcp/" : "udp/";
  out += std::to_string(port);
  out += '/';
  return out;
}

std::string listening_name(const PortBinding& binding, unsigned sharer) {
  std::string out = port_prefix(binding.space, binding.address.port());
  out.append(kListen).append("/").append(host_text(binding.address));
  const bool v6_only = binding.v6_only && binding.address.is_wildcard() && binding.address.family() == AF_INET6;
  if (v6_only) out.append("/").append(kV6Only);
  if (sharer != 0) out.append(v6_only ? "/" : "//").append(std::to_string(sharer));
  return out;
}

namespace {

/// Returns letters that differ much for neighbouring ports. The kernel finds a name by the sum of its bytes, in one of
/// 256 lists: the digits of ports alone lead to 32 of these, which are long where there are many connections.
std::array<char, 4> scattered(std::uint16_t port) {
  static constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-";
  constexpr std::uint32_t kMultiplier = 2654435761U;  // Knuth's, near the golden ratio of 2^32
  std::uint32_t bits = port * kMultiplier;
  bits ^= bits >> 15;
  std::array<char, 4> out{};
  for (char& letter : out) {
    letter = kLetters[bits & 63];
    bits >>= 6;
  }
  return out;
}

}  // namespace

std::string bound_name(const PortBinding& binding, bool reuse, std::uint32_t unique) {
  std::string out = port_prefix(binding.space, binding.address.port());
  out.append(reuse ? kReuse : kBound).append("/").append(host_text(binding.address)).append("/");
  if (binding.v6_only) out.append(kV6Only);
  std::array<char, 8> number{};
  const auto digits = std::to_chars(number.data(), number.data() + number.size(), unique, 16);
  const auto letters = scattered(binding.address.port());
  return out.append("/").append(number.data(), digits.ptr).append(letters.data(), letters.size());
}

std::optional<PortName> parse_port_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  PortName out;
  const std::string_view space = take_part(name);
  if (space != "tcp" && space != "udp") return std::nullopt;
  out.binding.space = space == "tcp" ? PortSpace::tcp : PortSpace::udp;
  std::uint16_t port = 0;
  if (!parse_number(take_part(name), port)) return std::nullopt;
  const std::string_view role = take_part(name);
  if (role != kListen && role != kBound && role != kReuse) return std::nullopt;
  out.role = role == kListen ? PortRole::listening : role == kReuse ? PortRole::bound_reusing : PortRole::bound;
  const auto address = parse_host(take_part(name), port);
  if (!address) return std::nullopt;
  out.binding.address = *address;
  out.binding.v6_only = take_part(name) == kV6Only;
  return out;
}

AbstractAddress::AbstractAddress(std::string_view name) {
  address.sun_family = AF_UNIX;
  // sun_path[0] stays 0: that is what makes the name abstract. The longest name of ours is 106 bytes.
  const std::size_t bytes = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), bytes);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
}

std::vector<PortBinding> listener_bindings(const PortBinding& destination) {
  std::vector<PortBinding> out{destination};
  const auto add = [&](int family, bool v6_only) {
    out.push_back({destination.space, SocketAddress::wildcard(family, destination.address.port()), v6_only});
  };
  if (destination.address.family() == AF_INET) {
    add(AF_INET, false);
    add(AF_INET6, false);
  } else {
    add(AF_INET6, false);
    add(AF_INET6, true);
  }
  return out;
}

namespace {

/// connect(2) looks up the name before it checks the connecting socket. On a socket that is connected already it fails
/// with EISCONN if a socket listens under the name, otherwise with ECONNREFUSED.
struct ProbeSocket {
  static constexpr ProcessPart kPart = ProcessPart::probe_socket;
  static UniqueFd make() {
    std::array<int, 2> pair{-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()) != 0) return {};
    ::close(pair[1]);
    return out_of_the_way(UniqueFd(pair[0]));
  }
  const UniqueFd fd = make();
};

bool is_taken(const std::string& name) {
  const UniqueFd& probe = process_state<ProbeSocket>().fd;
  if (!probe) return true;
  const AbstractAddress address(name);
  return ::connect(probe.get(), address.get(), address.length) == 0 || errno != ECONNREFUSED;
}

}  // namespace

std::vector<std::string> sharing_listeners(const PortBinding& binding) {
  std::vector<std::string> out{listening_name(binding)};
  if (!is_taken(listening_name(binding, 1))) return out;
  if (!is_taken(out.front())) out.clear();
  for (unsigned sharer = 1; sharer < kMaxSharingListeners; ++sharer) {
    std::string name = listening_name(binding, sharer);
    if (is_taken(name)) out.push_back(std::move(name));
  }
  return out;
}

bool is_listener_name_taken(const PortBinding& destination) {
  const auto bindings = listener_bindings(destination);
  return std::any_of(bindings.begin(), bindings.end(),
                     [](const PortBinding& binding) { return is_taken(listening_name(binding)); });
}

}  // namespace ringsock::soft
