#include "core/device/shm/names/port_reservation.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>

#include "core/base/at_fork.h"
#include "core/base/process_state.h"
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

std::uint32_t random_number() {
  std::uint32_t number = 0;
  if (::getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number)
    number = static_cast<std::uint32_t>(::getpid());
  return number;
}

/// The ports that the kernel gives to connecting sockets.
struct alignas(std::uint64_t) PortRange {  // an atomic without a lock, by clang++, too
  std::uint32_t first;
  std::uint32_t count;

  static PortRange of_kernel() {
    const UniqueFd file(::open("/proc/sys/net/ipv4/ip_local_port_range", O_RDONLY | O_CLOEXEC));
    std::array<char, 32> text{};
    unsigned first = 0;
    unsigned last = 0;
    const bool told = file && ::read(file.get(), text.data(), text.size() - 1) > 0 &&
                      std::sscanf(text.data(), "%u %u", &first, &last) == 2;
    constexpr unsigned kFirstUnprivileged = 1024;
    if (!told || first < kFirstUnprivileged || last < first || last > UINT16_MAX) return {32768, 28232};
    return {first, last - first + 1};
  }
};

/// The numbers that this process chooses for its ports and names. Threads: any.
class PortNumbers {
 public:
  static constexpr ProcessPart kPart = ProcessPart::port_numbers;

  /// Returns ports of the range in an order in which none comes soon again. Each process begins at a place of its own.
  /// @param parity  0: ports that connect(2) prefers; 1: those that bind(2) prefers
  std::uint16_t next_port(std::uint32_t parity) {
    constexpr std::uint32_t kStride = 7919;  // a prime: the numbers of other processes lie elsewhere soon
    if (begun_at_.load(std::memory_order_relaxed) != fork_generation()) {
      begun_at_.store(fork_generation(), std::memory_order_relaxed);
      place_.store(random_number(), std::memory_order_relaxed);
    }
    const PortRange known = range();
    const std::uint32_t now = place_.fetch_add(kStride, std::memory_order_relaxed);
    const std::uint32_t pairs = std::max(known.count / 2, 1U);
    return static_cast<std::uint16_t>(known.first + std::min(now % pairs * 2 + parity, known.count - 1));
  }
  /// Returns whether next_port() may return the port.
  bool may_be(std::uint16_t port) {
    const PortRange known = range();
    return port >= known.first && port - known.first < known.count;
  }
  /// Returns a number that other processes of this host probably do not use; a clash only costs another try.
  std::uint32_t unlikely_number() { return unlikely_.fetch_add(1, std::memory_order_relaxed); }

 private:
  PortRange range() {
    PortRange known = range_.load(std::memory_order_relaxed);
    if (known.count == 0) range_.store(known = PortRange::of_kernel(), std::memory_order_relaxed);
    return known;
  }

  std::atomic<PortRange> range_{PortRange{0, 0}};
  std::atomic<std::uint32_t> place_{0};
  std::atomic<unsigned> begun_at_{~0U};  ///< fork_generation(): a child would follow its parent's numbers
  std::atomic<std::uint32_t> unlikely_{random_number()};
};

/// Returns whether every kernel socket that holds the port belongs to this user.
bool held_by_own_user(const PortBinding& where) { return owns_port(::geteuid(), where) && is_own_uid(::geteuid()); }

}  // namespace

Result<UniqueFd> make_link_socket() {
  UniqueFd out = out_of_the_way(UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
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

Status PortReservation::bind_ephemeral(PortSpace space, const SocketAddress& target) {
  if (bound_) return Error{EINVAL, "bind: bound already"};
  binding_ = {space, canonical_address(target), false};
  binding_.address.set_port(0);
  const auto held = shared_ >= 0 ? socket_name(shared_) : Error{EINVAL, "no socket"};
  const bool is_free = space == PortSpace::tcp && held && held->port() == 0;
  Status done = is_free ? take_number(target.port()) : bind_kernel(binding_.address, {});
  if (done && !named_) done = bind_name();
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
    name_ = bound_name(binding_, reuse_, process_state<PortNumbers>().unlikely_number());
    const AbstractAddress name(name_);
    if (::bind(socket->get(), name.get(), name.length) == 0) break;
    if (errno != EADDRINUSE) return Error::last("bind AF_UNIX");
  }
  named_ = std::move(*socket);
  return ok();
}

bool is_number_taken(PortSpace space, const SocketAddress& address) {
  if (!process_state<PortNumbers>().may_be(address.port())) return false;
  const auto is_named = [space](const SocketAddress& holder) {
    const auto probe = make_link_socket();
    const AbstractAddress name(bound_name({space, holder, false}, false, 0));
    return probe && ::bind(probe->get(), name.get(), name.length) != 0 && errno == EADDRINUSE;
  };
  const SocketAddress wanted = canonical_address(address);
  if (!wanted.is_wildcard()) return is_named(wanted);
  const bool is_v6 = wanted.family() == AF_INET6;
  return is_named(SocketAddress::v4(INADDR_LOOPBACK, wanted.port())) ||
         (is_v6 && is_named(SocketAddress::v6(in6addr_loopback, wanted.port())));
}

/// Takes a number and its name. A port that the kernel gives would be free again for others as soon as the connection's
/// descriptor replaces the kernel's socket; the name stays with the connection. Names that others hold, perhaps to be
/// in the way, only cost tries: in the end a number is taken beside another name. The destination's own number would
/// make the connection one with itself.
Status PortReservation::take_number(std::uint16_t not_this) {
  constexpr int kTries = 16;
  auto socket = make_link_socket();
  if (!socket) return socket.error();
  // A thread that has changed its network namespace since would bind the name in the wrong one.
  if (!share_network(shared_, socket->get())) return Error{EADDRNOTAVAIL, "bind: network namespace"};
  for (int i = 0; i < kTries; ++i) {
    const std::uint16_t port = process_state<PortNumbers>().next_port(i < kTries / 2 ? 0 : 1);
    if (port == not_this) continue;
    binding_.address.set_port(port);
    name_ = bound_name(binding_, false, 0);
    const AbstractAddress name(name_);
    if (::bind(socket->get(), name.get(), name.length) == 0) {
      named_ = std::move(*socket);
      return ok();
    }
    if (errno != EADDRINUSE) return Error::last("bind AF_UNIX");
  }
  return binding_.address.port() != 0 ? ok() : bind_kernel(binding_.address, {});
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
