#include "tools/rcopy_client.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/clock.h"
#include "core/base/unique_fd.h"
#include "tools/rcopy_protocol.h"
#include "tools/resolve.h"

namespace ringsock::tools {

namespace {

void say(const char* words) {
  std::fputs(words, stdout);
  std::fflush(stdout);
}

struct Source {
  UniqueFd file;
  std::uint64_t bytes;
  std::uint32_t mode;
};

Result<Source> open_source(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return Error::last("open source");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Error::last("fstat source");
  if (S_ISDIR(status.st_mode)) return Error{EISDIR, "open source"};
  if (!S_ISREG(status.st_mode)) return Error{EINVAL, "source is not a regular file"};
  return Source{std::move(file), static_cast<std::uint64_t>(status.st_size), status.st_mode};
}

Result<Socket> connect_to(const SocketCalls& calls, const RcopyJob& job) {
  const auto address = resolve({.node = job.server, .port = job.port});
  if (!address) return address.error();
  Socket socket(calls, calls.socket(address->family(), SOCK_STREAM, 0));
  if (socket.fd() < 0) return Error::last("socket");
  if (auto set = socket.set_option(IPPROTO_TCP, TCP_NODELAY, 1, "setsockopt TCP_NODELAY"); !set) return set.error();
  if (auto done = connect_socket(socket, address->get(), address->length); !done) return done.error();
  return socket;
}

Status receive_reply(const RcopyStream& stream, RcopyCommand command, const char* where) {
  RcopyHeader reply{};
  if (auto done = stream.receive_all(bytes_of(reply)); !done) return done;
  const auto expected = static_cast<std::uint8_t>(static_cast<std::uint8_t>(command) | kRcopyReply);
  if (reply.version != kRcopyVersion || reply.command != expected || reply.length != sizeof reply) {
    return Error{EPROTO, where};
  }
  if (reply.data != 0) return Error{static_cast<int>(std::min(reply.data, 4095U)), where};
  return ok();
}

RcopyHeader header(RcopyCommand command, std::size_t length, std::uint32_t data) {
  return {.version = kRcopyVersion,
          .command = static_cast<std::uint8_t>(command),
          .length = static_cast<std::uint16_t>(length),
          .data = data,
          .id = 0};
}

Status request_open(const RcopyStream& stream, const RcopyJob& job, std::uint32_t mode) {
  const std::size_t path_bytes = (job.destination.size() + 1 + 7) / 8 * 8;
  if (path_bytes > kRcopyMaxPathBytes) return Error{ENAMETOOLONG, "destination"};
  std::vector<std::byte> message(sizeof(RcopyHeader) + path_bytes);
  RcopyHeader open = header(RcopyCommand::open, message.size(), mode);
  std::memcpy(message.data(), &open, sizeof open);
  std::memcpy(message.data() + sizeof open, job.destination.data(), job.destination.size());
  if (auto done = stream.send_all(message); !done) return done;
  return receive_reply(stream, RcopyCommand::open, "server: open");
}

Status send_contents(const RcopyStream& stream, const Source& source) {
  const auto chunk = std::make_unique<std::byte[]>(kRcopyChunkBytes);
  for (std::uint64_t left = source.bytes; left > 0;) {
    const std::size_t wanted = std::min<std::uint64_t>(left, kRcopyChunkBytes);
    const ssize_t count = ::read(source.file.get(), chunk.get(), wanted);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::last("read source");
    // The size was announced already, so the transfer must be aborted.
    if (count == 0) return Error{EIO, "source became shorter while it was copied"};
    const auto bytes = static_cast<std::size_t>(count);
    if (auto done = stream.send_all({chunk.get(), bytes}); !done) return done;
    left -= bytes;
  }
  return ok();
}

Status request_write(const RcopyStream& stream, const Source& source) {
  struct {
    RcopyHeader head;
    std::uint64_t bytes;
  } message{header(RcopyCommand::write, sizeof message, 0), source.bytes};
  static_assert(sizeof message == 24);
  if (auto done = stream.send_all(bytes_of(message)); !done) return done;
  if (auto done = send_contents(stream, source); !done) return done;
  return receive_reply(stream, RcopyCommand::write, "server: write");
}

Status request_close(const RcopyStream& stream) {
  RcopyHeader close = header(RcopyCommand::close, sizeof(RcopyHeader), 0);
  if (auto done = stream.send_all(bytes_of(close)); !done) return done;
  return receive_reply(stream, RcopyCommand::close, "server: close");
}

void print_summary(std::uint64_t bytes, Nanos elapsed) {
  const double seconds = std::chrono::duration<double>(elapsed).count();
  std::printf("%llu bytes in %.2f seconds = %.2f Gb/sec\n", static_cast<unsigned long long>(bytes), seconds,
              static_cast<double>(bytes) * 8 / seconds / 1e9);
}

Status transfer(const RcopyStream& stream, const RcopyJob& job, const Source& source) {
  say("opening...");
  if (auto done = request_open(stream, job, source.mode); !done) return done;
  say("transferring...");
  const Nanos start = monotonic_now();
  if (auto done = request_write(stream, source); !done) return done;
  const Nanos elapsed = monotonic_now() - start;
  say("closing...");
  if (auto done = request_close(stream); !done) return done;
  say("done\n");
  print_summary(source.bytes, elapsed);
  return ok();
}

}  // namespace

Status copy_to_server(const SocketCalls& calls, const RcopyJob& job) {
  const auto source = open_source(job.source);
  if (!source) return source.error();
  const auto socket = connect_to(calls, job);
  if (!socket) return socket.error();
  const RcopyStream stream(*socket, -1);

  if (auto done = transfer(stream, job, *source); !done) {
    say("\n");
    return done;
  }
  calls.shutdown(socket->fd(), SHUT_RDWR);
  return ok();
}

}  // namespace ringsock::tools
