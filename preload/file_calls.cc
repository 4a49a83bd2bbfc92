// Transfers between files, pipes and sockets, by copying.
#include <fcntl.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>

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

/// Writes as many bytes as the pipe has room for. Does not wait for room for the rest: the thread that would wait may
/// be the one that empties the pipe. Errors: those of write(2); EAGAIN when there is no room and the caller does not
/// wait.
Result<ssize_t> put_into_pipe(int pipe, std::span<std::byte> bytes, bool may_block) {
  const iovec part{bytes.data(), bytes.size()};
  for (;;) {
    ssize_t put = real.pwritev2(pipe, &part, 1, -1, RWF_NOWAIT);
    if (put < 0 && errno == EOPNOTSUPP) put = real.write(pipe, bytes.data(), bytes.size());  // before Linux 6.4
    if (put >= 0) return put;
    if (errno != EAGAIN || !may_block) return Error::last("splice");
    pollfd room{pipe, POLLOUT, 0};
    if (auto woken = poll_until(std::span(&room, 1), Nanos::max(), nullptr); !woken) return woken.error();
  }
}

/// Carries out splice(2) from a ring into a pipe. Only the bytes that the pipe takes leave the socket.
Result<ssize_t> socket_to_pipe(Lookup& socket, int out, size_t count, unsigned flags) {
  if (Status pipe = require_pipe(out, O_RDONLY); !pipe) return pipe.error();
  const auto room = copy_room();
  if (!room) return room.error();
  const std::span<std::byte> copy = *room;
  const int wait = (flags & SPLICE_F_NONBLOCK) != 0 ? MSG_DONTWAIT : 0;
  const bool pipe_may_block = wait == 0 && (real.fcntl(out, F_GETFL, 0) & O_NONBLOCK) == 0;
  auto seen = runtime::receive(socket, copy.data(), std::min(copy.size(), count), MSG_PEEK | wait);
  if (!seen || *seen == 0) return seen;
  const auto put = put_into_pipe(out, copy.first(static_cast<std::size_t>(*seen)), pipe_may_block);
  if (!put) return put;
  return runtime::receive(socket, copy.data(), static_cast<std::size_t>(*put), MSG_DONTWAIT);
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

/// Carries out splice(2) from a pipe into a ring. Bytes that have left the pipe must be sent, so only as many are read
/// as fit.
Result<ssize_t> pipe_to_socket(Lookup& socket, int out, int in, size_t count, unsigned flags) {
  if (Status pipe = require_pipe(in, O_WRONLY); !pipe) return pipe.error();
  // What the pipe says comes before what the socket says.
  pollfd pipe{in, POLLIN, 0};
  if (const auto looked = poll_until(std::span(&pipe, 1), Nanos::zero(), nullptr); !looked) return looked.error();
  if ((pipe.revents & POLLIN) == 0) {
    if ((pipe.revents & POLLHUP) != 0) return 0;
    if ((flags & SPLICE_F_NONBLOCK) != 0) return Error{EAGAIN, "splice: empty pipe"};
  }
  if (auto may_send = runtime::send(socket, nullptr, 0, 0); !may_send) return may_send;
  const auto room = copy_room();
  if (!room) return room.error();
  const std::span<std::byte> copy = *room;
  const bool may_block = (flags & SPLICE_F_NONBLOCK) == 0 && !socket->is_nonblocking();
  if (!may_block && (socket->ready() & EPOLLOUT) == 0) return Error{EAGAIN, "splice"};
  // tee(2) would copy the bytes without taking them, but only to another pipe. A small piece always fits a ring that is
  // ready, and a blocking socket waits.
  constexpr std::size_t kSurelyFits = 2048;
  const std::size_t most = may_block ? copy.size() : std::clamp(socket->room_to_send(), kSurelyFits, copy.size());
  const ssize_t got = [&] {
    const OutsideLibrary waiting_in_kernel;
    return real.read(in, copy.data(), std::min(most, count));
  }();
  if (got < 0) return Error::last("splice");
  std::size_t done = 0;
  while (done < static_cast<std::size_t>(got)) {
    auto sent = runtime::retry_until_ready(*socket, EPOLLOUT, Nanos::max(), [&] {
      return socket->send_bytes(copy.data() + done, static_cast<std::size_t>(got) - done, 0);
    });
    if (!sent && (sent.error().code == EINTR || sent.error().code == ERESTART)) {
      const OutsideLibrary handlers_run;  // the bytes have left the pipe, so the call goes on
      continue;
    }
    if (!sent && goes_on_by_kernel(socket, sent.error())) [[unlikely]] {
      const Status rest = send_by_kernel(out, copy.subspan(done, static_cast<std::size_t>(got) - done));
      return rest ? Result<ssize_t>(got) : Result<ssize_t>(rest.error());
    }
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
