#include "libvmacompat/udp/port_claims.h"

#include <poll.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/refusals.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "libvmacompat/udp/foreign_socket.h"
#include "libvmacompat/udp/udp_socket.h"

namespace ringsock::vma {

namespace {

/// How long a process of our own user, or of root, may take to leave its rings. On a busy host it is scheduled late,
/// and datagrams that come before it has left go to it alone.
constexpr Nanos kPatience = std::chrono::seconds(1);
/// The same for processes of other users, which may stay silent on purpose.
constexpr Nanos kPatienceWithStrangers = std::chrono::milliseconds(20);
/// The least time between two questions that visitors cause. Each costs the service thread a walk over all UDP sockets
/// of the host.
constexpr Nanos kVisitInterval = std::chrono::milliseconds(5);
/// Most visitors served at once; others wait for the next look.
constexpr std::size_t kMostVisitors = 64;
/// Most claims of one user that are visited.
constexpr std::size_t kMostClaimsOfUser = 16;
/// Most users whose claims are looked for.
constexpr std::size_t kMostUsers = 64;
/// Most sockets of a port, and most listeners of the host, that are looked at. A count and not a time: on a busy host
/// an answer takes longer and is as good.
constexpr std::size_t kMostHolders = 4096;
constexpr std::size_t kMostNames = 32768;

std::string prefix_of(std::uint16_t port) { return "ringsock-udp-port-" + std::to_string(port) + "-"; }

struct AbstractName {
  explicit AbstractName(std::string_view text) {
    const std::size_t size = std::min(text.size(), sizeof address.sun_path - 1);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, text.data(), size);  // abstract names begin with a zero byte
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t length;
};

UniqueFd unix_socket() {
  UniqueFd socket = out_of_the_way(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (socket) refuse_descriptors(socket.get());
  return socket;
}

UniqueFd listen_for_visitors(std::uint16_t port) {
  std::array<unsigned, 4> random{};
  if (::getrandom(random.data(), sizeof random, GRND_NONBLOCK) != sizeof random) return {};
  std::array<char, 40> suffix{};
  std::snprintf(suffix.data(), suffix.size(), "%08x%08x%08x%08x", random[0], random[1], random[2], random[3]);
  const AbstractName name(prefix_of(port) + suffix.data());
  UniqueFd listener = unix_socket();
  if (!listener || ::bind(listener.get(), name.get(), name.length) != 0 || ::listen(listener.get(), SOMAXCONN) != 0)
    return {};
  return listener;
}

/// Adds this process's UDP sockets, including those that another thread is just closing: these are in no descriptor
/// table any more, but still in the kernel.
bool add_udp_sockets(std::set<ino_t>& inodes) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const bool visited = runtime::fork_registry().try_for_each([&](const runtime::Endpoint& endpoint) {
      if (const auto* const socket = dynamic_cast<const UdpSocket*>(&endpoint)) inodes.insert(socket->inode());
    });
    if (visited) return true;
    ::sched_yield();
  }
  return false;  // called in a signal handler that has interrupted the user of the list
}

/// Returns the inodes of this process's sockets. Called only when a port has several sockets.
Result<std::set<ino_t>> own_inodes() {
  std::set<ino_t> out;
  if (!add_udp_sockets(out)) return Error{EDEADLK, "own sockets"};
  runtime::fd_table().for_each([&](int fd, const runtime::Endpoint&) {
    struct stat about {};
    if (::fstat(fd, &about) == 0) out.insert(about.st_ino);
  });
  return out;
}

/// The sockets of a port that belong to other processes.
struct OtherHolders {
  std::vector<PortPlace> places;
  std::set<uid_t> users;
  bool are_all = true;  ///< false: there are too many sockets to look at, so some are other processes'
};

Result<OtherHolders> ask_for_others(SocketDiagnosis& kernel, std::uint16_t port) {
  std::vector<PortHolder> all;
  const Status asked = kernel.holders(port, [&](const PortHolder& holder) {
    all.push_back(holder);
    return all.size() < kMostHolders;
  });
  if (!asked) return asked.error();
  OtherHolders others;
  others.are_all = all.size() < kMostHolders;
  if (all.size() <= 1) {  // it is the caller's own
    return others;
  }
  const auto own = own_inodes();
  if (!own) return own.error();
  for (const PortHolder& holder : all) {
    if (own->contains(holder.inode)) continue;
    others.places.push_back(holder.place);
    if (others.users.size() < kMostUsers) others.users.insert(holder.uid);
  }
  return others;
}

bool is_concerned(const PortPlace& place, const OtherHolders& others) {
  return !others.are_all || std::any_of(others.places.begin(), others.places.end(),
                                        [&](const PortPlace& other) { return compete(place, other); });
}

std::optional<uid_t> user_of_peer(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer.uid;
}

/// Returns the names of processes whose rings may take the port. A name whose user has no socket of the port is no
/// claim.
std::vector<std::string> claims_of(const std::set<uid_t>& users, SocketDiagnosis& kernel, std::uint16_t port) {
  const std::string prefix = prefix_of(port);
  std::map<uid_t, std::size_t> found;
  std::vector<std::string> names;
  std::size_t seen = 0;
  const Status asked = kernel.names([&](const NameHolder& holder) {
    if (++seen > kMostNames) return false;
    if (holder.name.compare(0, prefix.size(), prefix) != 0) return true;
    if (!users.contains(holder.uid)) {
      count_refusal(Refusal::port_claim);
    } else if (++found[holder.uid] <= kMostClaimsOfUser) {
      names.push_back(holder.name);
    }
    return true;
  });
  if (!asked) log_info("UDP port %u: others cannot be told: %s", port, asked.error().where);
  return names;
}

struct Visit {
  UniqueFd connection;
  Nanos patience;
};

/// Connects to a claim. Returns no connection when the claim belongs to a user who does not have the port.
Visit visit(const std::string& claim, const std::set<uid_t>& users) {
  const AbstractName name(claim);
  UniqueFd visitor = unix_socket();
  if (!visitor || ::connect(visitor.get(), name.get(), name.length) != 0) return {};
  const auto user = user_of_peer(visitor.get());
  if (user && users.contains(*user)) {
    const bool is_trusted = *user == ::geteuid() || *user == 0;
    return {std::move(visitor), is_trusted ? kPatience : kPatienceWithStrangers};
  }
  count_refusal(Refusal::port_claim);
  close_foreign_socket(std::move(visitor));
  return {};
}

/// Waits until each process has left, which ends its connection, or its time is over.
void tell_to_leave(const std::vector<std::string>& claims, const std::set<uid_t>& users) {
  std::vector<Visit> visits;
  for (const std::string& claim : claims) {
    if (Visit one = visit(claim, users); one.connection) visits.push_back(std::move(one));
  }
  const Nanos begin = monotonic_now();
  for (Visit& one : visits) {
    std::array<pollfd, 1> answer{{{one.connection.get(), POLLIN, 0}}};
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(begin + one.patience - monotonic_now()).count();
      const int ended = ::poll(answer.data(), answer.size(), static_cast<int>(std::max<long>(left, 0)));
      if (ended >= 0 || errno != EINTR || left <= 0) break;
    }
    close_foreign_socket(std::move(one.connection));
  }
}

[[gnu::constructor]] void watch_forks() {
  at_fork(
      ForkStep::port_claims, [] { port_claims().before_fork(); }, [] { port_claims().after_fork_in_parent(); },
      [] { port_claims().after_fork_in_child(); });
}

}  // namespace

PortClaims& port_claims() { return process_state<PortClaims>(); }

bool PortClaims::enter(const PortPlace& place, UdpSocket& socket) {
  const std::uint16_t port = place.local.port();
  auto kernel = SocketDiagnosis::open();
  if (!kernel) return false;
  // The listener exists before the kernel is asked, so that of two processes at least one sees the other's socket.
  Claim claim;
  if (!has_claim(place, socket)) claim.listener = listen_for_visitors(port);
  const auto others = ask_for_others(*kernel, port);
  if (others && !is_concerned(place, *others)) {
    claim.kernel = std::make_shared<SocketDiagnosis>(*std::move(kernel));
    return make_claim(place, socket, std::move(claim));
  }
  close_foreign_socket(std::move(claim.listener));
  leave_later(port, socket);
  if (others) {
    tell_to_leave(claims_of(others->users, *kernel, port), others->users);
  } else {
    log_info("UDP port %u: received by the kernel: %s", port, others.error().where);
  }
  return false;
}

/// Adds the socket to an existing claim; returns false when there is none.
bool PortClaims::has_claim(const PortPlace& place, UdpSocket& socket) {
  const std::lock_guard guard(lock_);
  return enter_known(place, socket);
}

/// The same, with the lock held.
bool PortClaims::enter_known(const PortPlace& place, UdpSocket& socket) {
  const auto known = claims_.find(place.local.port());
  if (known == claims_.end()) return false;
  auto& entries = known->second.entries;
  const auto same =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& one) { return one.socket == &socket; });
  if (same == entries.end()) {
    entries.push_back({&socket, place});
  } else {
    same->place = place;
  }
  return true;
}

bool PortClaims::make_claim(const PortPlace& place, UdpSocket& socket, Claim claim) {
  const std::uint16_t port = place.local.port();
  bool is_made = false;
  {
    const std::lock_guard guard(lock_);
    if (enter_known(place, socket)) {  // another thread has made the claim meanwhile
      is_made = true;
    } else if (claim.listener) {
      auto watch = runtime::service_thread().watch(claim.listener.get(), EPOLLIN,
                                                   [this, port](std::uint32_t) { visitors_came(port); });
      if (watch) {
        claim.watch = *watch;
        claim.entries.push_back({&socket, place});
        claims_.emplace(port, std::move(claim));
        return true;
      }
    }
  }
  close_foreign_socket(std::move(claim.listener));
  return is_made;
}

void PortClaims::leave(std::uint16_t port, UdpSocket& socket) {
  Claim ended;  // destroyed without the lock: a running visitors_came() may be waiting for it
  {
    const std::lock_guard guard(lock_);
    const auto claim = claims_.find(port);
    if (claim == claims_.end()) return;
    std::erase_if(claim->second.entries, [&](const Entry& one) { return one.socket == &socket; });
    if (!claim->second.entries.empty()) return;
    ended = std::move(claim->second);
    claims_.erase(claim);
  }
  end(std::move(ended));
}

/// Called with the socket's lock held, which a running visitors_came() may be waiting for.
void PortClaims::leave_later(std::uint16_t port, UdpSocket& socket) {
  remove_entry(port, socket);
  // Without a service thread there is no claim.
  static_cast<void>(runtime::service_thread().schedule(Nanos::zero(), [this, port] { drop_if_unused(port); }));
}

void PortClaims::end(Claim ended) {
  runtime::service_thread().unwatch(ended.watch);
  close_foreign_socket(std::move(ended.listener));
}

/// Ends a claim that no socket uses any more. Runs on the service thread.
void PortClaims::drop_if_unused(std::uint16_t port) {
  Claim ended;
  {
    const std::lock_guard guard(lock_);
    const auto claim = claims_.find(port);
    if (claim == claims_.end() || !claim->second.entries.empty()) return;
    ended = std::move(claim->second);
    claims_.erase(claim);
  }
  end(std::move(ended));
}

void PortClaims::visitors_came(std::uint16_t port) {
  std::vector<UniqueFd> visitors;
  std::vector<std::pair<runtime::Ref, PortPlace>> ours;
  std::shared_ptr<SocketDiagnosis> kernel;
  {
    const std::lock_guard guard(lock_);
    const auto claim = claims_.find(port);
    if (claim == claims_.end()) return;
    while (visitors.size() < kMostVisitors) {
      UniqueFd visitor =
          out_of_the_way(UniqueFd(::accept4(claim->second.listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
      if (!visitor) break;
      visitors.push_back(std::move(visitor));
    }
    for (const Entry& entry : claim->second.entries) {
      if (entry.socket->try_add_ref()) ours.emplace_back(runtime::Ref(entry.socket), entry.place);
    }
    kernel = claim->second.kernel;
  }
  const auto others = ask_for_others(*kernel, port);
  bool any_left = false;
  for (const auto& [socket, place] : ours) {
    if (others && !is_concerned(place, *others)) continue;
    static_cast<UdpSocket&>(*socket).leave_port_to_kernel();
    remove_entry(port, static_cast<UdpSocket&>(*socket));
    any_left = true;
  }
  if (!any_left) ignore_visitors(port, visitors.size());
  for (UniqueFd& visitor : visitors) close_foreign_socket(std::move(visitor));
  drop_if_unused(port);
}

/// Counts visitors that have no socket of the port, and pauses the listener for kVisitInterval.
void PortClaims::ignore_visitors(std::uint16_t port, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) count_refusal(Refusal::port_claim);
  const std::lock_guard guard(lock_);
  const auto claim = claims_.find(port);
  if (claim == claims_.end()) return;
  const auto watch = claim->second.watch;
  runtime::service_thread().pause(watch);
  const auto go_on = [watch] {
    if (Status resumed = runtime::service_thread().resume(watch); !resumed)
      log_warn("a UDP port is not shared any more: %s", resumed.error().where);
  };
  if (!runtime::service_thread().schedule(monotonic_now() + kVisitInterval, go_on)) go_on();
}

void PortClaims::remove_entry(std::uint16_t port, UdpSocket& socket) {
  const std::lock_guard guard(lock_);
  const auto claim = claims_.find(port);
  if (claim != claims_.end())
    std::erase_if(claim->second.entries, [&](const Entry& one) { return one.socket == &socket; });
}

void PortClaims::after_fork_in_child() {
  for (auto& [port, claim] : claims_) claim.listener.reset();  // the parent's, and so are waiting connections
  new (&claims_) Claims;                                       // the watches are the parent's
  lock_.unlock();
}

}  // namespace ringsock::vma
