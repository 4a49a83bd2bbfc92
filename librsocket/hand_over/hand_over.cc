#include "librsocket/hand_over/hand_over.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <map>

#include "core/base/helper_process.h"
#include "core/base/log.h"
#include "core/base/own_duplicate.h"
#include "core/base/raised_limit.h"
#include "core/base/signals_blocked.h"
#include "core/base/sleep_while.h"
#include "core/base/this_thread.h"
#include "core/poll/sleeper.h"
#include "core/poll/socket_calls.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/library_call.h"
#include "core/statistics/statistics.h"
#include "core/transports/kernel_calls.h"
#include "librsocket/family_record.h"
#include "librsocket/hand_over/door.h"
#include "librsocket/hand_over/relay.h"
#include "librsocket/signal_owner.h"

namespace ringsock::rs {

namespace {

using runtime::DescriptionValues;
using runtime::Endpoint;
using runtime::fd_table;
using runtime::Lookup;
using runtime::Ref;
using transports::set_kernel_nonblocking;

/// Repeats `attempt` while it fails with EBUSY: another process may begin to use one of the connections at any moment,
/// and another thread may be handing it on.
template <class Attempt>
auto unless_used_elsewhere(Attempt attempt) {
  constexpr int kMostTurns = 5000;
  constexpr Nanos kBetweenTurns = std::chrono::milliseconds(1);
  auto done = attempt();
  for (int turn = 1; !done && done.error().code == EBUSY && turn < kMostTurns; ++turn) {
    sleep_for(kBetweenTurns);
    done = attempt();
  }
  return done;
}

/// The other program's end, and the relay's end.
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
  ::setsockopt(fd, level, name, &on, sizeof on);
}

bool bind_to(int fd, const SocketAddress& address) { return ::bind(fd, address.get(), address.length()) == 0; }

/// Binds the relay's end to the peer's address, and to its port if the kernel allows that: getpeername(2) then returns
/// the same as before.
Status bind_as(int relays, const SocketAddress& peer) {
  set_option(relays, SOL_SOCKET, SO_REUSEADDR);
  SocketAddress any_port = peer;
  any_port.set_port(0);
  if (!bind_to(relays, peer) && !bind_to(relays, any_port)) return Error::last("hand-over: bind");
  return ok();
}

UniqueFd tcp_socket(int domain, int flags = 0) {
  return out_of_the_way(UniqueFd(::socket(domain, SOCK_STREAM | SOCK_CLOEXEC | flags, IPPROTO_TCP)));
}

/// Makes a TCP connection between the two addresses of the connection.
Result<SocketPair> tcp_pair(const SocketAddress& local, const SocketAddress& peer) {
  UniqueFd listener = tcp_socket(local.family());
  UniqueFd relays = tcp_socket(local.family());
  if (!listener || !relays) return Error::last("hand-over: socket");
  SocketAddress any_port = local;
  any_port.set_port(0);
  if (!bind_to(listener.get(), any_port) || ::listen(listener.get(), 1) != 0) return Error::last("hand-over: listen");
  if (Status bound = bind_as(relays.get(), peer); !bound) return bound.error();
  auto meeting_point = name_of(::getsockname, listener.get());
  if (!meeting_point) return meeting_point.error();
  if (::connect(relays.get(), meeting_point->get(), meeting_point->length()) != 0)
    return Error::last("hand-over: connect");
  auto expected = name_of(::getsockname, relays.get());
  UniqueFd theirs = out_of_the_way(UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  if (!theirs) return Error::last("hand-over: accept");
  auto caller = name_of(::getpeername, theirs.get());
  if (!expected || !caller || !(*expected == *caller)) return Error{EPERM, "hand-over: somebody else was faster"};
  set_option(theirs.get(), IPPROTO_TCP, TCP_NODELAY);
  set_option(relays.get(), IPPROTO_TCP, TCP_NODELAY);
  return SocketPair{std::move(theirs), std::move(relays)};
}

/// Copies the options that the application has set and the kernel socket has, too.
void copy_options(StreamSocket& socket, int theirs) {
  struct Option {
    int level;
    int name;
  };
  static constexpr std::array kOptions{
      Option{SOL_SOCKET, SO_RCVTIMEO},       Option{SOL_SOCKET, SO_SNDTIMEO},    Option{SOL_SOCKET, SO_LINGER},
      Option{SOL_SOCKET, SO_RCVLOWAT},       Option{SOL_SOCKET, SO_KEEPALIVE},   Option{SOL_SOCKET, SO_OOBINLINE},
      Option{IPPROTO_TCP, TCP_KEEPIDLE},     Option{IPPROTO_TCP, TCP_KEEPINTVL}, Option{IPPROTO_TCP, TCP_KEEPCNT},
      Option{IPPROTO_TCP, TCP_USER_TIMEOUT}, Option{IPPROTO_TCP, TCP_INQ},
  };
  for (const Option& option : kOptions) {
    std::array<std::byte, 64> value;
    auto length = static_cast<socklen_t>(value.size());
    if (socket.get_option(option.level, option.name, value.data(), &length))
      ::setsockopt(theirs, option.level, option.name, value.data(), length);
  }
  socket.kept_options.give_all_to(theirs);
}

/// Gives the kernel socket the flags and options of the application's open file description.
void dress(StreamSocket& socket, int theirs) {
  const auto others = static_cast<int>(socket.endpoint().values.get(DescriptionValues::other_flags));
  const int flags = others | (socket.endpoint().is_nonblocking() ? O_NONBLOCK : 0);
  if (flags != 0) ::fcntl(theirs, F_SETFL, flags);
  copy_options(socket, theirs);
}

/// Carries the ends of shutdown(2) over. Only to a relay that starts at once: another one takes the end for the
/// program's, which has closed the socket without using it.
void shut_as_before(StreamSocket& socket, int theirs) {
  if (socket.core().write_shut.load(std::memory_order_acquire)) ::shutdown(theirs, SHUT_WR);
  if (socket.core().read_shut.load(std::memory_order_acquire)) ::shutdown(theirs, SHUT_RD);
}

/// Makes the two ends: a TCP connection, or UNIX-domain sockets where TCP does not work. They get numbers above the
/// limit where the program has used all others.
Result<SocketPair> make_pair(StreamSocket& socket) {
  const RaisedLimit beyond_full_table;
  auto local = socket.local_name();
  auto peer = socket.last_peer();
  if (!local || !peer) return Error{ENOTCONN, "hand-over: not connected"};
  auto pair = tcp_pair(*local, *peer);
  if (!pair) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return Error::last("hand-over: socketpair");
    pair = SocketPair{out_of_the_way(UniqueFd(ends[0])), out_of_the_way(UniqueFd(ends[1]))};
  }
  if (socket.has_signal_owner.load()) SignalOwner::of(socket.descriptor()).give_to(pair->theirs.get());
  return pair;
}

// -- the relay's process ---------------------------------------------------------------------------

void close_numbers(unsigned first, unsigned last) {
  // Directly: where a preload library intercepts close_range(2), it closes endpoints.
  ::syscall(SYS_close_range, long{first}, long{last}, 0L);
}

/// _exit(2), past what a preload library does before.
[[noreturn]] void exit_at_once(int status) {
  ::syscall(SYS_exit_group, long{status});
  __builtin_unreachable();
}

void close_all_but(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  unsigned first = 0;
  for (const int fd : kept) {
    const auto number = static_cast<unsigned>(fd);
    if (number > first) close_numbers(first, number - 1);
    first = number + 1;
  }
  close_numbers(first, ~0U);
}

[[noreturn]] void run_relay(const std::vector<RelayedConnection>& connections, UniqueFd begun) {
  // Signals that the application sends to its processes or terminal do not concern the relay.
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  set_log_level(LogLevel::none);  // descriptor 2 may not be standard error any more
  [[maybe_unused]] const int moved = ::chdir("/");
  std::vector<const Endpoint*> ours;
  std::vector<int> kept{runtime::thread_bell(), own_door_number(), begun.get()};
  for (const auto& connection : connections) {
    if (const Lookup ring = fd_table().find(connection.ring)) ours.push_back(&*ring);
    kept.push_back(connection.ring);
    kept.push_back(connection.kernel);
    kept.push_back(connection.theirs);
  }
  std::erase(kept, -1);
  // This process does not count as a holder of any other socket.
  runtime::fork_registry().try_for_each([&](Endpoint& endpoint) {
    if (std::find(ours.begin(), ours.end(), &endpoint) == ours.end()) endpoint.process_ends();
  });
  close_all_but(std::move(kept));
  relay(connections, std::move(begun));
  leave_families();
  exit_at_once(0);
}

struct PipeSignal {
  UniqueFd wait;
  UniqueFd give;
};

Result<PipeSignal> pipe_signal() {
  const RaisedLimit beyond_full_table;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::last("hand-over: pipe");
  return PipeSignal{out_of_the_way(UniqueFd(ends[0])), out_of_the_way(UniqueFd(ends[1]))};
}

void wait_for_signal(const PipeSignal& start) {
  char byte = 0;
  while (::read(start.wait.get(), &byte, 1) < 0 && errno == EINTR) {
  }
}
void give_signal(const PipeSignal& start) { [[maybe_unused]] const ssize_t given = ::write(start.give.get(), "", 1); }

/// Waits until the relay has moved what came before it began, so that a call that does not block finds it at the kernel
/// socket. A relay that has no CPU for long is not waited for.
void wait_until_begun(PipeSignal begun) {
  constexpr int kPatienceMilliseconds = 1000;
  begun.give.reset();  // the relay may have been killed
  pollfd entry{begun.wait.get(), POLLIN, 0};
  ::poll(&entry, 1, kPatienceMilliseconds);
}

/// Of the child between: what its parent makes of its end.
constexpr int kForkFailed = 1;
constexpr int kClosedBefore = 2;

/// Returns whether this process, which has just been forked, has the connections with which the relay begins at once.
/// Another thread may have closed one before the fork.
bool has_all(const std::vector<RelayedConnection>& connections) {
  return std::all_of(connections.begin(), connections.end(), [](const RelayedConnection& one) {
    if (!one.at_once) return true;
    const Lookup ring = fd_table().find(one.ring);
    auto* const socket = ring ? find_stream(*ring) : nullptr;
    return socket != nullptr && socket->inheritance().family() != nullptr;
  });
}

/// Runs in the child between the application and the relay: makes the relay and ends.
[[noreturn]] void run_between(PipeSignal& start, PipeSignal& begun, const std::vector<RelayedConnection>& connections) {
  // The relay inherits the name, by which wait(2) of the next subreaper knows it from the start.
  ::prctl(PR_SET_NAME, kRelayName);
  start.give.reset();
  wait_for_signal(start);
  const bool is_complete = has_all(connections);
  const pid_t process = is_complete ? ::fork() : -1;
  if (process == 0) {
    wait_for_signal(start);
    run_relay(connections, std::move(begun.give));
  }
  leave_families();
  if (!is_complete) exit_at_once(kClosedBefore);
  exit_at_once(process < 0 ? kForkFailed : 0);
}

/// Drops the SIGCHLD of a child, which this thread has blocked, unless one was pending before.
void drop_child_signal(const sigset_t& pending_before) {
  if (sigismember(&pending_before, SIGCHLD) != 0) return;
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  const timespec none{};
  ::sigtimedwait(&child_signal, nullptr, &none);
}

/// Starts the relay as a grandchild: the application neither waits for it nor gets its SIGCHLD. Error EBUSY: another
/// thread has closed one of the connections.
Status start_relay(const std::vector<RelayedConnection>& connections) {
  const SignalsBlocked blocked;  // for the SIGCHLD of the child in between
  sigset_t pending_before;
  ::sigpending(&pending_before);
  auto start = pipe_signal();
  if (!start) return start.error();
  auto begun = pipe_signal();
  if (!begun) return begun.error();
  this_thread.makes_helper = true;
  const pid_t between = ::fork();
  if (between == 0) run_between(*start, *begun, connections);
  this_thread.makes_helper = false;
  if (between < 0) return Error::last("hand-over: fork");
  // It ends only now, so that no thread that waits for any child takes it for one of the application's.
  PassingChild::expect(between);
  give_signal(*start);
  const int status = PassingChild::wait(between);
  drop_child_signal(pending_before);
  // The relay begins only now, because that SIGCHLD would interrupt a call that has moved to the kernel.
  give_signal(*start);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kClosedBefore) return Error{EBUSY, "hand-over: closed meanwhile"};
  if (status != 0) return Error{EAGAIN, "hand-over: fork"};
  wait_until_begun(*std::move(begun));
  return ok();
}

}  // namespace

namespace {

/// Reserves connections that the relay begins with at once, while the relay is made.
class HandedOn {
 public:
  HandedOn() = default;
  HandedOn(const HandedOn&) = delete;
  HandedOn& operator=(const HandedOn&) = delete;
  ~HandedOn() {
    for (const Ref& one : taken_) {
      stream_of(*one).inheritance().take_back();
      one->values.set(DescriptionValues::is_kernels, 0);
    }
  }
  /// Returns false when another process uses the connection, or another thread is handing it on or has done so. From
  /// then on other processes set flags and options at the kernel socket.
  bool take(Ref connection) {
    if (!stream_of(*connection).inheritance().hand_on()) return false;
    connection->values.set(DescriptionValues::is_kernels, 1);
    taken_.push_back(std::move(connection));
    return true;
  }
  void are_the_relays() {
    for (const Ref& one : taken_) stream_of(*one).inheritance().handing_on.end();
    taken_.clear();
  }

 private:
  std::vector<Ref> taken_;
};

}  // namespace

StreamSocket* ring_connection(Endpoint& endpoint) {
  auto* const socket = find_stream(endpoint);
  auto* const dual = endpoint.as_chosen_socket();
  if (socket == nullptr || endpoint.has_left_to_kernel() || (dual != nullptr && dual->is_kernel_socket()))
    return nullptr;
  return socket->last_peer() ? socket : nullptr;
}

Result<std::vector<UniqueFd>> hand_over(std::span<const HandOver> connections) {
  std::vector<UniqueFd> theirs;
  std::vector<UniqueFd> relays;
  std::vector<RelayedConnection> relayed;
  std::vector<Ref> rings;
  for (const HandOver& connection : connections) {
    Ref endpoint = fd_table().get(connection.fd);
    auto* const socket = endpoint ? ring_connection(*endpoint) : nullptr;
    if (socket == nullptr) return Error{ENOTCONN, "hand-over"};
    const auto known = std::find_if(relayed.begin(), relayed.end(),
                                    [&](const RelayedConnection& one) { return one.ring == socket->descriptor(); });
    if (known != relayed.end()) {  // the same connection again
      theirs.push_back(own_duplicate(known->theirs));
      if (!theirs.back()) return Error::last("hand-over: dup");
      continue;
    }
    auto pair = make_pair(*socket);
    if (!pair) return pair.error();
    const bool nobody_asks = socket->has_signal_owner.load() && !socket->inheritance().is_shared();
    relayed.push_back(
        {socket->descriptor(), pair->relays.get(), connection.at_once, pair->theirs.get(), ::getpid(), nobody_asks});
    theirs.push_back(std::move(pair->theirs));
    relays.push_back(std::move(pair->relays));
    rings.push_back(std::move(endpoint));
  }
  HandedOn handed_on;
  for (std::size_t i = 0; i < relayed.size(); ++i) {
    if (relayed[i].at_once && !handed_on.take(Ref::share(*rings[i])))
      return Error{EBUSY, "hand-over: another process uses the connection"};
    dress(*find_stream(*rings[i]), relayed[i].theirs);
    if (relayed[i].at_once) shut_as_before(*find_stream(*rings[i]), relayed[i].theirs);
  }
  if (Status started = start_relay(relayed); !started) return started.error();
  handed_on.are_the_relays();
  for (std::size_t i = 0; i < relayed.size(); ++i)
    runtime::process_statistics.count_kernel_connected(runtime::KernelReason::handed_over);
  return theirs;
}

// -- exec ------------------------------------------------------------------------------------------

namespace {

struct Kept {
  Ref endpoint;
  std::vector<int> numbers;
};

bool closes_on_exec(const StreamSocket& socket, int fd) {
  if (socket.numbers().owns_descriptor(fd)) return socket.close_on_exec.load();
  return (::fcntl(fd, F_GETFD, 0) & FD_CLOEXEC) != 0;
}

/// Returns the ring connections that the application keeps over exec(2), with the numbers that it keeps.
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

/// Returns whether `number`, of a socket that other processes also have, is meant for the program and no leak.
bool is_meant_for_the_program(const StreamSocket& socket, int number) {
  return socket.keeper.load() == ::getpid() || number <= STDERR_FILENO;
}

bool is_meant_for_the_program(const Kept& kept) {
  return std::any_of(kept.numbers.begin(), kept.numbers.end(),
                     [&](int fd) { return is_meant_for_the_program(stream_of(*kept.endpoint), fd); });
}

/// Closes connections that look like leaks when there are more than kMost of them, because each would need a relay.
void drop_leaks(std::vector<Kept>& kept) {
  constexpr std::ptrdiff_t kMost = 8;
  const auto may_be_leak = [](const Kept& one) {
    return !is_meant_for_the_program(one) && stream_of(*one.endpoint).inheritance().is_shared();
  };
  const auto leaks = std::count_if(kept.begin(), kept.end(), may_be_leak);
  if (leaks <= kMost) return;
  log_info("exec: %d connections that another process has open, too, are closed", static_cast<int>(leaks));
  std::erase_if(kept, may_be_leak);
}

/// Turns these numbers into `replacement`. The relay has the connection from now on.
void replace(const Kept& kept, const UniqueFd& replacement) {
  for (const int fd : kept.numbers) [[maybe_unused]] const Ref gone = fd_table().remove(fd);
  std::vector<int> closed_by_exec;
  while (const auto other = fd_table().number_of(*kept.endpoint)) {
    const Ref gone = fd_table().remove(*other);
    closed_by_exec.push_back(*other);
  }
  kept.endpoint->retire();
  for (const int fd : kept.numbers) ::dup3(replacement.get(), fd, 0);
  // These are needed when exec(2) fails.
  for (const int fd : closed_by_exec) ::dup3(replacement.get(), fd, O_CLOEXEC);
}

void restore_kernel_flags() {
  std::vector<int> blocking;
  fd_table().for_each([&](int fd, Endpoint& endpoint) {
    auto* const dual = endpoint.as_chosen_socket();
    if (dual == nullptr || !dual->is_kernel_socket() || dual->is_nonblocking() ||
        closes_on_exec(stream_of(endpoint), fd))
      return;
    if (FamilyRecord* const family = stream_of(endpoint).inheritance().family())
      family->kernel_blocks.store(true, std::memory_order_release);
    blocking.push_back(fd);
  });
  for (const int fd : blocking) set_kernel_nonblocking(fd, false);
}

/// The time that a listener has to answer: its service thread does so after a millisecond when its application is busy.
constexpr Nanos kAnswerPatience = std::chrono::milliseconds(10);

/// Ends a connect that is under way on a ring. Without an answer until `end` the kernel connects.
void settle_connect(ChosenSocket& socket, Nanos end) {
  while (socket.is_connecting_by_way() && monotonic_now() < end) {
    [[maybe_unused]] const std::uint32_t events = socket.ready();
    if (socket.is_connecting_by_way()) ::usleep(200);
  }
  if (!socket.is_connecting_by_way()) return;
  stream_of(socket).connector().give_up();
  [[maybe_unused]] const std::uint32_t events = socket.ready();  // the kernel connects if the ring has not
  if (socket.is_kernel_socket()) socket.give_up_way();
}

/// Returns whether the next program gets the socket under this number, and no other process is to go on with it.
bool is_the_programs(const StreamSocket& socket, int fd) {
  return !closes_on_exec(socket, fd) && (!socket.inheritance().is_shared() || is_meant_for_the_program(socket, fd));
}

/// Returns the sockets for which `is_wanted(fd, ChosenSocket&)` returns true.
template <class Wanted>
std::vector<Ref> chosen_sockets(Wanted is_wanted) {
  std::vector<Ref> wanted;
  fd_table().for_each([&](int fd, Endpoint& endpoint) {
    auto* const dual = endpoint.as_chosen_socket();
    if (dual != nullptr && is_wanted(fd, *dual)) wanted.push_back(Ref::share(endpoint));
  });
  return wanted;
}

/// Ends connects that are under way on a ring: the next program gets the sockets connected, or as the kernel's.
void finish_connecting() {
  const std::vector<Ref> connecting = chosen_sockets(
      [](int fd, ChosenSocket& dual) { return dual.is_connecting_by_way() && is_the_programs(stream_of(dual), fd); });
  const Nanos end = monotonic_now() + kAnswerPatience;
  for (const Ref& one : connecting) settle_connect(*one->as_chosen_socket(), end);
}

}  // namespace

void settle_connects() noexcept try {
  const runtime::LibraryCall no_handlers;
  const int saved_errno = errno;
  const Nanos end = monotonic_now() + kAnswerPatience;
  for (const Ref& endpoint : runtime::fork_registry().endpoints()) {
    auto* const dual = endpoint->as_chosen_socket();
    if (dual != nullptr && !endpoint->is_closed()) settle_connect(*dual, end);
  }
  errno = saved_errno;
} catch (const std::bad_alloc&) {
}

namespace {

// -- clients that nobody has accepted --------------------------------------------------------------

/// Returns the listeners on rings that the next program gets. Clients of a listener that other processes also have are
/// left to these, unless this process has prepared the listener for the program (a master that lets the program accept:
/// inetd, dovecot).
std::vector<Ref> kept_listeners() {
  return chosen_sockets(
      [](int fd, ChosenSocket& dual) { return dual.listens_by_way() && is_the_programs(stream_of(dual), fd); });
}

/// Makes a kernel connection to the listener, from the client's address to the address that it connected to. The
/// connection waits in the kernel's backlog.
Result<UniqueFd> connect_as(StreamSocket& client, const SocketAddress& peer) {
  const auto local = client.local_name();
  if (!local) return local.error();
  const RaisedLimit beyond_full_table;
  UniqueFd relays = tcp_socket(local->family(), SOCK_NONBLOCK);
  if (!relays) return Error::last("hand-over: socket");
  if (Status bound = bind_as(relays.get(), peer); !bound) return bound.error();
  if (::connect(relays.get(), local->get(), local->length()) != 0 && errno != EINPROGRESS)
    return Error::last("hand-over: connect");
  set_option(relays.get(), IPPROTO_TCP, TCP_NODELAY);
  return relays;
}

/// Clients that rings have answered, on their way to the backlogs of the kernel's listeners, each with a relay in
/// between.
class WaitingClients {
 public:
  void take_from(StreamSocket& listener) {
    SocketAddress peer;
    while (const auto ring = listener.listener().accept_waiting(peer, SOCK_CLOEXEC)) {
      const Ref client = fd_table().get(*ring);
      auto connected = client ? connect_as(stream_of(*client), peer) : Error{EBADF, "hand-over"};
      if (!connected) {
        log_warn("a client that nobody has accepted is lost: %s", connected.error().where);
        static_cast<void>(runtime::close_descriptor(*ring, runtime::WaitingCalls::end));
        continue;
      }
      relayed_.push_back({*ring, connected->get(), true, -1, ::getpid()});
      relays_.push_back(*std::move(connected));
    }
  }
  void hand_over() {
    if (relayed_.empty()) return;
    if (Status started = start_relay(relayed_); !started)
      log_warn("clients that nobody has accepted are lost: %s", started.error().where);
    for (const RelayedConnection& one : relayed_)
      static_cast<void>(runtime::close_descriptor(one.ring, runtime::WaitingCalls::end));
  }

 private:
  std::vector<RelayedConnection> relayed_;
  std::vector<UniqueFd> relays_;
};

/// Ends the rings of listeners of which this process has only the kernel's, as will the program for which it keeps
/// them.
void leave_family_listeners() {
  const std::vector<Ref> kept = chosen_sockets([](int fd, ChosenSocket& dual) {
    return dual.was_forked_undecided() && !closes_on_exec(stream_of(dual), fd) &&
           is_meant_for_the_program(stream_of(dual), fd);
  });
  for (const Ref& socket : kept) stream_of(*socket).listener().end_for_all();
}

void hand_over_waiting_clients() {
  WaitingClients clients;
  leave_family_listeners();
  for (const Ref& listener : kept_listeners()) {
    auto& socket = stream_of(*listener);
    // The program has only the kernel's listener, so further clients must use that.
    if (socket.inheritance().is_shared() && !socket.listener().has_ended_for_all()) socket.listener().end_for_all();
    clients.take_from(socket);
  }
  clients.hand_over();
}

/// Moves connections to the kernel that other processes may continue while the next program uses them.
void share_by_kernel(const std::vector<Kept>& kept) {
  std::vector<Ref> shared;
  for (const Kept& one : kept) {
    const auto& socket = stream_of(*one.endpoint);
    const bool can_be_had = !socket.inheritance().is_used_elsewhere() || socket.inheritance().can_follow();
    if (socket.inheritance().is_shared() && can_be_had && is_meant_for_the_program(one))
      shared.push_back(Ref::share(*one.endpoint));
  }
  if (shared.empty()) return;
  if (const auto done = hand_over_for_good(shared); !done)
    log_warn("exec: connections that other processes have, too, are closed: %s", done.error().where);
}

Status hand_over_kept() {
  std::vector<Kept> kept = kept_connections();
  share_by_kernel(kept);
  std::erase_if(kept, [](const Kept& one) {
    const auto& socket = stream_of(*one.endpoint);
    return one.endpoint->has_left_to_kernel() || socket.inheritance().is_used_elsewhere();
  });
  drop_leaks(kept);
  if (kept.empty()) return ok();
  std::vector<HandOver> wanted;
  wanted.reserve(kept.size());
  for (const Kept& one : kept) wanted.push_back({one.numbers.front(), is_meant_for_the_program(one)});
  auto replacements = hand_over(wanted);
  if (!replacements) return replacements.error();
  for (std::size_t i = 0; i < kept.size(); ++i) replace(kept[i], (*replacements)[i]);
  return ok();
}

}  // namespace

void listener_is_prepared(ChosenSocket& socket, int fd) {
  if (!socket.listens_by_way() && !socket.was_forked_undecided()) return;
  StreamSocket& listener = stream_of(socket);
  if (!listener.inheritance().is_shared() || listener.listener().has_ended_for_all()) return;
  const FamilyRecord* const family = listener.inheritance().family();
  if (family == nullptr || family->founder == own_member()) return;
  if ((::fcntl(fd, F_GETFD, 0) & FD_CLOEXEC) == 0) return;
  listener.listener().end_for_all();
  if (socket.was_forked_undecided()) set_kernel_nonblocking(fd, socket.is_nonblocking());
}

namespace {
/// Returns whether the program would miss a connection because of `why`, a shortage. A leak is not missed.
bool is_missed_for(const Error& why) {
  if (why.code != EMFILE && why.code != ENFILE && why.code != ENOMEM) return false;
  const std::vector<Kept> kept = kept_connections();
  return std::any_of(kept.begin(), kept.end(), [](const Kept& one) {
    return is_meant_for_the_program(one) || !stream_of(*one.endpoint).inheritance().is_shared();
  });
}
}  // namespace

Status prepare_exec() {
  finish_connecting();
  if (Status done = unless_used_elsewhere(hand_over_kept); !done) {
    if (is_missed_for(done.error())) return done;
    log_warn("exec: connections are closed for the new program: %s", done.error().where);
  }
  hand_over_waiting_clients();
  restore_kernel_flags();
  return ok();
}

// -- for good --------------------------------------------------------------------------------------

namespace {

/// Returns whether the socket has an error that nobody was told of once its connection is reset, if that stands.
bool has_untold_error(const StreamCore& core) {
  if (core.pending_error.load(std::memory_order_acquire) != 0) return true;
  if (!core.is_connected()) return core.state() == StreamCore::State::connecting;
  return !core.is_over() ||
         (core.connection->ends().failure() != 0 && !core.failure_taken.load(std::memory_order_acquire));
}

/// Gives an unconnected socket that does not block the error that the kernel leaves in one that it disconnects. The
/// socket connects to itself for that, and keeps neither port nor address.
void leave_reset_error(int fd, int domain) {
  if (!bind_to(fd, SocketAddress::wildcard(domain, 0))) return;
  const auto name = name_of(::getsockname, fd);
  if (!name) return;
  const SocketAddress self = domain == AF_INET ? SocketAddress::v4(INADDR_LOOPBACK, name->port())
                                               : SocketAddress::v6(in6addr_loopback, name->port());
  static_cast<void>(::connect(fd, self.get(), self.length()));
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  static_cast<void>(::connect(fd, &nowhere, sizeof nowhere));
}

}  // namespace

bool may_bind_again(StreamSocket& connection) {
  connection.progress().look_for_reset();
  return connection.is_connected() && connection.core().is_over() && !connection.numbers().holds_port();
}

Status become_unconnected(StreamSocket& connection) {
  if (connection.inheritance().is_shared()) return Error{EISCONN, "connect: another process has the connection"};
  const UniqueFd fresh = [&] {
    const RaisedLimit beyond_full_table;
    return tcp_socket(connection.core().domain, SOCK_NONBLOCK);
  }();
  if (!fresh) return Error::last("connect: socket");
  connection.progress().look_for_reset();
  if (has_untold_error(connection.core())) leave_reset_error(fresh.get(), connection.core().domain);
  set_kernel_nonblocking(fresh.get(), connection.endpoint().is_nonblocking());
  copy_options(connection, fresh.get());
  const linger at_once{1, 0};
  if (Status reset = connection.set_option(SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once); !reset) return reset;
  move_to_kernel(connection, fresh.get());
  return ok();
}

void give_to_kernel(ChosenSocket& socket) {
  if (socket.listens_by_way()) {
    StreamSocket& stream = stream_of(socket);
    stream.listener().end_for_all();
    // A client's confirmation arrives on the service thread.
    const Nanos end = monotonic_now() + std::chrono::milliseconds(100);
    while (stream.listener().has_half_open() && monotonic_now() < end) ::usleep(200);
    WaitingClients clients;
    clients.take_from(stream);
    clients.hand_over();
  }
  socket.give_up_way();
}

namespace {

Result<std::vector<UniqueFd>> try_to_hand_over_for_good(std::span<const Ref> connections) {
  std::vector<HandOver> wanted;
  std::vector<const Ref*> handed_over;
  for (const Ref& one : connections) {
    auto& socket = stream_of(*one);
    if (Status followed = follow(socket); !followed) return followed.error();
    if (one->has_left_to_kernel()) continue;
    wanted.push_back({socket.descriptor(), true});
    handed_over.push_back(&one);
  }
  auto replacements = hand_over(wanted);
  const auto has_left = [](const Ref* one) { return (*one)->has_left_to_kernel(); };
  if (!replacements && std::any_of(handed_over.begin(), handed_over.end(), has_left))
    return Error{EBUSY, "hand-over: another thread has done it"};
  if (!replacements) return replacements.error();
  for (std::size_t i = 0; i < handed_over.size(); ++i) {
    move_to_kernel(stream_of(**handed_over[i]), (*replacements)[i].get());
  }
  return replacements;
}

}  // namespace

Result<std::vector<UniqueFd>> hand_over_for_good(std::span<const Ref> connections) {
  return unless_used_elsewhere([connections] { return try_to_hand_over_for_good(connections); });
}

bool become_kernels(const Ref& endpoint) {
  auto* const dual = endpoint->as_chosen_socket();
  if (dual != nullptr) settle_connect(*dual, monotonic_now() + kAnswerPatience);
  if (dual != nullptr && dual->is_kernel_socket()) {
    give_to_kernel(*dual);
    return true;
  }
  if (ring_connection(*endpoint) == nullptr) return false;
  const auto done = hand_over_for_good(std::span(&endpoint, 1));
  if (!done) log_warn("a connection on a ring cannot become the kernel's: %s", done.error().where);
  return static_cast<bool>(done);
}

void hand_over_everything() {
  std::vector<Ref> connections;
  fd_table().for_each([&](int fd, Endpoint& endpoint) {
    auto* const socket = ring_connection(endpoint);
    if (socket != nullptr && socket->descriptor() == fd && !socket->inheritance().is_used_elsewhere())
      connections.push_back(Ref::share(endpoint));
  });
  if (connections.empty()) return;
  if (const auto done = hand_over_for_good(connections); !done)
    log_warn("%d connections on a ring cannot become the kernel's: %s", static_cast<int>(connections.size()),
             done.error().where);
}

}  // namespace ringsock::rs
