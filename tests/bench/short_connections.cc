// Connections of a program that knows only libc's sockets: connect, a byte each way, close; one after the other, or by
// several threads at once. For short_connections.sh, which runs it over the kernel's TCP and over librspreload.
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/loopback.h"

namespace {

constexpr int kBacklog = 128;

/// As a simple server does, with blocking calls and as many processes as there are workers, and one more; for ever.
[[noreturn]] void serve(int listener) {
  for (;;) {
    const int client = ::accept(listener, nullptr, nullptr);
    if (client < 0) fail("accept");
    char byte;
    while (::read(client, &byte, 1) == 1 && ::write(client, &byte, 1) == 1) {
    }
    ::close(client);
  }
}

int listen_and_tell_port() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("bind");
  if (::listen(listener, kBacklog) != 0) fail("listen");
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) fail("getsockname");
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return listener;
}

int run_server(int workers) {
  const int listener = listen_and_tell_port();
  for (int i = 0; i < workers; ++i) {
    if (::fork() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve(listener);
  }
  if (workers == 0) serve(listener);
  for (;;) ::pause();
}

[[noreturn]] void run_threaded_server(int threads) {
  const int listener = listen_and_tell_port();
  for (int i = 1; i < threads; ++i) std::thread(serve, listener).detach();
  serve(listener);
}

void connect_often(int port, int connections) {
  const sockaddr_in address = loopback(port);
  for (int i = 0; i < connections; ++i) {
    const int server = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
    char byte = 'x';
    if (::write(server, &byte, 1) != 1 || ::read(server, &byte, 1) != 1) fail("a byte each way");
    ::close(server);
  }
}

int run_client(int port, int connections, int threads) {
  const auto begun = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(connect_often, port, connections / threads);
  connect_often(port, connections / threads);
  for (std::thread& one : others) one.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  std::printf("%.0f\n", connections / threads * threads / took.count());
  return 0;
}

}  // namespace

/// short_connections server WORKERS: tells its port, and serves until it is killed; 0 workers: by itself.
/// short_connections threaded-server THREADS: the same with threads in one process.
/// short_connections client PORT CONNECTIONS [THREADS]: tells how many it made per second.
int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  if (what == "server" && count == 3) return run_server(std::atoi(words[2]));
  if (what == "threaded-server" && count == 3) run_threaded_server(std::atoi(words[2]));
  if (what == "client" && (count == 4 || count == 5)) {
    return run_client(std::atoi(words[2]), std::atoi(words[3]), count == 5 ? std::atoi(words[4]) : 1);
  }
  std::fprintf(
      stderr,
      "usage: short_connections server WORKERS | threaded-server THREADS | client PORT CONNECTIONS [THREADS]\n");
  return 2;
}
