#include "preload/hand_over.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <map>

#include "core/base/log.h"
#include "core/base/signals_blocked.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/sleeper.h"
#include "core/runtime/statistics.h"
#include "librsocket/family_record.h"
#include "preload/door.h"
#include "preload/relay.h"
#include "preload/route.h"

namespace ringsock::preload {

namespace {

using runtime::Endpoint;
using runtime::Ref;

/// The end for the other program, and the end for the relay.
struct SocketPair {
  UniqueFd theirs;
  UniqueFd relays;
};

Result<SocketAddress> name_of(int (*call)(int, sockaddr*, socklen_t*), int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (call(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return Error::last("hand-over: name");
  return SocketAddress::from(reinterpret_cast<const sockaddr*>(&storage), length);
}

void set_option(int fd, int level, int name) {
  const int on = 1;
  real.setsockopt(fd, level, name, &on, sizeof on);
}

bool bind_to(int fd, const SocketAddress& address) { return real.bind(fd, address.get(), address.length()) == 0; }

/// The peer's port is the relay's if the kernel allows: then getpeername(2) tells what it told before.
Status bind_as(int relays, const SocketAddress& peer) {
  set_option(relays, SOL_SOCKET, SO_REUSEADDR);
  SocketAddress any_port = peer;
  any_port.set_port(0);
  if (!bind_to(relays, peer) && !bind_to(relays, any_port)) return Error::last("hand-over: bind");
  return ok();
}

/// Over TCP between the two addresses of the connection.
Result<SocketPair> tcp_pair(const SocketAddress& local, const SocketAddress& peer) {
  UniqueFd listener(real.socket(local.family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  UniqueFd relays(real.socket(local.family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!listener || !relays) return Error::last("hand-over: socket");
  SocketAddress any_port = local;
  any_port.set_port(0);
  if (!bind_to(listener.get(), any_port) || real.listen(listener.get(), 1) != 0)
    return Error::last("hand-over: listen");
  if (Status bound = bind_as(relays.get(), peer); !bound) return bound.error();
  auto meeting_point = name_of(real.getsockname, listener.get());
  if (!meeting_point) return meeting_point.error();
  if (::connect(relays.get(), meeting_point->get(), meeting_point->length()) != 0)
    return Error::last("hand-over: connect");
  auto expected = name_of(real.getsockname, relays.get());
  UniqueFd theirs(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!theirs) return Error::last("hand-over: accept");
  auto caller = name_of(real.getpeername, theirs.get());
  if (!expected || !caller || !(*expected == *caller)) return Error{EPERM, "hand-over: somebody else was faster"};
  set_option(theirs.get(), IPPROTO_TCP, TCP_NODELAY);
  set_option(relays.get(), IPPROTO_TCP, TCP_NODELAY);
  return SocketPair{std::move(theirs), std::move(relays)};
}

/// What the application has set, and the kernel socket can do.
void copy_options(rs::StreamSocket& socket, int theirs) {
  struct Option {
    int level;
    int name;
  };
  static constexpr std::array kOptions{
      Option{SOL_SOCKET, SO_RCVTIMEO},    Option{SOL_SOCKET, SO_SNDTIMEO},  Option{SOL_SOCKET, SO_LINGER},
      Option{SOL_SOCKET, SO_KEEPALIVE},   Option{SOL_SOCKET, SO_OOBINLINE}, Option{IPPROTO_TCP, TCP_KEEPIDLE},
      Option{IPPROTO_TCP, TCP_KEEPINTVL}, Option{IPPROTO_TCP, TCP_KEEPCNT}, Option{IPPROTO_TCP, TCP_USER_TIMEOUT},
  };
  for (const Option& option : kOptions) {
    std::array<std::byte, 64> value;
    auto length = static_cast<socklen_t>(value.size());
    if (socket.get_option(option.level, option.name, value.data(), &length))
      real.setsockopt(theirs, option.level, option.name, value.data(), length);
  }
}

/// Where there is no TCP, a UNIX-domain socket still carries the bytes.
Result<SocketPair> make_pair(rs::StreamSocket& socket) {
  auto local = socket.local_name();
  auto peer = socket.last_peer();
  if (!local || !peer) return Error{ENOTCONN, "hand-over: not connected"};
  auto pair = tcp_pair(*local, *peer);
  if (!pair) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return Error::last("hand-over: socketpair");
    pair = SocketPair{UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
  // As the application left its descriptor.
  const int flags = real.fcntl(pair->theirs.get(), F_GETFL, 0);
  if (socket.is_nonblocking()) real.fcntl(pair->theirs.get(), F_SETFL, flags | O_NONBLOCK);
  copy_options(socket, pair->theirs.get());
  return pair;
}

// -- the relay's process
// -----------------------------------------------------------------------------------------------

void close_all_but(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  unsigned first = 0;
  for (const int fd : kept) {
    const auto number = static_cast<unsigned>(fd);
    if (number > first) real.close_range(first, number - 1, 0);
    first = number + 1;
  }
  real.close_range(first, ~0U, 0);
}

[[noreturn]] void run_relay(const std::vector<RelayedConnection>& connections) {
  // What the application does to its processes and terminals is none of ours.
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  set_log_level(LogLevel::none);  // descriptor 2 is not what it was
  ::prctl(PR_SET_NAME, "ringsock-relay");
  [[maybe_unused]] const int moved = ::chdir("/");
  std::vector<const Endpoint*> ours;
  std::vector<int> kept{runtime::thread_bell(), own_door_number()};
  for (const auto& connection : connections) {
    if (const Lookup ring = fd_table().find(connection.ring)) ours.push_back(&*ring);
    kept.push_back(connection.ring);
    kept.push_back(connection.kernel);
    if (connection.at_once) kept.push_back(connection.theirs);
  }
  std::erase(kept, -1);
  // Of all other sockets this process is no holder.
  runtime::fork_registry().try_for_each([&](Endpoint& endpoint) {
    if (std::find(ours.begin(), ours.end(), &endpoint) == ours.end()) endpoint.process_ends();
  });
  close_all_but(std::move(kept));
  relay(connections);
  rs::leave_families();
  real._exit(0);
  __builtin_unreachable();
}

/// A grandchild, so that the application hears and sees nothing of it.
Status start_relay(const std::vector<RelayedConnection>& connections) {
  const SignalsBlocked blocked;  // SIGCHLD for the child in between
  sigset_t pending_before;
  ::sigpending(&pending_before);
  const pid_t between = ::fork();
  if (between < 0) return Error::last("hand-over: fork");
  if (between == 0) {
    const pid_t process = ::fork();
    if (process == 0) run_relay(connections);
    rs::leave_families();
    real._exit(process < 0 ? 1 : 0);
  }
  int status = 0;
  while (::waitpid(between, &status, 0) < 0 && errno == EINTR) {
  }
  if (sigismember(&pending_before, SIGCHLD) == 0) {
    sigset_t child_signal;
    sigemptyset(&child_signal);
    sigaddset(&child_signal, SIGCHLD);
    const timespec none{};
    ::sigtimedwait(&child_signal, nullptr, &none);
  }
  return status == 0 ? ok() : Status(Error{EAGAIN, "hand-over: fork"});
}

}  // namespace

namespace {
void for_those_at_once(const std::vector<RelayedConnection>& relayed, auto visit) {
  for (const RelayedConnection& one : relayed) {
    const Ref endpoint = one.at_once ? fd_table().get(one.ring) : Ref();
    if (auto* const socket = endpoint ? ring_connection(*endpoint) : nullptr) visit(*socket);
  }
}
}  // namespace

rs::StreamSocket* ring_connection(Endpoint& endpoint) {
  auto* const socket = dynamic_cast<rs::StreamSocket*>(&endpoint);
  auto* const dual = dynamic_cast<DualSocket*>(&endpoint);
  if (socket == nullptr || socket->has_left_to_kernel() || (dual != nullptr && dual->is_kernel_socket()))
    return nullptr;
  return socket->last_peer() ? socket : nullptr;
}

Result<std::vector<UniqueFd>> hand_over(std::span<const HandOver> connections) {
  std::vector<UniqueFd> theirs;
  std::vector<UniqueFd> relays;
  std::vector<RelayedConnection> relayed;
  for (const HandOver& connection : connections) {
    const Ref endpoint = fd_table().get(connection.fd);
    auto* const socket = endpoint ? ring_connection(*endpoint) : nullptr;
    if (socket == nullptr) return Error{ENOTCONN, "hand-over"};
    const auto known = std::find_if(relayed.begin(), relayed.end(),
                                    [&](const RelayedConnection& one) { return one.ring == socket->descriptor(); });
    if (known != relayed.end()) {  // the same connection again
      theirs.emplace_back(real.fcntl(known->theirs, F_DUPFD_CLOEXEC, 0));
      if (!theirs.back()) return Error::last("hand-over: dup");
      continue;
    }
    auto pair = make_pair(*socket);
    if (!pair) return pair.error();
    runtime::process_statistics.count_kernel_connected(runtime::KernelReason::handed_over);
    relayed.push_back({socket->descriptor(), pair->relays.get(), connection.at_once, pair->theirs.get()});
    theirs.push_back(std::move(pair->theirs));
    relays.push_back(std::move(pair->relays));
  }
  bool is_ours = true;
  for_those_at_once(relayed, [&](rs::StreamSocket& socket) { is_ours = is_ours && socket.hand_on(); });
  const Status started =
      is_ours ? start_relay(relayed) : Status(Error{EBUSY, "hand-over: another process uses the connection"});
  if (!started) {
    for_those_at_once(relayed, [](rs::StreamSocket& socket) { socket.take_back(); });
    return started.error();
  }
  return theirs;
}

// -- exec
// --------------------------------------------------------------------------------------------------------------

namespace {

struct Kept {
  Ref endpoint;
  std::vector<int> numbers;
};

bool closes_on_exec(const rs::StreamSocket& socket, int fd) {
  if (socket.owns_descriptor(fd)) return socket.close_on_exec.load();
  return (real.fcntl(fd, F_GETFD, 0) & FD_CLOEXEC) != 0;
}

/// The ring connections that the application keeps, and the numbers under which it does.
std::vector<Kept> kept_connections() {
  std::map<Endpoint*, Kept> found;
  fd_table().for_each([&](int fd, Endpoint& endpoint) {
    Kept& one = found[&endpoint];
    if (!one.endpoint) one.endpoint = Ref::share(endpoint);
    one.numbers.push_back(fd);
  });
  std::vector<Kept> kept;
  for (auto& [endpoint, one] : found) {
    auto* const socket = ring_connection(*endpoint);
    if (socket == nullptr) continue;
    std::erase_if(one.numbers, [&](int fd) { return closes_on_exec(*socket, fd); });
    if (!one.numbers.empty()) kept.push_back(std::move(one));
  }
  return kept;
}

/// Of connections that other processes have, too: those that are no leaks.
bool is_meant_for_the_program(const Kept& kept) {
  if (static_cast<rs::StreamSocket&>(*kept.endpoint).keeper.load() == ::getpid()) return true;
  return std::any_of(kept.numbers.begin(), kept.numbers.end(), [](int fd) { return fd <= STDERR_FILENO; });
}

/// A program that leaks its connections into others would get a relay for each of them. Those are not wanted there.
void drop_leaks(std::vector<Kept>& kept) {
  constexpr std::ptrdiff_t kMost = 8;
  const auto may_be_leak = [](const Kept& one) {
    return !is_meant_for_the_program(one) && static_cast<rs::StreamSocket&>(*one.endpoint).is_shared();
  };
  const auto leaks = std::count_if(kept.begin(), kept.end(), may_be_leak);
  if (leaks <= kMost) return;
  log_info("exec: %d connections that another process has open, too, are closed", static_cast<int>(leaks));
  std::erase_if(kept, may_be_leak);
}

/// From now on these numbers are `replacement`; the connection is the relay's.
void replace(const Kept& kept, const UniqueFd& replacement) {
  for (const int fd : kept.numbers) [[maybe_unused]] const Ref gone = fd_table().remove(fd);
  std::vector<int> closed_by_exec;
  while (const auto other = fd_table().number_of(*kept.endpoint)) {
    const Ref gone = fd_table().remove(*other);
    closed_by_exec.push_back(*other);
  }
  kept.endpoint->close();
  for (const int fd : kept.numbers) real.dup2(replacement.get(), fd);
  // It may fail.
  for (const int fd : closed_by_exec) real.dup3(replacement.get(), fd, O_CLOEXEC);
}

void restore_kernel_flags() {
  std::vector<int> blocking;
  fd_table().for_each([&](int fd, Endpoint& endpoint) {
    auto* const dual = dynamic_cast<DualSocket*>(&endpoint);
    // Those who share a listener need it as it is.
    if (dual != nullptr && dual->is_kernel_socket() && !dual->is_nonblocking() && !dual->is_shared()) {
      blocking.push_back(fd);
    }
  });
  for (const int fd : blocking) real.fcntl(fd, F_SETFL, real.fcntl(fd, F_GETFL, 0) & ~O_NONBLOCK);
}

/// A connect that is under way on a ring: it is connected, or the kernel's, before the next program has it.
void finish_connecting() {
  std::vector<Ref> connecting;
  fd_table().for_each([&](int fd, Endpoint& endpoint) {
    auto* const dual = dynamic_cast<DualSocket*>(&endpoint);
    if (dual != nullptr && dual->is_connecting_on_ring() && !dual->is_shared() && !closes_on_exec(*dual, fd))
      connecting.push_back(Ref::share(endpoint));
  });
  // A ring gives up after its patience.
  const Nanos end = monotonic_now() + std::chrono::seconds(1);
  for (const Ref& one : connecting) {
    auto& dual = static_cast<DualSocket&>(*one);
    while (dual.is_connecting_on_ring() && monotonic_now() < end) {
      [[maybe_unused]] const std::uint32_t events = dual.ready();
      if (dual.is_connecting_on_ring()) ::usleep(200);
    }
  }
}

// -- clients that nobody has accepted
// ------------------------------------------------------------------------------------------------------------

/// Listeners on rings that the next program gets. What waits at one that other processes have, too, is theirs.
std::vector<Ref> kept_listeners() {
  std::vector<Ref> kept;
  fd_table().for_each([&](int fd, Endpoint& endpoint) {
    auto* const dual = dynamic_cast<DualSocket*>(&endpoint);
    if (dual != nullptr && dual->listens_on_ring() && !dual->is_shared() && !closes_on_exec(*dual, fd))
      kept.push_back(Ref::share(endpoint));
  });
  return kept;
}

/// A kernel connection to the listener, from where the client came from and to where it went. It waits in the kernel's
/// backlog.
Result<UniqueFd> connect_as(rs::StreamSocket& client, const SocketAddress& peer) {
  const auto local = client.local_name();
  if (!local) return local.error();
  UniqueFd relays(real.socket(local->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!relays) return Error::last("hand-over: socket");
  if (Status bound = bind_as(relays.get(), peer); !bound) return bound.error();
  if (real.connect(relays.get(), local->get(), local->length()) != 0 && errno != EINPROGRESS)
    return Error::last("hand-over: connect");
  set_option(relays.get(), IPPROTO_TCP, TCP_NODELAY);
  return relays;
}

/// Clients that a ring has answered for this program are the next one's to accept: from the kernel, with a relay
/// between.
void hand_over_waiting_clients() {
  std::vector<RelayedConnection> relayed;
  std::vector<UniqueFd> relays;
  for (const Ref& listener : kept_listeners()) {
    SocketAddress peer;
    while (const auto ring = static_cast<rs::StreamSocket&>(*listener).accept_waiting(peer, SOCK_CLOEXEC)) {
      const Ref client = fd_table().get(*ring);
      auto connected = client ? connect_as(static_cast<rs::StreamSocket&>(*client), peer) : Error{EBADF, "hand-over"};
      if (!connected) {
        log_warn("exec: a client that nobody has accepted is lost: %s", connected.error().where);
        static_cast<void>(runtime::close_descriptor(*ring));
        continue;
      }
      relayed.push_back({*ring, connected->get(), true, -1});
      relays.push_back(*std::move(connected));
    }
  }
  if (relayed.empty()) return;
  if (Status started = start_relay(relayed); !started)
    log_warn("exec: clients that nobody has accepted are lost: %s", started.error().where);
  for (const RelayedConnection& one : relayed) static_cast<void>(runtime::close_descriptor(one.ring));
}

}  // namespace

namespace {

/// What other processes may go on with while the next program does, or after this one has closed it.
void share_by_kernel(const std::vector<Kept>& kept) {
  std::vector<Ref> shared;
  for (const Kept& one : kept) {
    const auto& socket = static_cast<rs::StreamSocket&>(*one.endpoint);
    const bool can_be_had = !socket.is_used_elsewhere() || socket.can_follow();
    if (socket.is_shared() && can_be_had && is_meant_for_the_program(one)) shared.push_back(Ref::share(*one.endpoint));
  }
  fd_table().for_each([&](int fd, Endpoint& endpoint) {
    auto* const socket = ring_connection(endpoint);
    if (socket != nullptr && closes_on_exec(*socket, fd) && socket->is_wanted_elsewhere())
      shared.push_back(Ref::share(endpoint));
  });
  if (shared.empty()) return;
  if (const auto done = hand_over_for_good(shared); !done)
    log_warn("exec: connections that other processes have, too, are closed: %s", done.error().where);
}

}  // namespace

void prepare_exec() {
  finish_connecting();
  hand_over_waiting_clients();
  restore_kernel_flags();
  std::vector<Kept> kept = kept_connections();
  share_by_kernel(kept);
  std::erase_if(kept, [](const Kept& one) {
    const auto& socket = static_cast<rs::StreamSocket&>(*one.endpoint);
    return socket.has_left_to_kernel() || socket.is_used_elsewhere();
  });
  drop_leaks(kept);
  if (kept.empty()) return;
  std::vector<HandOver> wanted;
  wanted.reserve(kept.size());
  for (const Kept& one : kept) wanted.push_back({one.numbers.front(), is_meant_for_the_program(one)});
  auto replacements = hand_over(wanted);
  if (!replacements) {
    log_warn("exec: %d connections are closed for the new program: %s", static_cast<int>(kept.size()),
             replacements.error().where);
    return;
  }
  for (std::size_t i = 0; i < kept.size(); ++i) replace(kept[i], (*replacements)[i]);
}

// -- for good
// ----------------------------------------------------------------------------------------------------------

Result<std::vector<UniqueFd>> hand_over_for_good(std::span<const Ref> connections) {
  std::vector<HandOver> wanted;
  std::vector<const Ref*> handed_over;
  for (const Ref& one : connections) {
    auto& socket = static_cast<rs::StreamSocket&>(*one);
    if (Status followed = follow(socket); !followed) return followed.error();
    if (socket.has_left_to_kernel()) continue;
    wanted.push_back({socket.descriptor(), true});
    handed_over.push_back(&one);
  }
  auto replacements = hand_over(wanted);
  if (!replacements) return replacements.error();
  for (std::size_t i = 0; i < handed_over.size(); ++i) {
    move_to_kernel(static_cast<rs::StreamSocket&>(**handed_over[i]), (*replacements)[i].get());
  }
  return replacements;
}

void hand_over_everything() {
  std::vector<Ref> connections;
  fd_table().for_each([&](int fd, Endpoint& endpoint) {
    auto* const socket = ring_connection(endpoint);
    if (socket != nullptr && socket->descriptor() == fd && !socket->is_used_elsewhere())
      connections.push_back(Ref::share(endpoint));
  });
  if (connections.empty()) return;
  if (const auto done = hand_over_for_good(connections); !done)
    log_warn("%d connections on a ring cannot become the kernel's: %s", static_cast<int>(connections.size()),
             done.error().where);
}

}  // namespace ringsock::preload
