// Streams of libc on sockets, fdopen(3), and dprintf(3). libc's streams make system calls of their own, which would
// read a ring's doorbell instead of its bytes. So streams on endpoints get functions of this library.
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "core/base/at_fork.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "preload/route.h"

namespace ringsock::preload {
namespace {

/// The descriptors behind such streams, which libc does not know.
class StreamTable {
 public:
  static constexpr ProcessPart kPart = ProcessPart::stdio_streams;
  void add(FILE* stream, int fd) {
    const std::lock_guard guard(lock_);
    fds_[stream] = fd;
    count_.store(fds_.size(), std::memory_order_release);
  }
  void remove(FILE* stream) {
    const std::lock_guard guard(lock_);
    fds_.erase(stream);
    count_.store(fds_.size(), std::memory_order_release);
  }
  /// Returns -1 for any other stream.
  int find(FILE* stream) {
    if (count_.load(std::memory_order_acquire) == 0) return -1;
    const std::lock_guard guard(lock_);
    const auto found = fds_.find(stream);
    return found == fds_.end() ? -1 : found->second;
  }

  void stay_whole_in_forks() { hold_across_fork(lock_); }

 private:
  Mutex lock_;
  std::map<FILE*, int> fds_;
  std::atomic<std::size_t> count_{0};
};

StreamTable& streams() { return process_state<StreamTable>(); }
[[gnu::constructor]] void start() { streams().stay_whole_in_forks(); }

struct SocketStream {
  int fd;
  FILE* stream;
};

// Each call looks the number up again, because the socket may have been left to the kernel.
ssize_t read_stream(void* cookie, char* data, size_t length) {
  return intercepted_read(static_cast<SocketStream*>(cookie)->fd, data, length);
}
ssize_t write_stream(void* cookie, const char* data, size_t length) {
  const ssize_t written = intercepted_send(static_cast<SocketStream*>(cookie)->fd, data, length, 0);
  return written < 0 ? 0 : written;  // fopencookie(3): 0 is the error
}
/// Fails as lseek(2) on a socket does. Without a seek function the stream would fail when it goes from reading to
/// writing.
int seek_stream(void*, off64_t*, int) {
  errno = ESPIPE;
  return -1;
}
int close_stream(void* cookie) {
  auto* const socket = static_cast<SocketStream*>(cookie);
  streams().remove(socket->stream);
  const int closed = intercepted_close(socket->fd);
  delete socket;
  return closed;
}

FILE* open_stream(int fd, const char* mode) {
  auto* const socket = new SocketStream{fd, nullptr};
  cookie_io_functions_t functions{};
  functions.read = &read_stream;
  functions.write = &write_stream;
  functions.seek = &seek_stream;
  functions.close = &close_stream;
  socket->stream = ::fopencookie(socket, mode, functions);
  if (socket->stream == nullptr) {
    delete socket;
    return nullptr;
  }
  streams().add(socket->stream, fd);
  return socket->stream;
}

int fileno_ours(FILE* stream, int (*libcs)(FILE*)) {
  const int fd = streams().find(stream);
  return fd >= 0 ? fd : libcs(stream);
}

/// Carries out dprintf(3) on an endpoint. `print(char** text)` formats the text as vasprintf(3) does.
int print_to_socket(int fd, auto print) {
  char* text = nullptr;
  const int length = print(&text);
  if (length < 0) return -1;
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  for (ssize_t done = 0; done < length;) {
    const ssize_t sent = intercepted_send(fd, text + done, static_cast<std::size_t>(length - done), 0);
    if (sent < 0) return -1;
    done += sent;
  }
  return length;
}

}  // namespace
}  // namespace ringsock::preload

extern "C" int __vasprintf_chk(char** text, int level, const char* format, va_list arguments);

using namespace ringsock;
using namespace ringsock::preload;

RS_INTERCEPT FILE* fdopen(int fd, const char* mode) noexcept {
  if (!fd_table().holds(fd)) [[likely]]
    return real.fdopen(fd, mode);
  if (mode == nullptr || std::strchr("rwa", mode[0]) == nullptr) {
    errno = EINVAL;
    return nullptr;
  }
  try {
    return open_stream(fd, mode);
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
}

RS_INTERCEPT int fileno(FILE* stream) noexcept { return fileno_ours(stream, real.fileno); }
RS_INTERCEPT int fileno_unlocked(FILE* stream) noexcept { return fileno_ours(stream, real.fileno_unlocked); }

RS_INTERCEPT int vdprintf(int fd, const char* format, va_list arguments) {
  if (!fd_table().holds(fd)) [[likely]]
    return real.vdprintf(fd, format, arguments);
  return print_to_socket(fd, [&](char** text) { return ::vasprintf(text, format, arguments); });
}
RS_INTERCEPT int __vdprintf_chk(int fd, int level, const char* format, va_list arguments) {
  if (!fd_table().holds(fd)) [[likely]]
    return real.__vdprintf_chk(fd, level, format, arguments);
  return print_to_socket(fd, [&](char** text) { return ::__vasprintf_chk(text, level, format, arguments); });
}
RS_INTERCEPT int dprintf(int fd, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int printed = ::vdprintf(fd, format, arguments);
  va_end(arguments);
  return printed;
}
RS_INTERCEPT int __dprintf_chk(int fd, int level, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int printed = ::__vdprintf_chk(fd, level, format, arguments);
  va_end(arguments);
  return printed;
}
