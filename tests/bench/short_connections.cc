// Connections of a program that knows only libc's sockets: connect, a byte each way, close, or connect, a request, an
// answer of some size, close; one after the other, or by several threads at once. For short_connections.sh, which runs
// it over the kernel's TCP and over librspreload.
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/loopback.h"

namespace {

constexpr int kBacklog = 128;

/// The size of a file server's pieces, and of its clients' buffers.
constexpr std::size_t kPieceBytes = std::size_t{128} << 10;

/// What a client asks a file server for.
struct Request {
  std::uint64_t bytes;
};

void echo(int client) {
  char byte;
  while (::read(client, &byte, 1) == 1 && ::write(client, &byte, 1) == 1) {
  }
}

void send_file(int client) {
  static const std::vector<std::byte> piece(kPieceBytes, std::byte{'x'});
  Request request{};
  if (::read(client, &request, sizeof request) != sizeof request) return;
  while (request.bytes != 0) {
    const ssize_t sent = ::write(client, piece.data(), std::min<std::uint64_t>(request.bytes, piece.size()));
    if (sent <= 0) return;
    request.bytes -= static_cast<std::uint64_t>(sent);
  }
}

/// As a simple server does, with blocking calls and as many processes as there are workers, and one more; for ever.
[[noreturn]] void serve(int listener, void (*answer)(int client)) {
  for (;;) {
    const int client = ::accept(listener, nullptr, nullptr);
    if (client < 0) fail("accept");
    answer(client);
    ::close(client);
  }
}

int listen_and_tell_port() {
  sockaddr_in address;
  const int listener = listen_anywhere(kBacklog, address);
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return listener;
}

int run_server(int workers, void (*answer)(int client)) {
  const int listener = listen_and_tell_port();
  for (int i = 0; i < workers; ++i) {
    if (::fork() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve(listener, answer);
  }
  if (workers == 0) serve(listener, answer);
  for (;;) ::pause();
}

int run_threaded_server(int threads) {
  const int listener = listen_and_tell_port();
  for (int i = 1; i < threads; ++i) std::thread(serve, listener, echo).detach();
  serve(listener, echo);
}

int connect_to(int port) {
  const sockaddr_in address = loopback(port);
  const int server = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
  return server;
}

void exchange_a_byte(int server) {
  char byte = 'x';
  if (::write(server, &byte, 1) != 1 || ::read(server, &byte, 1) != 1) fail("a byte each way");
}

void fetch_file(int server, Request request) {
  static thread_local std::vector<std::byte> piece(kPieceBytes);
  if (::write(server, &request, sizeof request) != sizeof request) fail("a request");
  for (ssize_t got = 0; (got = ::read(server, piece.data(), piece.size())) != 0;) {
    if (got < 0) fail("an answer");
    request.bytes -= static_cast<std::uint64_t>(got);
  }
  if (request.bytes != 0) fail("an answer: its length");
}

/// @param bytes  of a file; 0: a byte each way
void connect_often(int port, int connections, std::uint64_t bytes) {
  for (int i = 0; i < connections; ++i) {
    const int server = connect_to(port);
    bytes == 0 ? exchange_a_byte(server) : fetch_file(server, {bytes});
    ::close(server);
  }
}

int run_client(int port, int connections, int threads, std::uint64_t bytes) {
  const auto begun = std::chrono::steady_clock::now();
  const int each = connections / threads;
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(connect_often, port, each, bytes);
  connect_often(port, each, bytes);
  for (std::thread& one : others) one.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  std::printf("%.0f\n", each * threads / took.count());
  return 0;
}

}  // namespace

/// short_connections server WORKERS: tells its port, and serves until it is killed; 0 workers: by itself.
/// short_connections threaded-server THREADS: the same with threads in one process.
/// short_connections client PORT CONNECTIONS [THREADS]: tells how many it made per second.
/// short_connections file-server WORKERS: as server, and sends what it is asked for.
/// short_connections fetch PORT CONNECTIONS THREADS BYTES: as client, and asks a file server for so many bytes each.
int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  const auto number = [&](int place) { return place < count ? std::atoi(words[place]) : 0; };
  if (what == "server" && count == 3) return run_server(number(2), echo);
  if (what == "file-server" && count == 3) return run_server(number(2), send_file);
  if (what == "threaded-server" && count == 3) return run_threaded_server(number(2));
  if (what == "client" && (count == 4 || count == 5))
    return run_client(number(2), number(3), count == 5 ? number(4) : 1, 0);
  if (what == "fetch" && count == 6) {
    return run_client(number(2), number(3), number(4), std::strtoull(words[5], nullptr, 10));
  }
  std::fprintf(stderr,
               "usage: short_connections server WORKERS | threaded-server THREADS | client PORT CONNECTIONS [THREADS]\n"
               "       | file-server WORKERS | fetch PORT CONNECTIONS THREADS BYTES\n");
  return 2;
}
