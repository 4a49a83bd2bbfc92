// Connections of a program that knows only libc's sockets, one after the other: connect, a byte each way, close. For
// short_connections.sh, which runs it over the kernel's TCP and over librspreload.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr int kBacklog = 128;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

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

int run_server(int workers) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("bind");
  if (::listen(listener, kBacklog) != 0) fail("listen");
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) fail("getsockname");
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  for (int i = 0; i < workers; ++i) {
    if (::fork() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve(listener);
  }
  if (workers == 0) serve(listener);
  for (;;) ::pause();
}

int run_client(int port, int connections) {
  const sockaddr_in address = loopback(port);
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < connections; ++i) {
    const int server = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
    char byte = 'x';
    if (::write(server, &byte, 1) != 1 || ::read(server, &byte, 1) != 1) fail("a byte each way");
    ::close(server);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  std::printf("%.0f\n", connections / took.count());
  return 0;
}

}  // namespace

/// short_connections server WORKERS: tells its port, and serves until it is killed; 0 workers: by itself.
/// short_connections client PORT CONNECTIONS: tells how many it made per second.
int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  if (what == "server" && count == 3) return run_server(std::atoi(words[2]));
  if (what == "client" && count == 4) return run_client(std::atoi(words[2]), std::atoi(words[3]));
  std::fprintf(stderr, "usage: short_connections server WORKERS | client PORT CONNECTIONS\n");
  return 2;
}
