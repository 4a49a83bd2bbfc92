// Connections of a program that knows only libc's sockets, which are made one after the other and stay open: what one
// costs both ends. For kept_connections.sh, which runs it over the kernel's TCP and over librspreload.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "tests/bench/loopback.h"

namespace {

constexpr int kBacklog = 128;

/// What a process has used.
struct Used {
  double cpu_us;
  double faults;
  double switches;
};

Used used() {
  timespec cpu{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return {static_cast<double>(cpu.tv_sec) * 1e6 + static_cast<double>(cpu.tv_nsec) / 1e3,
          static_cast<double>(usage.ru_minflt), static_cast<double>(usage.ru_nvcsw)};
}

Used since(const Used& before) {
  const Used now = used();
  return {now.cpu_us - before.cpu_us, now.faults - before.faults, now.switches - before.switches};
}

/// What one end has used: to make the connections, and to close them.
struct End {
  Used made;
  Used closed;
};

void close_all(const std::vector<int>& sockets) {
  for (const int socket : sockets) ::close(socket);
}

/// Tells that it begins to close by a byte on the first connection, which the client has been told to wait for.
End accept_and_keep(int listener, int connections) {
  std::vector<int> clients;
  clients.push_back(::accept(listener, nullptr, nullptr));  // the first is not counted
  End end{};
  const Used before = used();
  for (int i = 1; i < connections; ++i) {
    const int client = ::accept(listener, nullptr, nullptr);
    if (client < 0) fail("accept");
    clients.push_back(client);
  }
  end.made = since(before);
  char byte = 0;
  if (::read(clients.front(), &byte, 1) != 1) fail("the client's end");
  const Used open = used();
  close_all(clients);
  end.closed = since(open);
  return end;
}

int connect_to(const sockaddr_in& address) {
  const int server = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
  return server;
}

End connect_and_keep(const sockaddr_in& address, int connections) {
  std::vector<int> servers;
  servers.push_back(connect_to(address));
  End end{};
  const Used before = used();
  for (int i = 1; i < connections; ++i) servers.push_back(connect_to(address));
  end.made = since(before);
  const Used open = used();
  const char byte = 'x';
  if (::write(servers.front(), &byte, 1) != 1) fail("a byte");
  if (::getenv("KEPT_CLOSE_BY_EXIT") == nullptr) close_all(servers);
  end.closed = since(open);
  return end;
}

void tell(const char* what, const Used& client, const Used& server, int connections) {
  std::printf("%-8s %8.1f %8.1f %8.1f us CPU, %6.1f %6.1f faults, %6.1f %6.1f sleeps\n", what,
              client.cpu_us / connections, server.cpu_us / connections, (client.cpu_us + server.cpu_us) / connections,
              client.faults / connections, server.faults / connections, client.switches / connections,
              server.switches / connections);
}

int run(int connections) {
  sockaddr_in address;
  const int listener = listen_anywhere(kBacklog, address);
  int result[2];
  if (::pipe(result) != 0) fail("pipe");
  const pid_t server = ::fork();
  if (server == 0) {
    const End end = accept_and_keep(listener, connections);
    if (::write(result[1], &end, sizeof end) != sizeof end) fail("write");
    ::exit(0);
  }
  ::close(listener);
  const auto begun = std::chrono::steady_clock::now();
  const End client = connect_and_keep(address, connections);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begun;
  End other{};
  if (::read(result[0], &other, sizeof other) != sizeof other) fail("read");
  ::waitpid(server, nullptr, 0);
  std::printf("client, server, both, each connection: %.1f us in all\n", took.count() / connections);
  tell("made", client.made, other.made, connections);
  tell("closed", client.closed, other.closed, connections);
  return 0;
}

}  // namespace

/// kept_connections N: makes N connections between two processes, keeps them all, and closes them.
int main(int count, char** words) {
  const int connections = count == 2 ? std::atoi(words[1]) : 0;
  if (connections > 1) return run(connections);
  std::fprintf(stderr, "usage: kept_connections CONNECTIONS\n");
  return 2;
}
