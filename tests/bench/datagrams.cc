// Datagrams of a program that knows only libc's sockets: servers that echo or count, and clients that measure round
// trips or send as fast as they can. For datagrams.sh, which runs it over the kernel's UDP and over librspreload.
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/loopback.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostBytes = 65536;
constexpr int kWarmUpTrips = 2000;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int bind_and_tell_port() {
  const int socket = ::socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("bind");
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) fail("getsockname");
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return socket;
}

void set_patience(int socket, int milliseconds) {
  const timeval patience{milliseconds / 1000, milliseconds % 1000 * 1000};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

int socket_towards(int port) {
  const int socket = ::socket(AF_INET, SOCK_DGRAM, 0);
  const sockaddr_in address = loopback(port);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail("connect");
  return socket;
}

/// Answers each datagram with itself, for ever.
[[noreturn]] void echo() {
  const int socket = bind_and_tell_port();
  std::vector<std::byte> room(kMostBytes);
  for (;;) {
    sockaddr_in from{};
    socklen_t length = sizeof from;
    const ssize_t got = ::recvfrom(socket, room.data(), room.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
    if (got < 0) continue;
    ::sendto(socket, room.data(), static_cast<std::size_t>(got), 0, reinterpret_cast<const sockaddr*>(&from), length);
  }
}

/// Receives until nothing has come for a while after the first datagrams, and prints how many of `bytes` bytes came per
/// second. What comes in the first tenth of a second is not counted.
int sink(std::size_t bytes) {
  constexpr double kWarmUpSeconds = 0.1;
  constexpr int kSilence = 300;
  const int socket = bind_and_tell_port();
  std::vector<std::byte> room(kMostBytes);
  if (::recv(socket, room.data(), room.size(), 0) < 0) fail("recv");
  set_patience(socket, kSilence);
  const Clock::time_point first = Clock::now();
  Clock::time_point start = first, last = first;
  std::uint64_t datagrams = 0;
  bool is_warm = false;
  for (;;) {
    const ssize_t got = ::recv(socket, room.data(), room.size(), 0);
    if (got < 0) break;
    datagrams += static_cast<std::size_t>(got) == bytes ? 1U : 0U;
    constexpr std::uint64_t kLooksAtClock = 64;
    if (datagrams % kLooksAtClock != 0) continue;
    last = Clock::now();
    if (is_warm || seconds_since(first) < kWarmUpSeconds) continue;
    is_warm = true;
    start = last;
    datagrams = 0;
  }
  const double took = std::chrono::duration<double>(last - start).count();
  std::printf("%.0f\n", took > 0 ? static_cast<double>(datagrams) / took : 0.0);
  return 0;
}

/// Sends datagrams for so long, as fast as the calls return. Prints how many were sent per second.
int flood(int port, std::size_t bytes, double seconds) {
  const int socket = socket_towards(port);
  const std::vector<std::byte> datagram(bytes, std::byte{'x'});
  const Clock::time_point start = Clock::now();
  std::uint64_t sent = 0;
  constexpr std::uint64_t kLooksAtClock = 64;
  while (sent % kLooksAtClock != 0 || seconds_since(start) < seconds) {
    ::send(socket, datagram.data(), datagram.size(), 0);
    ++sent;
  }
  std::printf("%.0f\n", static_cast<double>(sent) / seconds_since(start));
  return 0;
}

/// One question and its answer. Returns false when the answer did not come.
bool round_trip(int socket, const void* question, std::size_t bytes) {
  std::array<std::byte, kMostBytes> room;
  return ::send(socket, question, bytes, 0) >= 0 && ::recv(socket, room.data(), room.size(), 0) >= 0;
}

/// Prints how many nanoseconds one way takes, the half of a round trip.
int ping(int port, std::size_t bytes, int trips) {
  const int socket = socket_towards(port);
  set_patience(socket, 1000);
  const std::vector<std::byte> datagram(bytes, std::byte{'x'});
  for (int i = 0; i < kWarmUpTrips; ++i) round_trip(socket, datagram.data(), bytes);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < trips; ++i) {
    if (!round_trip(socket, datagram.data(), bytes)) fail("no answer");
  }
  std::printf("%.0f\n", seconds_since(start) * 1e9 / 2 / trips);
  return 0;
}

/// Round trips of one client within so many seconds.
std::uint64_t trips_within(int port, const std::vector<std::byte>& question, double seconds) {
  const int socket = socket_towards(port);
  set_patience(socket, 1000);
  const Clock::time_point start = Clock::now();
  std::uint64_t trips = 0;
  while (seconds_since(start) < seconds) trips += round_trip(socket, question.data(), question.size()) ? 1U : 0U;
  return trips;
}

/// Prints how many round trips so many client processes make per second, all together.
int many(int port, int clients, double seconds, const std::vector<std::byte>& question) {
  std::array<int, 2> results{};
  if (::pipe(results.data()) != 0) fail("pipe");
  for (int i = 0; i < clients; ++i) {
    if (::fork() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::uint64_t trips = trips_within(port, question, seconds);
    if (::write(results[1], &trips, sizeof trips) != sizeof trips) ::_exit(1);
    ::_exit(0);
  }
  ::close(results[1]);
  std::uint64_t trips = 0, total = 0;
  while (::read(results[0], &trips, sizeof trips) == sizeof trips) total += trips;
  while (::wait(nullptr) > 0) {
  }
  std::printf("%.0f\n", static_cast<double>(total) / seconds);
  return 0;
}

/// A get of memcached's text protocol with the header of its datagrams: number, sequence, datagrams, reserved.
std::vector<std::byte> question_for_memcached() {
  constexpr std::string_view kQuestion("\0\1\0\0\0\1\0\0get key\r\n", 17);
  const auto* const first = reinterpret_cast<const std::byte*>(kQuestion.data());
  return {first, first + kQuestion.size()};
}

int usage() {
  std::fputs(
      "usage: datagrams echo | sink BYTES | flood PORT BYTES SECONDS | ping PORT BYTES TRIPS |\n"
      "                 many PORT CLIENTS SECONDS BYTES | memcached PORT CLIENTS SECONDS\n",
      stderr);
  return 2;
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> given(words + 1, words + count);
  if (given.empty()) return usage();
  const auto number = [&given](std::size_t i) { return std::atof(given[i].c_str()); };
  const auto whole = [&number](std::size_t i) { return static_cast<int>(number(i)); };
  const std::string& what = given[0];
  const std::size_t words_given = given.size();
  if (what == "echo" && words_given == 1) echo();
  if (what == "sink" && words_given == 2) return sink(static_cast<std::size_t>(number(1)));
  if (what == "flood" && words_given == 4) return flood(whole(1), static_cast<std::size_t>(number(2)), number(3));
  if (what == "ping" && words_given == 4) return ping(whole(1), static_cast<std::size_t>(number(2)), whole(3));
  if (what == "many" && words_given == 5) {
    return many(whole(1), whole(2), number(3), std::vector<std::byte>(static_cast<std::size_t>(number(4))));
  }
  if (what == "memcached" && words_given == 4) return many(whole(1), whole(2), number(3), question_for_memcached());
  return usage();
}
