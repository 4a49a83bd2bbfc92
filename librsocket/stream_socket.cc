#include "librsocket/stream_socket.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "core/runtime/fd_table.h"
#include "core/runtime/fork_registry.h"
#include "librsocket/listener_watch.h"
#include "librsocket/rsocket_process.h"
#include "librsocket/stream_api.h"

namespace ringsock::rs {

StreamSocket::StreamSocket(runtime::Endpoint& endpoint, Process& process, int domain, int fd)
    : Way(endpoint),
      transfer_(*this, progress_, endpoint, process, domain, fd),
      options_(*this, core_, process.config) {}

StreamSocket::~StreamSocket() {
  const std::unique_ptr<StreamApi> api(core_.asked.exchange(nullptr));
  if (api) api->end();
  stop_background();
  cm_events_.stop_serving();
  const std::shared_lock teardown(runtime::fork_registry().teardown_gate());
  runtime::fork_registry().leave(endpoint());
  if (inheritance_.is_half_made()) {
    direct_.leave_to_parent();
    [[maybe_unused]] const void* const lost[] = {core_.connection.release(), core_.id.release()};
    return;
  }
  numbers_.end_unseen();
  // Destroyed here, in this order, so that a fork finds the connection complete or not at all.
  direct_.reset();
  core_.connection.reset();
  listener_.take_clients().clear();
  core_.id.reset();
  if (core_.connection_owns_fd.load(std::memory_order_relaxed)) runtime::fd_table().end_close(core_.fd);
}

namespace {
/// Ends the directions of shutdown(2), and tells the peer. Returns false, without effect, if the connection is
/// suspended.
bool end_directions(StreamSocket& socket, int how) {
  StreamCore& core = socket.core();
  std::scoped_lock guard(core.setup_lock, core.send_lock);
  if (core.is_suspended())
    return false;  // a thread has forked, or handed the connection on: the end would reach nobody
  const bool was_readable = !core.read_shut.load(std::memory_order_relaxed);
  const bool was_writable = !core.write_shut.load(std::memory_order_relaxed);
  const bool readable = was_readable && how == SHUT_WR;
  const bool writable = was_writable && how == SHUT_RD;
  if (!writable) socket.transfer().corking().let_go();
  if (!readable) core.read_shut.store(true, std::memory_order_release);
  if (!writable) core.write_shut.store(true, std::memory_order_release);
  ConnectionEnds& ends = core.connection->ends();
  // Fact sheet 2.9: a half close of the writing side sends SHUTDOWN, the end of both directions DISCONNECT.
  if (!readable && !writable && (was_readable || was_writable)) {
    core.disconnect();
    if (!core.id->device().traits().works_in_background) ends.refuse_data();
  } else if (was_writable && !writable) {
    [[maybe_unused]] const Status told = core.connection->requests().send_end(wire::RsControl::shutdown);
    ends.stopped();
  }
  return true;
}
}  // namespace

Status StreamSocket::shutdown(int how) {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return Error{EINVAL, "rshutdown"};
  const Inheritance::Turn turn(inheritance_);
  if (core_.state() == StreamCore::State::listening) {
    if (how == SHUT_WR) return ok();
    core_.read_shut.store(true, std::memory_order_release);  // accept() fails with EINVAL from now on
    core_.endpoint.notify_watchers();
    return ok();
  }
  // The kernel's connection can be half closed before the peer takes it.
  constexpr Nanos kAnswerPatience = std::chrono::milliseconds(100);
  if (core_.state() == StreamCore::State::connecting) static_cast<void>(readiness_.ready());
  if (connector_.has_other_way()) connector_.give_up_after(kAnswerPatience);
  if (!core_.is_connected()) return Error{ENOTCONN, "rshutdown"};
  do {
    if (!inheritance_.claim()) return Error{EIO, "rshutdown: another process uses the connection"};
    progress_.look_for_reset();
    if (core_.is_over()) {
      core_.endpoint.note_activity();  // as in the kernel, an event nevertheless
      core_.endpoint.notify_watchers();
      return Error{ENOTCONN, "rshutdown"};
    }
  } while (!end_directions(*this, how));  // another thread has forked since the claim
  core_.endpoint.note_activity();
  core_.endpoint.notify_watchers();
  return ok();
}

void StreamSocket::inherit_options(const Way& other) {
  const auto& listener = static_cast<const StreamSocket&>(other);
  options_.inherit(listener.options_);
  kept_options.inherit(listener.kept_options);
  const runtime::Endpoint& from = listener.endpoint();
  endpoint().set_receive_low_mark(from.receive_low_mark());
  endpoint().set_receive_timeout(from.receive_timeout());
  endpoint().set_send_timeout(from.send_timeout());
  StreamApi* const asked = listener.core_.api();
  if (asked == nullptr || !asked->events().ring_wish.is_set()) return;
  if (StreamApi* const own = transfer_.make_api()) own->events().ring_wish.inherit(asked->events().ring_wish);
}

void StreamSocket::stop_background() {
  std::shared_ptr<ListenerWatch> watch;
  std::shared_ptr<Keepalive> keepalive, reminders;
  DirectPlacement::Pushes pushes;
  {
    std::lock_guard guard(core_.setup_lock);
    watch = listener_.take_watch();
    keepalive = proofs_.take_keepalive();
    reminders = proofs_.take_reminders();
    pushes = direct_.take_pushes();
  }
  transfer_.corking().stop();
  if (watch) watch->stop();
  if (reminders) reminders->stop();
  if (pushes.watch) pushes.watch->stop();
  if (keepalive) keepalive->stop();
}

std::optional<runtime::KernelReason> StreamSocket::why_not_to(const SocketAddress& destination, bool by_kernel_first) {
  using runtime::KernelReason;
  auto device = core_.process.registry.choose(destination);
  if (!device) return KernelReason::no_device;
  const bool moves_later = by_kernel_first && !(*device)->traits().survives_fork;
  if (!moves_later && !(*device)->may_have_listener(verbs::PortSpace::tcp, destination))
    return KernelReason::nobody_listened;
  if ((*device)->was_silent(verbs::PortSpace::tcp, destination)) return KernelReason::no_answer;
  return std::nullopt;
}

Result<SocketAddress> StreamSocket::local_name() {
  std::lock_guard guard(core_.setup_lock);
  if (!core_.id) return SocketAddress::wildcard(core_.domain, 0);
  const SocketAddress address = core_.id->local_address();
  return address.is_unspecified() ? SocketAddress::wildcard(core_.domain, 0) : core_.as_seen_here(address);
}

Result<SocketAddress> StreamSocket::peer_name() {
  progress_.look_for_reset();
  if (core_.is_connected() && core_.is_over()) return Error{ENOTCONN, "rgetpeername"};
  return last_peer();
}

Result<SocketAddress> StreamSocket::last_peer() {
  std::lock_guard guard(core_.setup_lock);
  if (!core_.is_connected()) return Error{ENOTCONN, "rgetpeername"};
  return core_.as_seen_here(core_.id->peer_address());
}

}  // namespace ringsock::rs
