#include "core/transports/listening_beside.h"

#include <poll.h>
#include <sys/resource.h>

#include <cerrno>
#include <utility>

#include "core/base/log.h"
#include "core/runtime/fd_table.h"
#include "core/transports/chosen_socket.h"
#include "core/transports/kernel_calls.h"

namespace ringsock::transports {

namespace {

using State = Choice::State;

bool is_table_full(const Error& error) { return error.code == EMFILE || error.code == ENFILE; }

/// Returns whether the program may miss the few descriptors of a listener, for which there are no numbers above its
/// own.
bool is_table_small() {
  constexpr rlim_t kSmall = 256;
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max <= kSmall;
}

}  // namespace

Status ListeningBeside::listen(int backlog) {
  if (socket_.state() == State::on_way) return Error{EINVAL, "listen: connected"};
  const int fd = socket_.descriptor();
  if (socket_.state() == State::both && socket_.way_->listening()->refuses_clients()) {
    socket_.way_->listening()->forget_listening();
    socket_.choice_.set(State::undecided);
  }
  if (socket_.is_left_to_family()) return listen_for_family(backlog);
  // The way listens first: a client of the way that saw only the kernel's listener would connect by the kernel. A
  // socket without a port gets one from the kernel's listen().
  Status by_way = socket_.state() == State::undecided ? listen_by_way(backlog) : ok();
  if (::listen(fd, backlog) != 0) {
    const Error error = Error::last("listen");
    if (socket_.state() != State::undecided || !by_way) return error;
    // An iWARP device's listener has the kernel's TCP port. The application gets the port without that device, and the
    // way listens on the others.
    stop_by_way();
    if (error.code != EADDRINUSE || ::listen(fd, backlog) != 0) return error;
    by_way = listen_by_way(backlog);
  }
  if (socket_.state() == State::both) return socket_.by_way_.setup.listen(backlog);
  if (socket_.state() == State::kernel || socket_.state() == State::listener) return ok();
  if (!by_way && by_way.error().code == EDESTADDRREQ) by_way = listen_by_way(backlog);
  if (!by_way) {
    log_info("listen: by the kernel only: %s", by_way.error().where);
    stop_by_way();  // removes a listener that is half made
    if (socket_.mover_) {
      set_kernel_nonblocking(fd, true);
      socket_.choice_.set(State::listener);
    } else {
      socket_.leave();
    }
    return ok();
  }
  set_kernel_nonblocking(fd, true);
  socket_.choice_.set(State::both);
  return ok();
}

/// Listens by the kernel, whose listener all processes have, and by the way, if that was prepared for all of them.
Status ListeningBeside::listen_for_family(int backlog) {
  const int fd = socket_.descriptor();
  set_kernel_nonblocking(fd, socket_.is_nonblocking());  // of a listener that was shut down
  // The kernel decides which of several sockets that share a port may listen.
  if (::listen(fd, backlog) != 0) {
    const Error error = Error::last("listen");
    socket_.leave();
    return error;
  }
  if (const Status by_way = listen_in_family_by_way(backlog); !by_way) {
    log_info("listen: by the kernel only: %s", by_way.error().where);
    socket_.leave();
    return ok();
  }
  set_kernel_nonblocking(fd, true);
  socket_.choice_.set(State::both);
  // Another process may have ended it meanwhile, and have cleared O_NONBLOCK before it was set here.
  if (socket_.way_->listening()->has_ended_for_all()) set_kernel_nonblocking(fd, socket_.is_nonblocking());
  return ok();
}

Status ListeningBeside::listen_in_family_by_way(int backlog) {
  if (socket_.way_->listening() == nullptr || socket_.mover_ || socket_.state() != State::undecided)
    return Error{EOPNOTSUPP, "the way does not listen"};
  const auto local = name_by(::getsockname, socket_.descriptor(), "getsockname");
  if (!local) return local.error();
  if (!socket_.maker_.permits(socket_.domain_, local->unmapped(), config::VmaRole::tcp_server))
    return Error{EPERM, "a rule"};
  return socket_.way_->listening()->listen_in_family(backlog);
}

Status ListeningBeside::listen_by_way(int backlog) {
  if (socket_.way_->listening() == nullptr) return Error{EOPNOTSUPP, "the way does not listen"};
  const auto local = name_by(::getsockname, socket_.descriptor(), "getsockname");
  if (!local) return local.error();
  if (local->port() == 0) return Error{EDESTADDRREQ, "no port yet"};
  if (!socket_.maker_.permits(socket_.domain_, local->unmapped(), config::VmaRole::tcp_server))
    return Error{EPERM, "a rule"};
  // What was prepared for a family that has ended since: the name may still be taken by a process that is ending.
  if (!socket_.mover_) {
    const Status prepared = socket_.way_->listening()->listen_in_family(backlog);
    if (prepared || prepared.error().code != EOPNOTSUPP) return prepared;
  }
  if (Status bound = socket_.by_way_.setup.bind(local->get(), local->length()); !bound) return bound;
  if (socket_.mover_ && !socket_.mover_->may_listen()) return Error{EOPNOTSUPP, "fork mode"};
  return socket_.by_way_.setup.listen(backlog);
}

void ListeningBeside::stop_by_way() {
  if (Listening* const listening = socket_.way_->listening()) listening->stop_listening();
}

Result<int> ListeningBeside::accept(SocketAddress& peer, int flags) {
  if (socket_.state() == State::both && socket_.way_->listening()->has_ended_for_all()) {
    auto waiting = socket_.way_->listening()->accept_waiting(peer, flags);
    if (waiting || waiting.error().code != EAGAIN) return waiting;
    if (!socket_.way_->listening()->has_half_open()) leave_ended();
  }
  if (socket_.was_forked_undecided()) return kAskKernel;
  if (socket_.state() == State::kernel) return accept_if_kernel_has_one(peer, flags);
  if (socket_.state() == State::listener) return accept_from_kernel(peer, flags);
  if (socket_.state() != State::both) return Error{EINVAL, "accept: not listening"};
  if (socket_.way_->listening()->nobody_waits(socket_.descriptor())) return Error{EAGAIN, "accept"};
  // In turns, so that clients of one listener do not keep those of the other waiting. A client that has its descriptor
  // already is there also when the table is full.
  const bool kernel_first = kernel_first_.load(std::memory_order_relaxed);
  kernel_first_.store(!kernel_first, std::memory_order_relaxed);
  const auto ask = [&](bool kernel) {
    return kernel ? accept_if_kernel_has_one(peer, flags) : socket_.by_way_.setup.accept(peer, flags);
  };
  auto client = ask(kernel_first);
  if (!client && (client.error().code == EAGAIN || is_table_full(client.error()))) {
    auto second = ask(!kernel_first);
    if (second || second.error().code != EAGAIN) client = second;
  }
  if (client || !is_table_full(client.error()) || !is_table_small()) return client;
  log_info("accept: by the kernel only, which leaves the descriptors of the listener to the program");
  // A process that has the listener and does not accept would keep clients waiting.
  if (socket_.values.is_shared()) socket_.way_->listening()->end_for_all();
  socket_.give_up_way();
  return accept_if_kernel_has_one(peer, flags);
}

/// Accepts when poll(2) finds a client, or fails, as it does when RLIMIT_NOFILE is 0. poll(2) takes a tenth of the time
/// of an accept4(2) that finds nobody.
Result<int> ListeningBeside::accept_if_kernel_has_one(SocketAddress& peer, int flags) {
  pollfd queue{socket_.descriptor(), POLLIN, 0};
  if (::poll(&queue, 1, 0) == 0) return Error{EAGAIN, "accept"};
  return accept_from_kernel(peer, flags);
}

Result<int> ListeningBeside::accept_from_kernel(SocketAddress& peer, int flags) {
  if (socket_.is_closed()) return Error{EBADF, "accept: closed meanwhile"};
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  const int fd = ::accept4(socket_.descriptor(), reinterpret_cast<sockaddr*>(&storage), &length, flags);
  if (fd < 0) return Error::last("accept4");
  if (auto name = SocketAddress::from(reinterpret_cast<const sockaddr*>(&storage), length)) peer = *name;
  if (socket_.mover_ && socket_.state() != State::kernel) {
    const auto local = name_by(::getsockname, fd, "getsockname");
    if (local && socket_.maker_.permits(socket_.domain_, local->unmapped(), config::VmaRole::tcp_server) &&
        socket_.mover_->concerns(*local)) {
      return take_in_accepted(UniqueFd(fd), *local, flags);
    }
  }
  runtime::fd_table().drop_stale(fd);
  runtime::process_statistics.count_accepted(runtime::SocketPath::kernel);
  return fd;
}

/// Makes an endpoint of the accepted connection `fd`, which moves to the way when it is used. This is its listener.
Result<int> ListeningBeside::take_in_accepted(UniqueFd fd, const SocketAddress& local, int flags) {
  auto* const accepted = new ChosenSocket(socket_.maker_, socket_.domain_, fd.get());
  runtime::Ref owner(accepted);
  accepted->way_->inherit_options(*socket_.way_);
  accepted->way_->close_on_exec.store((flags & SOCK_CLOEXEC) != 0);
  accepted->set_nonblocking((flags & SOCK_NONBLOCK) != 0);
  accepted->mover_->begin(Mover::End::accepting, local.unmapped());
  if (Status entered = runtime::fd_table().insert(fd.get(), std::move(owner)); !entered) return entered.error();
  return fd.release();
}

/// Leaves a listener to the kernel after another process has ended it for the way. That process has set O_NONBLOCK as
/// it knows it, so the flag is set again when this process's application polls the listener without blocking.
void ListeningBeside::leave_ended() {
  stop_by_way();
  if (socket_.is_nonblocking()) set_kernel_nonblocking(socket_.descriptor(), true);
  socket_.leave();
}

}  // namespace ringsock::transports
