#include "core/device/shm/names/port_owner.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <string_view>

#include "core/base/process_state.h"
#include "core/base/refusals.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/names/connect_target.h"
#include "core/device/shm/names/pid_namespace.h"
#include "core/device/shm/names/sock_diag.h"

namespace ringsock::soft {
namespace {

constexpr uid_t kOverflowUid = 65534;  // the default of /proc/sys/kernel/overflowuid

/// Returns whether a uid_map maps every uid of the host to itself, as in the initial user namespace.
bool is_whole(std::string_view map) {
  const std::size_t inside = map.find_first_not_of(' ');
  const std::size_t outside = map.find_first_not_of(' ', map.find(' ', inside));
  const std::size_t count = map.find_first_not_of(' ', map.find(' ', outside));
  if (inside == map.npos || outside == map.npos || count == map.npos) return false;
  return map.substr(inside, 2) == "0 " && map.substr(outside, 2) == "0 " && map.substr(count, 10) == "4294967295";
}

struct UidMap {
  static constexpr ProcessPart kPart = ProcessPart::uid_map;
  std::atomic<pid_t> process_with_real_uids{0};
};

[[gnu::constructor]] void start() { process_state<UidMap>(); }

bool sees_real_uids() {
  std::atomic<pid_t>& sees_them = process_state<UidMap>().process_with_real_uids;
  const UniqueFd file(::open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC));
  // After a chroot(2) the earlier result is used for this process. Its children may be in another user namespace.
  if (!file) return sees_them.load(std::memory_order_relaxed) == ::getpid();
  char text[128];
  const ssize_t got = ::read(file.get(), text, sizeof text);
  const bool does = got > 0 && is_whole({text, static_cast<std::size_t>(got)});
  sees_them.store(does ? ::getpid() : 0, std::memory_order_relaxed);
  return does;
}

/// Returns the port below which only privileged processes may bind.
std::uint16_t first_unprivileged_port() {
  constexpr std::uint16_t kUsual = 1024;
  const UniqueFd file(::open("/proc/sys/net/ipv4/ip_unprivileged_port_start", O_RDONLY | O_CLOEXEC));
  char text[16];
  const ssize_t got = file ? ::read(file.get(), text, sizeof text) : -1;
  std::uint16_t port = kUsual;
  if (got > 0) std::from_chars(text, text + got, port);
  return port;
}

bool names_one_user(uid_t uid) { return uid != kOverflowUid || sees_real_uids(); }

}  // namespace

void look_at_uid_map() { static_cast<void>(sees_real_uids()); }

Result<PeerIdentity> identify_peer(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return Error::last("getsockopt SO_PEERCRED");
  return PeerIdentity{peer.pid, peer.uid, is_own_uid(peer.uid)};
}

std::optional<PeerProcess> kept_for(const PeerIdentity& peer) {
  if (peer.pid <= 0) return std::nullopt;
  return PeerProcess{peer.pid, peer.uid};
}

std::optional<PeerProcess> offered_to(const PeerIdentity& listener) {
  if (listener.pid <= 0) return std::nullopt;
  return PeerProcess{listener.same_user ? kAnyProcess : listener.pid, listener.uid};
}

bool owns_port(uid_t uid, const PortBinding& where) {
  const auto holders = kernel_holders(where.space, where.address.port());
  if (!holders) return false;
  bool found = false;
  for (const PortHolder& holder : *holders) {
    if (!overlap(holder.binding, where)) continue;
    if (holder.uid != uid) return false;
    found = true;
  }
  return found;
}

bool is_own_uid(uid_t uid) { return uid == ::geteuid() && names_one_user(uid); }

bool is_trusted_on_port(uid_t uid, const PortBinding& where, const Result<uid_t>& owner, Unproven unproven) {
  if (!names_one_user(uid)) return false;
  if (owner) return *owner == uid;
  if (owner.error().code != ENOENT && unproven == Unproven::refuse) return false;
  return is_own_uid(uid) || owns_port(uid, where);
}

bool is_trusted_on_port(const PeerIdentity& peer, const PortBinding& where, const Result<uid_t>& owner,
                        Unproven unproven) {
  if (peer.pid == 0 || !is_trusted_on_port(peer.uid, where, owner, unproven)) return false;
  return may_be_of_our_pid_namespace(peer.pid, monotonic_now());
}

bool ClientAddresses::are_true(const PeerIdentity& peer, const SocketAddress& source, const SocketAddress& destination,
                               int network_of, Nanos now) {
  const bool one_family = source.family() == destination.family();
  if (one_family && source != destination && may_bind(peer, source.port(), now) && is_ours(source, network_of, now) &&
      is_ours(destination, network_of, now)) {
    return true;
  }
  count_refusal(Refusal::address);
  return false;
}

bool ClientAddresses::is_ours(SocketAddress host, int network_of, Nanos now) {
  // The last address is a broadcast address, which bind(2) refuses.
  if (host.is_loopback()) return host.family() != AF_INET || (ntohl(host.in4().sin_addr.s_addr) & 0xFFFFFF) != 0xFFFFFF;
  host.set_port(0);
  const auto is_it = [&](const Known& known) { return known.host == host && now < known.until; };
  if (std::any_of(known_.begin(), known_.end(), is_it)) return true;
  if (!check_local(host, network_of)) return false;
  known_[next_++ % known_.size()] = {host, now + kBelieved};
  return true;
}

bool ClientAddresses::may_bind(const PeerIdentity& peer, std::uint16_t port, Nanos now) {
  if (now >= ports_until_) {
    first_free_port_ = first_unprivileged_port();
    ports_until_ = now + kBelieved;
  }
  if (port >= first_free_port_) return true;
  // The kernel requires a capability in the user namespace of the network; root of another user namespace does not have
  // it.
  return peer.uid == 0 && peer.pid > 0 && sees_real_uids() && is_of_our_pid_namespace(peer.pid, now) &&
         may_bind_privileged_ports(peer.pid);
}

}  // namespace ringsock::soft
