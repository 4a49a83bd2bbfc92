#include "tools/rcopy_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "tools/rcopy_file.h"
#include "tools/rcopy_protocol.h"
#include "tools/resolve.h"

namespace ringsock::tools {

namespace {

/// A client that is silent for this time is disconnected in favour of the next one.
constexpr int kIdleTimeoutMs = 30'000;

void say(const std::string& words) {
  std::fputs(words.c_str(), stdout);
  std::fflush(stdout);
}

/// Returns a path from the network with unprintable characters replaced.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

/// One client's connection: open, write, close in this order.
class CopySession {
 public:
  explicit CopySession(const Socket& socket) : stream_(socket, kIdleTimeoutMs) {}

  /// Answers messages until the client is done. Errors: EPROTO for malformed messages, otherwise the error that
  /// occurred.
  Status run() {
    for (;;) {
      RcopyHeader request{};
      if (auto done = stream_.receive_all(bytes_of(request)); !done) return done;
      if (request.version != kRcopyVersion) return Error{EPROTO, "unknown version"};
      const auto command = static_cast<RcopyCommand>(request.command);
      if (auto done = handle(command, request); !done) {
        // Also sent to a client that is refused. A failure to send is ignored.
        static_cast<void>(reply(command, done.error().code));
        return done;
      }
      if (auto done = reply(command, 0); !done) return done;
      if (command == RcopyCommand::close) return ok();
    }
  }

 private:
  enum class State { idle, opened, written };

  Status handle(RcopyCommand command, const RcopyHeader& request) {
    switch (command) {
      case RcopyCommand::open: return open(request);
      case RcopyCommand::write: return write(request);
      case RcopyCommand::close: return close(request);
    }
    return Error{EPROTO, "unknown command"};
  }

  Status reply(RcopyCommand command, int status) {
    RcopyHeader message{.version = kRcopyVersion,
                        .command = static_cast<std::uint8_t>(static_cast<std::uint8_t>(command) | kRcopyReply),
                        .length = sizeof(RcopyHeader),
                        .data = static_cast<std::uint32_t>(status),
                        .id = 0};
    return stream_.send_all(bytes_of(message));
  }

  Result<std::string> receive_path(const RcopyHeader& request) {
    const std::size_t length = request.length;
    if (length <= sizeof request || length - sizeof request > kRcopyMaxPathBytes) return Error{EPROTO, "path length"};
    std::string path(length - sizeof request, '\0');
    if (auto done = stream_.receive_all(std::as_writable_bytes(std::span(path))); !done) return done.error();
    const std::size_t end = path.find('\0');
    if (end == std::string::npos || end == 0) return Error{EPROTO, "path without an end"};
    path.resize(end);
    return path;
  }

  Status open(const RcopyHeader& request) {
    if (state_ != State::idle) return Error{EPROTO, "open twice"};
    auto path = receive_path(request);
    if (!path) return path.error();
    say("opening: " + printable(*path) + ", ");
    auto file = IncomingFile::create(*path, static_cast<mode_t>(request.data));
    if (!file) return file.error();
    file_.emplace(std::move(*file));
    state_ = State::opened;
    return ok();
  }

  Status write(const RcopyHeader& request) {
    if (state_ != State::opened) return Error{EPROTO, "write before open"};
    std::uint64_t bytes = 0;
    if (request.length != sizeof request + sizeof bytes) return Error{EPROTO, "write length"};
    if (auto done = stream_.receive_all(bytes_of(bytes)); !done) return done;
    say("transferring...");
    if (auto done = file_->reserve(bytes); !done) return done;
    if (auto done = receive_contents(bytes); !done) return done;
    say(std::to_string(bytes) + " bytes...");
    state_ = State::written;
    return ok();
  }

  Status receive_contents(std::uint64_t bytes) {
    const auto chunk = std::make_unique<std::byte[]>(kRcopyChunkBytes);
    while (bytes > 0) {
      // Full chunks make the writes few and large.
      const std::size_t wanted = std::min<std::uint64_t>(bytes, kRcopyChunkBytes);
      if (auto done = stream_.receive_all({chunk.get(), wanted}); !done) return done;
      if (auto done = file_->append({chunk.get(), wanted}); !done) return done;
      bytes -= wanted;
    }
    return ok();
  }

  Status close(const RcopyHeader& request) {
    if (state_ != State::written || request.length != sizeof request) return Error{EPROTO, "close before write"};
    say("closing...");
    if (auto done = file_->commit(); !done) return done;
    state_ = State::idle;
    file_.reset();
    say("done\n");
    return ok();
  }

  RcopyStream stream_;
  State state_ = State::idle;
  std::optional<IncomingFile> file_;
};

Result<Socket> listen_on(const SocketCalls& calls, const std::string& port) {
  const auto address = resolve({.node = {}, .port = port, .passive = true});
  if (!address) return address.error();
  Socket socket(calls, calls.socket(address->family(), SOCK_STREAM, 0));
  if (socket.fd() < 0) return Error::last("socket");
  if (auto set = socket.set_option(SOL_SOCKET, SO_REUSEADDR, 1, "setsockopt SO_REUSEADDR"); !set) return set.error();
  if (calls.bind(socket.fd(), address->get(), address->length) != 0) return Error::last("bind");
  constexpr int kBacklog = 16;
  if (calls.listen(socket.fd(), kBacklog) != 0) return Error::last("listen");
  return socket;
}

void serve_one(const Socket& client) {
  // A failure is ignored: without the option the copy is only slower.
  static_cast<void>(client.set_option(IPPROTO_TCP, TCP_NODELAY, 1, "setsockopt TCP_NODELAY"));
  if (auto done = CopySession(client).run(); !done) {
    say(std::string(done.error().where) + ": " + std::strerror(done.error().code) + "\n");
  }
  client.calls().shutdown(client.fd(), SHUT_RDWR);
}

}  // namespace

Error serve_copies(const SocketCalls& calls, const std::string& port) {
  const auto listener = listen_on(calls, port);
  if (!listener) return listener.error();
  for (;;) {
    say("waiting for connection...");
    sockaddr_storage peer{};
    const auto client = accept_socket(*listener, &peer);
    if (!client) return client.error();
    say("client: " + host_text(reinterpret_cast<const sockaddr*>(&peer), sizeof peer) + "\n");
    serve_one(*client);
  }
}

}  // namespace ringsock::tools
