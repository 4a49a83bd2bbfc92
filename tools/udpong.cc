// udpong: datagrams over rsockets or the kernel's UDP.
#include <getopt.h>
#include <netinet/in.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "tools/resolve.h"
#include "tools/text.h"
#include "tools/udpong_session.h"

namespace ringsock::tools {

namespace {

constexpr const char kUsage[] =
    "usage: udpong [options]\n"
    "  -s server_address  connect to this server; without it, be the server\n"
    "  -b bind_address    local address to bind to\n"
    "  -B buffer_size     send and receive buffers in bytes, 0 for the system's (524288)\n"
    "  -C transfer_count  messages per test (1000)\n"
    "  -S transfer_size   bytes per message, 16 to 2048 (1000)\n"
    "  -p port_number     (7174)\n"
    "  -T test_option     one of the words below or its first letter; may be repeated\n"
    "       s|sockets      use kernel UDP sockets\n"
    "       a|async        wait with poll before each call\n"
    "       b|blocking     use blocking calls\n"
    "       n|nonblocking  use nonblocking calls (default)\n"
    "       e|echo         the server sends all messages back\n"
    "  -h                 show this help\n"
    "Either of -C and -S runs one test with these values instead of the series.\n";

bool set_test(UdpongOptions& options, std::string_view text) {
  if (means(text, "sockets")) return options.kernel = true;
  if (means(text, "async")) return options.async = true;
  if (means(text, "blocking")) return options.blocking = true;
  if (means(text, "echo")) return options.echo = true;
  if (!means(text, "nonblocking")) return false;
  options.blocking = false;
  return true;
}

bool set_option(UdpongOptions& options, int letter, const char* argument) {
  constexpr std::uint64_t kMaxInt = std::numeric_limits<int>::max();
  switch (letter) {
    case 's': options.server = argument; return !options.server.empty();
    case 'b': options.bind_node = argument; return !options.bind_node.empty();
    case 'B': return set_number(options.buffer_bytes, argument, 0, kMaxInt);
    case 'C': options.custom = true; return set_number(options.transfers, argument, 1, kMaxInt);
    case 'S':
      options.custom = true;
      return set_number(options.transfer_bytes, argument, kMinUdpongBytes, kMaxUdpongBytes);
    case 'p': options.port = argument; return parse_number(argument, 1, 65535).has_value();
    case 'T': return set_test(options, argument);
    default: return false;
  }
}

/// Returns the exit status after a mistake or --help, or -1 when the options are complete.
int parse(UdpongOptions& options, int argc, char** argv) {
  for (int letter = 0; (letter = ::getopt(argc, argv, "s:b:B:C:S:p:T:h")) != -1;) {
    if (letter == 'h') {
      std::fputs(kUsage, stdout);
      return EXIT_SUCCESS;
    }
    if (letter != '?' && set_option(options, letter, ::optarg)) continue;
    if (letter != '?') std::fprintf(stderr, "udpong: wrong value for -%c: %s\n", letter, ::optarg);
    std::fputs(kUsage, stderr);
    return EXIT_FAILURE;
  }
  if (::optind == argc) return -1;
  std::fprintf(stderr, "udpong: what is \"%s\"?\n%s", argv[::optind], kUsage);
  return EXIT_FAILURE;
}

Status set_buffers(const Socket& socket, int bytes) {
  if (bytes == 0) return ok();
  if (Status set = socket.set_option(SOL_SOCKET, SO_SNDBUF, bytes, "SO_SNDBUF"); !set) return set;
  return socket.set_option(SOL_SOCKET, SO_RCVBUF, bytes, "SO_RCVBUF");
}

Status bind_to(const Socket& socket, const std::string& node, const std::string& port) {
  const auto local = resolve({.node = node, .port = port, .passive = true});
  if (!local) return local.error();
  return socket.calls().bind(socket.fd(), local->get(), local->length) == 0 ? ok() : Status(Error::last("bind"));
}

Status run_client(const UdpongOptions& options, Socket socket) {
  UdpongClient client(options, std::move(socket));
  if (Status done = client.log_in(); !done) return done;
  print_udpong_header();
  for (const UdpongTest& test : udpong_tests(options)) {
    if (Status done = client.run(test); !done) return done;
  }
  return ok();
}

}  // namespace

Result<Socket> open_udpong_socket(const UdpongOptions& options) {
  const SocketCalls& calls = options.kernel ? kernel_sockets() : rsockets();
  const std::string& node = options.is_client() ? options.server : options.bind_node;
  const auto address = resolve({.node = node, .port = options.port, .passive = !options.is_client()});
  if (!address) return address.error();
  Socket socket(calls, calls.socket(address->family(), SOCK_DGRAM, IPPROTO_UDP));
  if (socket.fd() < 0) return Error::last("socket");
  if (Status set = set_buffers(socket, options.buffer_bytes); !set) return set.error();
  if (!options.blocking) {
    if (Status set = socket.set_nonblocking(); !set) return set.error();
  }
  if (!options.is_client() || !options.bind_node.empty()) {
    Status bound = bind_to(socket, options.bind_node, options.is_client() ? "" : options.port);
    if (!bound) return bound.error();
  }
  if (!options.is_client()) return socket;
  if (calls.connect(socket.fd(), address->get(), address->length) != 0) return Error::last("connect");
  return socket;
}

namespace {

int udpong_main(int argc, char** argv) {
  UdpongOptions options;
  if (const int status = parse(options, argc, argv); status >= 0) return status;
  auto socket = open_udpong_socket(options);
  Status done = !socket               ? Status(socket.error())
                : options.is_client() ? run_client(options, *std::move(socket))
                                      : serve_udpong(options, *socket);
  if (done) return EXIT_SUCCESS;
  std::fprintf(stderr, "udpong: %s: %s\n", done.error().where, std::strerror(done.error().code));
  return EXIT_FAILURE;
}

}  // namespace

}  // namespace ringsock::tools

int main(int argc, char** argv) { return ringsock::tools::udpong_main(argc, argv); }
