#include "librsocket/hand_over/hand_over.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "core/base/log.h"
#include "core/base/own_duplicate.h"
#include "core/base/raised_limit.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "core/runtime/library_call.h"
#include "core/statistics/statistics.h"
#include "core/transports/kernel_calls.h"
#include "librsocket/hand_over/door.h"
#include "librsocket/hand_over/kernel_pair.h"
#include "librsocket/hand_over/relay.h"
#include "librsocket/hand_over/settle_connect.h"
#include "librsocket/hand_over/start_relay.h"
#include "librsocket/hand_over/waiting_clients.h"
#include "librsocket/rsocket_process.h"
#include "librsocket/stream_api.h"

namespace ringsock::rs {

using runtime::DescriptionValues;
using runtime::Endpoint;
using runtime::fd_table;
using runtime::Ref;
using transports::set_kernel_nonblocking;

namespace {

ServerCounts& counts() { return *process().counts.load(std::memory_order_acquire); }

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
    Ref endpoint = fd_table().get_settled(connection.fd);
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
  // The others may be leaks, which their owner goes on using.
  const auto given = std::count_if(relayed.begin(), relayed.end(), [](const auto& one) { return one.at_once; });
  counts().handed_over.fetch_add(static_cast<std::uint64_t>(given), std::memory_order_relaxed);
  return theirs;
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

namespace {
/// Clients that the ring's listener turns away come to the kernel's all at once, and those for which its queue has no
/// room come again a second later.
void make_room_for_clients(int listener) {
  constexpr int kRoom = 512;
  tcp_info info{};
  socklen_t length = sizeof info;
  // tcpi_sacked of a listener is its backlog.
  if (::getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state == TCP_LISTEN &&
      info.tcpi_sacked < kRoom)
    ::listen(listener, kRoom);
}
}  // namespace

void give_to_kernel(ChosenSocket& socket) {
  if (socket.listens_by_way()) {
    if (const auto listener = runtime::fd_table().number_of(socket)) make_room_for_clients(*listener);
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
    if (StreamApi* const api = socket.core().api(); api != nullptr && api->keeps_connection())
      return Error{EOPNOTSUPP, "hand-over: the program has packets of the ring"};
    wanted.push_back({socket.descriptor(), true});
    handed_over.push_back(&one);
  }
  auto replacements = hand_over(wanted);
  const auto has_left = [](const Ref* one) { return (*one)->has_left_to_kernel(); };
  if (!replacements && std::any_of(handed_over.begin(), handed_over.end(), has_left))
    return Error{EBUSY, "hand-over: another thread has done it"};
  if (!replacements) return replacements.error();
  for (std::size_t i = 0; i < handed_over.size(); ++i) {
    auto& socket = stream_of(**handed_over[i]);
    shut_as_before(socket, (*replacements)[i].get());  // a thread may have done it until the fork
    move_to_kernel(socket, (*replacements)[i].get());
  }
  return replacements;
}

}  // namespace

namespace {

/// Returns whether most of what this server accepts becomes the kernel's, as in a server that passes its connections on
/// to other processes, or runs a program for each. A connection needs a relay then, which costs far more than a ring
/// saves.
bool accepts_in_vain() {
  constexpr std::uint64_t kFew = 8;
  const std::uint64_t all = counts().handed_over.load(std::memory_order_relaxed);
  return all >= kFew && 2 * all >= counts().accepted.load(std::memory_order_relaxed);
}

}  // namespace

void leave_listeners_if_in_vain() {
  if (!accepts_in_vain()) return;
  const runtime::LibraryCall no_handlers;
  for (const Ref& one : runtime::fork_registry().endpoints()) {
    auto* const chosen = one->as_chosen_socket();
    if (chosen == nullptr || !chosen->listens_by_way()) continue;
    log_info("a listener is the kernel's from now on: its connections become the kernel's anyway");
    give_to_kernel(*chosen);
  }
}

Result<std::vector<UniqueFd>> hand_over_for_good(std::span<const Ref> connections) {
  auto done = unless_used_elsewhere([connections] { return try_to_hand_over_for_good(connections); });
  if (done) leave_listeners_if_in_vain();
  return done;
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
