// Transfers between files, pipes and sockets, by copying.
#include <fcntl.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <memory>
#include <span>

#include "core/base/handlers_wait.h"
#include "core/base/no_cancellation.h"
#include "core/base/of_thread.h"
#include "core/base/poll_until.h"
#include "core/base/user_memory.h"
#include "core/poll/wait.h"
#include "preload/route.h"

namespace ringsock::preload {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{64} * 1024;

/// Returns this thread's buffer. The buffer itself is no thread-local variable: a program cannot load a library late
/// (dlopen(3)) whose thread-local variables are large and of the kind that is reached fast, as libvma's are.
Result<std::span<std::byte>> copy_room() {
  using Room = std::array<std::byte, kCopyBytes>;
  static thread_local constinit OfThread<std::unique_ptr<Room>> room_of_thread;
  std::unique_ptr<Room>* const room = room_of_thread.get();
  if (room == nullptr) return Error{ENOMEM, "room for a copy"};
  if (!*room) *room = std::make_unique<Room>();
  return std::span<std::byte>(**room);
}

/// Carries out sendfile(2) to a ring. The file's offset advances by the bytes that the socket takes. Where the
/// connection becomes the kernel's meanwhile, the rest of a blocking call goes by the kernel.
Result<ssize_t> send_file(Lookup& socket, int out, int in, off_t* offset, size_t count) {
  const auto room = copy_room();
  if (!room) return room.error();
  const std::span<std::byte> copy = *room;
  const bool seekable = offset != nullptr || ::lseek(in, 0, SEEK_CUR) >= 0;
  if (offset != nullptr && !are_writable(offset)) return Error{EFAULT, "sendfile: offset"};
  if (offset != nullptr && *offset < 0) return Error{EINVAL, "sendfile: offset"};
  if (static_cast<ssize_t>(count) < 0) return Error{EINVAL, "sendfile: count"};
  if (!seekable) return Error{errno == EBADF ? EBADF : EINVAL, "sendfile: not a file"};
  off_t position = offset != nullptr ? *offset : ::lseek(in, 0, SEEK_CUR);
  std::size_t done = 0;
  Result<ssize_t> last = 0;
  while (done < count) {
    const ssize_t got = ::pread(in, copy.data(), std::min(copy.size(), count - done), position);
    if (got < 0) last = Error{errno == EISDIR ? EINVAL : errno, "sendfile: read"};
    if (got <= 0) break;
    last = runtime::send(socket, copy.data(), static_cast<std::size_t>(got), 0);
    if (!last) break;
    done += static_cast<std::size_t>(*last);
    position += *last;
    if (*last < got) break;
  }
  if (done == 0 && !last) return last;
  const bool by_kernel = done < count && (last ? *last != 0 && rest_goes_on_by_kernel(socket, 0)
                                               : goes_on_by_kernel(socket, last.error()));
  if (by_kernel) [[unlikely]] {
    const OutsideLibrary waiting_in_kernel;
    done += static_cast<std::size_t>(std::max<ssize_t>(0, real.sendfile(out, in, &position, count - done)));
  }
  if (offset != nullptr) {
    *offset = position;
  } else {
    ::lseek(in, position, SEEK_SET);
  }
  return static_cast<ssize_t>(done);
}

/// @param wrong_mode  O_RDONLY or O_WRONLY: the end of a pipe that the call cannot use
/// Errors: EBADF, also for the wrong end of a pipe; EINVAL it is open and no pipe.
Status require_pipe(int fd, int wrong_mode) {
  const int flags = real.fcntl(fd, F_GETFL, 0);
  if (flags < 0 || (flags & O_ACCMODE) == wrong_mode) return Error{EBADF, "splice"};
  // F_GETPIPE_SZ answers EBADF for every descriptor that is no pipe.
  if (real.fcntl(fd, F_GETPIPE_SZ, 0) < 0) return Error{EINVAL, "splice: one side must be a pipe"};
  return ok();
}

/// Returns the events of poll(2) that the pipe has, once it has one of `wanted`, POLLERR or POLLHUP; what it has if the
/// call does not wait. Errors: EINTR; ERESTART, as sleep_on().
Result<short> look_at_pipe(int pipe, short wanted, bool may_block) {
  pollfd entry{pipe, wanted, 0};
  for (;;) {
    const auto woken = poll_until(std::span(&entry, 1), may_block ? Nanos::max() : Nanos::zero(), nullptr);
    if (woken) return entry.revents;
    if (woken.error().code != EINTR || !runtime::handlers_restart_calls()) return woken.error();
    if (this_thread.handlers.is_signal_due) return Error{ERESTART, "splice: restarts behind the handler"};
  }
}

/// Returns when the pipe has room. Errors: EAGAIN; EPIPE, with SIGPIPE, nobody reads it; those of look_at_pipe().
Status wait_for_room(int pipe, bool may_block) {
  const auto events = look_at_pipe(pipe, POLLOUT, may_block);
  if (!events) return events.error();
  if ((*events & POLLERR) != 0) {
    ::raise(SIGPIPE);
    return Error{EPIPE, "splice"};
  }
  return (*events & POLLOUT) != 0 ? ok() : Status(Error{EAGAIN, "splice: full pipe"});
}

/// Writes as many of received bytes into a pipe as it has room for. Does not wait for room for the rest: the thread
/// that would wait may be the one that empties the pipe.
class IntoPipe final : public runtime::BytesTaker {
 public:
  explicit IntoPipe(int pipe) : pipe_(pipe) {}
  std::size_t take(std::span<std::byte> bytes) noexcept override {
    const iovec part{bytes.data(), bytes.size()};
    const ssize_t put = real.pwritev2(pipe_, &part, 1, -1, RWF_NOWAIT);
    if (put < 0 && errno == EOPNOTSUPP) return put_in_pieces(bytes);
    if (put < 0) error_ = errno;
    return static_cast<std::size_t>(std::max<ssize_t>(put, 0));
  }
  /// Returns the error of write(2) because of which nothing was taken, or 0. EAGAIN: there was no room.
  [[nodiscard]] int error() const { return error_; }

 private:
  /// Before Linux 6.4: a pipe that is writable takes PIPE_BUF bytes without waiting.
  std::size_t put_in_pieces(std::span<std::byte> bytes) noexcept {
    std::size_t done = 0;
    pollfd room{pipe_, POLLOUT, 0};
    while (done < bytes.size() && real.poll(&room, 1, 0) == 1) {
      const ssize_t put = real.write(pipe_, bytes.data() + done, std::min<std::size_t>(bytes.size() - done, PIPE_BUF));
      if (put < 0) error_ = errno;
      if (put <= 0) break;
      done += static_cast<std::size_t>(put);
    }
    if (done == 0 && error_ == 0) error_ = EAGAIN;
    return done;
  }

  int pipe_;
  int error_ = 0;
};

/// Carries out splice(2) from a ring into a pipe. Only the bytes that the pipe takes leave the socket. As in the
/// kernel, the pipe must have room before the socket is asked, and SPLICE_F_NONBLOCK says nothing of the socket.
Result<ssize_t> socket_to_pipe(Lookup& socket, int out, size_t count, unsigned flags) {
  if (Status pipe = require_pipe(out, O_RDONLY); !pipe) return pipe.error();
  const auto room = copy_room();
  if (!room) return room.error();
  const std::span<std::byte> copy = room->first(std::min(room->size(), count));
  const bool pipe_may_block = (flags & SPLICE_F_NONBLOCK) == 0 && (real.fcntl(out, F_GETFL, 0) & O_NONBLOCK) == 0;
  for (;;) {
    if (Status has_room = wait_for_room(out, pipe_may_block); !has_room) return has_room.error();
    IntoPipe pipe(out);
    const auto attempt = [&] {
      const auto moved = socket->receive_by(pipe, copy, 0);
      return pipe.error() != 0 ? Result<ssize_t>(0) : moved;  // the socket need not be waited for
    };
    const Nanos deadline = runtime::deadline_after(socket->receive_timeout());
    const auto moved = runtime::may_block(*socket, 0)
                           ? runtime::keeping(deadline, runtime::retry_until_ready(*socket, EPOLLIN, deadline, attempt))
                           : attempt();
    if (pipe.error() == 0) return moved;
    // EAGAIN: another thread has filled the pipe.
    if (pipe.error() != EAGAIN || !pipe_may_block) return Error{pipe.error(), "splice"};
  }
}

/// Carries out sendfile(2) from a ring, which works into a pipe only.
ssize_t sendfile_to_pipe(int out, int in, off_t* offset, size_t count) {
  return route(
      in,
      [&](Lookup& socket) -> Result<ssize_t> {
        socket.pin();
        if (offset != nullptr) return Error{ESPIPE, "sendfile: offset"};
        const NoCancellation hold;
        return socket_to_pipe(socket, out, count, 0);
      },
      [=] { return real.sendfile(out, in, offset, count); });
}

ssize_t sendfile_ours(int out, int in, off_t* offset, size_t count) {
  return route(
      out,
      [&](Lookup& socket) {
        const NoCancellation hold;  // sendfile(2) is no cancellation point
        return send_file(socket, out, in, offset, count);
      },
      [=] {
        if (fd_table().holds(in)) [[unlikely]]
          return sendfile_to_pipe(out, in, offset, count);
        return real.sendfile(out, in, offset, count);
      });
}

/// Sends bytes to a connection that has become the kernel's. Blocks. Errors: those of send(2).
Status send_by_kernel(int out, std::span<const std::byte> bytes) {
  const OutsideLibrary waiting_in_kernel;
  while (!bytes.empty()) {
    const ssize_t sent = real.send(out, bytes.data(), bytes.size(), 0);
    if (sent < 0 && errno == EAGAIN) {  // O_NONBLOCK, but the bytes have left the pipe
      pollfd room{out, POLLOUT, 0};
      real.poll(&room, 1, -1);
      continue;
    }
    if (sent < 0 && errno != EINTR) return Error::last("splice: send");
    bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(0, sent)));
  }
  return ok();
}

/// Returns the error of a send(2), other than that it would wait. A datagram socket has none before.
Status may_send(Lookup& socket) {
  if (socket->is_datagram()) return ok();
  const auto nothing = runtime::send(socket, nullptr, 0, 0);
  return nothing ? ok() : Status(nothing.error());
}

/// Returns when the socket has room. Errors: those of send(2).
Status wait_for_room_to_send(Lookup& socket) {
  const auto look = [&] { return (socket->ready() & EPOLLOUT) != 0 ? ok() : Status(Error{EAGAIN, "splice"}); };
  if (Status may = may_send(socket); !may) return may;
  if (look()) return ok();
  if (!runtime::may_block(*socket, 0)) return Error{EAGAIN, "splice"};
  const Nanos deadline = runtime::deadline_after(socket->send_timeout());
  if (Status has_room = runtime::retry_until_ready(*socket, EPOLLOUT, deadline, look); !has_room) return has_room;
  return may_send(socket);
}

/// Carries out splice(2) from a pipe into a ring. As in the kernel, the pipe must have bytes before the socket is
/// asked, and SPLICE_F_NONBLOCK says nothing of the socket. Bytes that have left the pipe must be sent, so only as many
/// are read as fit.
Result<ssize_t> pipe_to_socket(Lookup& socket, int out, int in, size_t count, unsigned flags) {
  if (Status pipe = require_pipe(in, O_WRONLY); !pipe) return pipe.error();
  // What the pipe says comes before what the socket says.
  const bool pipe_may_block = (flags & SPLICE_F_NONBLOCK) == 0 && (real.fcntl(in, F_GETFL, 0) & O_NONBLOCK) == 0;
  const auto events = look_at_pipe(in, POLLIN, pipe_may_block);
  if (!events) return events.error();
  if ((*events & POLLIN) == 0)
    return (*events & POLLHUP) != 0 ? Result<ssize_t>(0) : Error{EAGAIN, "splice: empty pipe"};
  if (Status has_room = wait_for_room_to_send(socket); !has_room) return has_room.error();
  const auto room = copy_room();
  if (!room) return room.error();
  const std::span<std::byte> copy = *room;
  const bool may_block = runtime::may_block(*socket, 0);
  // tee(2) would copy the bytes without taking them, but only to another pipe. A small piece always fits a ring that is
  // ready, and a blocking socket waits.
  constexpr std::size_t kSurelyFits = 2048;
  const std::size_t most = may_block ? copy.size() : std::clamp(socket->room_to_send(), kSurelyFits, copy.size());
  const int more = (flags & SPLICE_F_MORE) != 0 ? MSG_MORE : 0;
  const ssize_t got = [&] {
    const OutsideLibrary waiting_in_kernel;
    return real.read(in, copy.data(), std::min(most, count));
  }();
  if (got < 0) return Error::last("splice");
  std::size_t done = 0;
  while (done < static_cast<std::size_t>(got)) {
    auto sent = runtime::retry_until_ready(*socket, EPOLLOUT, Nanos::max(), [&] {
      return socket->send_bytes(copy.data() + done, static_cast<std::size_t>(got) - done, more);
    });
    if (!sent && (sent.error().code == EINTR || sent.error().code == ERESTART)) {
      const OutsideLibrary handlers_run;  // the bytes have left the pipe, so the call goes on
      continue;
    }
    if (!sent && goes_on_by_kernel(socket, sent.error())) [[unlikely]] {
      const Status rest = send_by_kernel(out, copy.subspan(done, static_cast<std::size_t>(got) - done));
      return rest ? Result<ssize_t>(got) : Result<ssize_t>(rest.error());
    }
    if (!sent && sent.error().code == EIO && hand_overs().has_come_back(*socket)) continue;
    if (!sent) return sent;
    done += static_cast<std::size_t>(*sent);
  }
  return got;
}

/// Checks the offsets of splice(2) as the kernel does. `pipe_offset` belongs to the side that must be a pipe.
Status check_offsets(int pipe, const off_t* pipe_offset, const off_t* socket_offset) {
  if (real.fcntl(pipe, F_GETFD, 0) < 0) return Error{EBADF, "splice"};
  if (pipe_offset != nullptr && real.fcntl(pipe, F_GETPIPE_SZ, 0) >= 0) return Error{ESPIPE, "splice: pipe"};
  for (const off_t* offset : {pipe_offset, socket_offset}) {
    if (offset != nullptr && !are_readable(offset)) return Error{EFAULT, "splice: offset"};
  }
  if (socket_offset != nullptr) return Error{EINVAL, "splice: a socket has no offset"};
  return ok();
}

/// @param socket  under `in` if `from_socket`, otherwise under `out`
Result<ssize_t> splice_ours(Lookup& socket, bool from_socket, int in, const off_t* in_offset, int out,
                            const off_t* out_offset, size_t count, unsigned flags) {
  constexpr unsigned kKnownFlags = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;
  if ((flags & ~kKnownFlags) != 0) return Error{EINVAL, "splice: flags"};
  const Status fine =
      from_socket ? check_offsets(out, out_offset, in_offset) : check_offsets(in, in_offset, out_offset);
  if (!fine) return fine.error();
  socket.pin();
  if (fd_table().holds(from_socket ? out : in)) return Error{EINVAL, "splice: one side must be a pipe"};
  return from_socket ? socket_to_pipe(socket, out, count, flags) : pipe_to_socket(socket, out, in, count, flags);
}

}  // namespace
}  // namespace ringsock::preload

using namespace ringsock;
using namespace ringsock::preload;

RS_INTERCEPT ssize_t sendfile(int out, int in, off_t* offset, size_t count) {
  return sendfile_ours(out, in, offset, count);
}
RS_INTERCEPT ssize_t sendfile64(int out, int in, off_t* offset, size_t count) {
  return sendfile_ours(out, in, offset, count);
}

RS_INTERCEPT ssize_t splice(int in, off_t* in_offset, int out, off_t* out_offset, size_t count, unsigned flags) {
  const auto by_kernel = [=] { return real.splice(in, in_offset, out, out_offset, count, flags); };
  const bool from_socket = fd_table().holds(in);
  if (!from_socket && !fd_table().holds(out)) [[likely]]
    return by_kernel();
  if (count == 0) return 0;
  return route(
      from_socket ? in : out,
      [&](Lookup& socket) { return splice_ours(socket, from_socket, in, in_offset, out, out_offset, count, flags); },
      by_kernel);
}

RS_BY_NUMBER(sendfile);
RS_BY_NUMBER(splice);
