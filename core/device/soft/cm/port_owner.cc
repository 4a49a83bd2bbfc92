#include "core/device/soft/cm/port_owner.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string_view>

#include "core/base/unique_fd.h"
#include "core/device/soft/cm/sock_diag.h"

namespace ringsock::soft {
namespace {

constexpr uid_t kOverflowUid = 65534;  // the default of /proc/sys/kernel/overflowuid

/// True when every uid of the host is mapped to itself here, as in the initial user namespace.
bool sees_real_uids() {
  const UniqueFd file(::open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC));
  char text[128];
  const ssize_t got = file ? ::read(file.get(), text, sizeof text) : -1;
  if (got <= 0) return false;
  const std::string_view map(text, static_cast<std::size_t>(got));
  const std::size_t inside = map.find_first_not_of(' ');
  const std::size_t outside = map.find_first_not_of(' ', map.find(' ', inside));
  const std::size_t count = map.find_first_not_of(' ', map.find(' ', outside));
  if (inside == map.npos || outside == map.npos || count == map.npos) return false;
  return map.substr(inside, 2) == "0 " && map.substr(outside, 2) == "0 " && map.substr(count, 10) == "4294967295";
}

bool names_one_user(uid_t uid) { return uid != kOverflowUid || sees_real_uids(); }

}  // namespace

Result<PeerIdentity> identify_peer(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return Error::last("getsockopt SO_PEERCRED");
  return PeerIdentity{peer.pid, peer.uid, is_own_uid(peer.uid)};
}

std::optional<PeerProcess> kept_for(const PeerIdentity& peer) {
  if (!peer.same_user || peer.pid <= 0) return std::nullopt;
  return PeerProcess{peer.pid, peer.uid};
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

bool is_trusted_on_port(const PeerIdentity& peer, const PortBinding& where) {
  return peer.same_user || (names_one_user(peer.uid) && owns_port(peer.uid, where));
}

}  // namespace ringsock::soft
