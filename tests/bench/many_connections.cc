// Many connections of a program that knows only libc's sockets. For tests/bench/peers, which runs it over the kernel's
// TCP and over librspreload.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/loopback.h"

namespace {

using Clock = std::chrono::steady_clock;
using Message = std::array<char, 64>;

constexpr int kBacklog = 1024;
constexpr int kEvents = 512;
constexpr double kWarmUpSeconds = 0.3;

void switch_nagle_off(int socket) {
  const int on = 1;
  if (::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail("TCP_NODELAY");
}

int connect_to(int port) {
  const sockaddr_in address = loopback(port);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  if (socket < 0) fail("socket");
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
  switch_nagle_off(socket);
  return socket;
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// An epoll set of sockets that are to be read.
class Readable {
 public:
  Readable() : set_(::epoll_create1(0)) {
    if (set_ < 0) fail("epoll_create1");
  }
  void add(int socket) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = socket;
    if (::epoll_ctl(set_, EPOLL_CTL_ADD, socket, &event) != 0) fail("epoll_ctl");
  }
  /// Waits, and calls use(socket) for each socket that can be read.
  template <class Use>
  void wait(Use use) {
    const int ready = ::epoll_wait(set_, events_.data(), kEvents, -1);
    if (ready < 0 && errno != EINTR) fail("epoll_wait");
    for (int i = 0; i < ready; ++i) use(events_[static_cast<std::size_t>(i)].data.fd);
  }

 private:
  int set_;
  std::array<epoll_event, kEvents> events_{};
};

/// Echoes on every connection. Ends when the last connection has ended.
int run_server() {
  sockaddr_in address;
  const int listener = listen_anywhere(kBacklog, address);
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  Readable readable;
  readable.add(listener);
  int connections = 0;
  bool served = false;
  Message message;
  while (connections > 0 || !served) {
    readable.wait([&](int socket) {
      if (socket == listener) {
        const int client = ::accept(listener, nullptr, nullptr);
        if (client < 0) fail("accept");
        switch_nagle_off(client);
        readable.add(client);
        ++connections;
        served = true;
        return;
      }
      const ssize_t got = ::read(socket, message.data(), message.size());
      if (got > 0) {
        if (::write(socket, message.data(), static_cast<std::size_t>(got)) != got) fail("write");
        return;
      }
      ::close(socket);
      --connections;
    });
  }
  return 0;
}

/// `busy` of the `connections`, evenly spread, each send a message, wait for its echo, and send the next. Tells their
/// number per second.
int run_client(int port, int connections, int busy, double seconds) {
  std::vector<int> sockets;
  sockets.reserve(static_cast<std::size_t>(std::max(connections, 0)));
  for (int i = 0; i < connections; ++i) sockets.push_back(connect_to(port));
  std::puts("connected");
  std::fflush(stdout);
  if (busy == 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return 0;
  }
  Readable readable;
  Message message{};
  for (int i = 0; i < busy; ++i) {
    const auto each = static_cast<std::size_t>(static_cast<long>(i) * connections / busy);
    readable.add(sockets[each]);
    if (::write(sockets[each], message.data(), message.size()) != message.size()) fail("write");
  }
  const auto answer_for = [&](double duration) {
    long done = 0;
    const auto start = Clock::now();
    while (seconds_since(start) < duration) {
      readable.wait([&](int socket) {
        const ssize_t got = ::read(socket, message.data(), message.size());
        if (got != message.size()) fail("read");  // the server writes each message as a whole
        if (::write(socket, message.data(), message.size()) != message.size()) fail("write");
        ++done;
      });
    }
    return static_cast<double>(done) / seconds_since(start);
  };
  answer_for(kWarmUpSeconds);
  std::printf("%.0f\n", answer_for(seconds));
  return 0;
}

/// Sends a request of the Redis protocol at a fixed rate over one connection, and waits for each reply. Tells how many
/// it made per second.
int run_paced(int port, double rate, double seconds) {
  static constexpr char kRequest[] = "GET key\r\n";
  const int socket = connect_to(port);
  std::puts("connected");
  std::fflush(stdout);
  const auto start = Clock::now();
  long done = 0;
  while (seconds_since(start) < seconds) {
    const std::chrono::duration<double> due(static_cast<double>(done) / rate);
    std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(due));
    if (::write(socket, kRequest, sizeof kRequest - 1) != sizeof kRequest - 1) fail("write");
    char reply[64];
    ssize_t got = 0;
    do {
      got = ::read(socket, reply, sizeof reply);
      if (got <= 0) fail("read");
    } while (reply[got - 1] != '\n');
    ++done;
  }
  std::printf("%.0f\n", static_cast<double>(done) / seconds_since(start));
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  const auto number = [&](int at) { return std::atof(words[at]); };
  if (what == "server" && count == 2) return run_server();
  if (what == "client" && count == 6)
    return run_client(std::atoi(words[2]), std::atoi(words[3]), std::atoi(words[4]), number(5));
  if (what == "paced" && count == 5) return run_paced(std::atoi(words[2]), number(3), number(4));
  std::fprintf(
      stderr,
      "usage: many_connections server\n"
      "       many_connections client PORT CONNECTIONS BUSY SECONDS\n"
      "       many_connections paced PORT REQUESTS_PER_SECOND SECONDS\n"
      "The server prints its port, echoes, and ends with its last connection. The client opens CONNECTIONS, of\n"
      "which BUSY exchange messages of 64 bytes, and prints messages per second. The paced client sends GET\n"
      "to a Redis server. Clients print \"connected\" when their connections are there.\n");
  return 2;
}
