// For test programs that run under the preload library: sockets by their plain libc names, processes, and the certainty
// that a connection is on a ring. main() is in preloaded.cc: it starts the program anew under the library.
#pragma once

#include <netinet/in.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

namespace ringsock::preloaded {

struct Listener {
  int fd;
  std::uint16_t port;
};
sockaddr_in loopback(std::uint16_t port);
/// On the loopback address, port of the kernel's choice.
Listener listen_anywhere();
int connect_to(std::uint16_t port);
/// A socket that does not block, and whose connect is under way or done.
int start_connecting(std::uint16_t port);
/// The end of a connect that was under way: the socket is connected.
void expect_connected(int fd);
/// By a direct system call: a connection on a ring is an AF_UNIX socket to the kernel.
bool is_on_ring(int fd);
/// Likewise: the kernel knows no connection under the number.
bool is_off_kernel(int fd);
/// An exception with `what` unless it holds.
void expect(bool holds, const char* what);

/// Two ends of a connection on a ring, which this process has both until it forks.
struct Ends {
  Ends();
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  ~Ends();
  int ours;
  int peers;
};

/// The whole of `text`, or an exception with errno's text.
void send_all(int fd, const std::string& text);
/// Exactly so many bytes, fewer at the end of the stream; an error is an exception.
std::string receive(int fd, std::size_t bytes);
/// Until the end of the stream.
std::string receive_all(int fd);
/// errno of a call that failed, 0 when it did not.
int error_of(long result);

/// Sends everything that comes back to where it came from, until the end.
void echo(int fd);
/// `bytes` that are the same for the same seed.
std::string pattern(std::size_t bytes, unsigned seed);

/// A child that runs `body` and ends with status 0, or 1 and a line on stderr when it threw.
pid_t spawn(const std::function<void()>& body);
/// Waits for the end: exit status, or 128 + the signal.
int wait_for(pid_t child);

/// A server process that listens and is stopped. It then accepts one client, and runs `body` on it.
class StoppedServer {
 public:
  explicit StoppedServer(const std::function<void(int client)>& body);
  StoppedServer(const StoppedServer&) = delete;
  StoppedServer& operator=(const StoppedServer&) = delete;
  ~StoppedServer();
  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// Returns as wait_for().
  int go_on_and_wait();

 private:
  std::uint16_t port_ = 0;
  pid_t pid_ = -1;
};

/// Leaves this process no free descriptor: the soft limit of RLIMIT_NOFILE is 80. Programs do not inherit what it
/// opens.
/// @param may_raise  whether the hard limit is higher
void use_all_descriptors(bool may_raise);

/// Tells something to another process once; inherited over fork(2). By a pipe, which no library touches.
class Signal {
 public:
  Signal();
  ~Signal();
  void give();
  void wait();

 private:
  int ends_[2];
};

}  // namespace ringsock::preloaded
