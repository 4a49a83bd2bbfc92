#include "librsocket/hand_over/exec.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/runtime/fd_table.h"
#include "core/transports/kernel_calls.h"
#include "librsocket/family_record.h"
#include "librsocket/hand_over/hand_over.h"
#include "librsocket/hand_over/settle_connect.h"
#include "librsocket/hand_over/waiting_clients.h"

namespace ringsock::rs {

using runtime::Endpoint;
using runtime::fd_table;
using runtime::Ref;
using transports::set_kernel_nonblocking;

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

/// Returns whether the connection can go on: no other process uses it, or that process can be asked for it.
bool can_be_had(const Kept& kept) {
  const Inheritance& inheritance = stream_of(*kept.endpoint).inheritance();
  return !inheritance.is_used_elsewhere() || inheritance.can_follow();
}

/// Closes connections that look like leaks when there are more than kMost of them, because each would need a relay. A
/// connection that no other process has any more is the program's.
void drop_leaks(std::vector<Kept>& kept) {
  constexpr std::ptrdiff_t kMost = 8;
  const auto is_shared = [](const Kept& one) {
    return !is_meant_for_the_program(one) && stream_of(*one.endpoint).inheritance().is_shared();
  };
  if (std::count_if(kept.begin(), kept.end(), is_shared) <= kMost) return;
  const auto may_be_leak = [&](const Kept& one) {
    return is_shared(one) && !is_alone_now(stream_of(*one.endpoint).inheritance());
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

// -- clients that nobody has accepted --------------------------------------------------------------

/// Returns the listeners on rings that the next program gets. Clients of a listener that other processes also have are
/// left to these, unless this process has prepared the listener for the program (a master that lets the program accept:
/// inetd, dovecot).
std::vector<Ref> kept_listeners() {
  return chosen_sockets(
      [](int fd, ChosenSocket& dual) { return dual.listens_by_way() && is_the_programs(stream_of(dual), fd); });
}

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

/// Moves connections to the kernel that other processes have used since the fork, or may continue while the next
/// program uses them. One that cannot be moved does not keep the others from it.
void share_by_kernel(const std::vector<Kept>& kept) {
  std::vector<Ref> shared;
  for (const Kept& one : kept) {
    const Inheritance& inheritance = stream_of(*one.endpoint).inheritance();
    if ((inheritance.is_shared() || inheritance.is_used_elsewhere()) && is_meant_for_the_program(one))
      shared.push_back(Ref::share(*one.endpoint));
  }
  if (shared.empty() || (shared.size() > 1 && hand_over_for_good(shared))) return;
  for (const Ref& one : shared) {
    if (one->has_left_to_kernel()) continue;
    if (const auto done = hand_over_for_good(std::span(&one, 1)); !done)
      log_warn("exec: a connection that other processes have, too, is closed: %s", done.error().where);
  }
}

/// Those that other processes use without having been moved to the kernel wait for the program's first use.
Status hand_over_kept() {
  std::vector<Kept> kept = kept_connections();
  std::erase_if(kept, [](const Kept& one) { return !can_be_had(one); });
  share_by_kernel(kept);
  std::erase_if(kept, [](const Kept& one) {
    const bool is_lost = is_meant_for_the_program(one) && stream_of(*one.endpoint).inheritance().is_used_elsewhere();
    return one.endpoint->has_left_to_kernel() || is_lost || !can_be_had(one);
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

}  // namespace ringsock::rs
