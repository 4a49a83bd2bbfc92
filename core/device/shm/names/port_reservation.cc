#include "core/device/shm/names/port_reservation.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "core/device/shm/link/rights_gate.h"
#include "core/device/shm/names/port_lookup.h"
#include "core/device/shm/names/port_owner.h"
#include "core/device/shm/names/sock_diag.h"

namespace ringsock::soft {
namespace {

using verbs::PortSpace;

Result<int> socket_option(int socket, int level, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  if (::getsockopt(socket, level, name, &value, &length) != 0) return Error::last("getsockopt");
  return value;
}

Status set_flag(int socket, int level, int name, bool on) {
  const int value = on ? 1 : 0;
  if (::setsockopt(socket, level, name, &value, sizeof value) != 0) return Error::last("setsockopt");
  return ok();
}

Result<SocketAddress> socket_name(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return Error::last("getsockname");
  return SocketAddress::from(reinterpret_cast<const sockaddr*>(&storage), length);
}

bool is_ipv6(int socket) {
  const int saved_errno = errno;
  const auto domain = socket_option(socket, SOL_SOCKET, SO_DOMAIN);
  errno = saved_errno;
  return domain && *domain == AF_INET6;
}

/// Accepts EINVAL of bind(2) on a socket that is already bound to the wanted port.
Status accept_bound_before(int socket, const SocketAddress& wanted) {
  const auto name = socket_name(socket);
  if (!name || name->port() == 0) return Error{EINVAL, "bind"};
  const SocketAddress held = canonical_address(*name);
  const bool covers = held.is_wildcard() || SocketAddress(held) == [&] {
    SocketAddress same_port = wanted;
    same_port.set_port(held.port());
    return same_port;
  }();
  if (!covers || (wanted.port() != 0 && wanted.port() != held.port())) return Error{EINVAL, "bind"};
  return ok();
}

/// Returns a number that other processes of this host probably do not use; a clash only costs another try.
std::uint32_t unlikely_number() {
  static std::atomic<std::uint32_t> counter = [] {
    std::uint32_t start = 0;
    if (::getrandom(&start, sizeof start, GRND_NONBLOCK) != sizeof start)
      start = static_cast<std::uint32_t>(::getpid());
    return start;
  }();
  return counter.fetch_add(1, std::memory_order_relaxed);
}

/// Returns whether every kernel socket that holds the port belongs to this user.
bool held_by_own_user(const PortBinding& where) { return owns_port(::geteuid(), where) && is_own_uid(::geteuid()); }

}  // namespace

Result<UniqueFd> make_link_socket() {
  UniqueFd out(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!out) return Error::last("socket AF_UNIX");
  shut_rights_gate(out.get());
  return out;
}

Status PortReservation::bind(PortSpace space, const SocketAddress& address, Options options) {
  if (bound_) return Error{EINVAL, "bind: bound already"};
  reuse_ = options.reuse_address;
  binding_ = {space, canonical_address(address), options.v6_only};
  if (shared_ >= 0) {
    const auto shares = socket_option(shared_, SOL_SOCKET, SO_REUSEPORT);
    if (!shares) return shares.error();
    shares_port_ = *shares != 0;
  }
  Status kernel = bind_kernel(binding_.address, options);
  // The kernel decides who may share the port.
  bool look_at_names = options.reuse_address && !shares_port_;
  if (!kernel && kernel.error().code == EADDRINUSE && binding_.address.port() != 0 && held_by_own_user(binding_)) {
    kernel = ok();
    look_at_names = true;
  }
  // The name is bound before other names are read, so that of two competing processes at least one sees the other.
  if (kernel) kernel = bind_name();
  if (kernel && look_at_names) kernel = check_names(name_, false);
  if (!kernel) {
    release();
    return kernel;
  }
  bound_ = true;
  return ok();
}

Status PortReservation::bind_ephemeral(PortSpace space, const SocketAddress& host) {
  if (bound_) return Error{EINVAL, "bind: bound already"};
  binding_ = {space, canonical_address(host), false};
  binding_.address.set_port(0);
  Status done = bind_kernel(binding_.address, {});
  if (done) done = bind_name();
  if (!done) {
    release();
    return done;
  }
  bound_ = true;
  return ok();
}

Status PortReservation::bind_kernel(const SocketAddress& address, Options options) {
  SocketAddress wanted = address;
  int socket = shared_;
  if (socket < 0) {
    const int type = binding_.space == PortSpace::tcp ? SOCK_STREAM : SOCK_DGRAM;
    kernel_.reset(::socket(wanted.family(), type | SOCK_CLOEXEC, 0));
    if (!kernel_) return Error::last("socket");
    socket = kernel_.get();
    if (wanted.family() == AF_INET6 && wanted.is_wildcard()) {
      if (Status set = set_flag(socket, IPPROTO_IPV6, IPV6_V6ONLY, options.v6_only); !set) return set;
    }
  }
  if (options.reuse_address) {
    if (Status set = set_flag(socket, SOL_SOCKET, SO_REUSEADDR, true); !set) return set;
  }
  if (socket == shared_ && options.v6_only && wanted.family() == AF_INET6) {
    // The option cannot be changed on a bound socket, and need not be when it is set already.
    const auto before = socket_option(socket, IPPROTO_IPV6, IPV6_V6ONLY);
    if (!before) return before.error();
    if (*before == 0) {
      if (Status set = set_flag(socket, IPPROTO_IPV6, IPV6_V6ONLY, true); !set) return set;
    }
  }
  int refused = ::bind(socket, wanted.get(), wanted.length());
  // An IPv6 socket refuses an IPv4 address as too short.
  if (refused != 0 && errno == EINVAL && wanted.family() == AF_INET && is_ipv6(socket)) {
    wanted = wanted.mapped();
    refused = ::bind(socket, wanted.get(), wanted.length());
  }
  if (refused != 0) {
    if (errno != EINVAL) return Error::last("bind");
    if (Status same = accept_bound_before(socket, address); !same) return same;
  }
  if (address.port() == 0) {
    const auto name = socket_name(socket);
    if (!name) return name.error();
    binding_.address.set_port(name->port());
  }
  return ok();
}

Status PortReservation::bind_name() {
  auto socket = make_link_socket();
  if (!socket) return socket.error();
  // A thread that has changed its network namespace since would bind the name in the wrong one.
  if (shared_ >= 0 && !share_network(shared_, socket->get())) return Error{EADDRNOTAVAIL, "bind: network namespace"};
  for (;;) {
    name_ = bound_name(binding_, reuse_, unlikely_number());
    const AbstractAddress name(name_);
    if (::bind(socket->get(), name.get(), name.length) == 0) break;
    if (errno != EADDRINUSE) return Error::last("bind AF_UNIX");
  }
  named_ = std::move(*socket);
  return ok();
}

Status PortReservation::check_no_other_listener(const std::string& own_name) const {
  return check_names(own_name, true);
}

Status PortReservation::check_names(const std::string& own_name, bool listeners_only) const {
  const auto holders = named_holders(binding_.space, binding_.address.port());
  if (!holders) return Error{EOPNOTSUPP, "bind: cannot see who holds the port"};
  for (const NamedHolder& other : *holders) {
    // Names of other users prove nothing: the kernel protects their ports.
    if (other.text == own_name || other.uid != ::geteuid() || !overlap(other.name.binding, binding_)) continue;
    const bool listens = other.name.role == PortRole::listening;
    const bool both_reuse = reuse_ && other.name.role == PortRole::bound_reusing;
    if (listens || (!listeners_only && !both_reuse)) return Error{EADDRINUSE, "bind: another rsocket has the port"};
  }
  return ok();
}

void PortReservation::release() {
  kernel_.reset();
  named_.reset();
  binding_ = {};
}

}  // namespace ringsock::soft
