// One signal for a thread that waits: the kernel interrupts the call, and so must we.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <string>
#include <thread>

#include "tests/support/sanitizers.h"
#include "tests/support/thread_status.h"

namespace ringsock::support {

/// ThreadSanitizer runs a handler when the call that it interrupts returns: never, when the kernel restarts it.
inline constexpr bool kDelaysHandlers = kHasThreadSanitizer;

inline std::atomic<int> handled{0};  ///< handlers that ran since the last Disposition was made
extern "C" inline void count_handled(int) { handled.fetch_add(1); }

/// Sets what the process does on a signal, while it lives.
class Disposition {
 public:
  explicit Disposition(int signal, void (*handler)(int) = count_handled, int flags = 0) : signal_(signal) {
    handled = 0;
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    ::sigaction(signal_, &action, &old_);
  }
  Disposition(const Disposition&) = delete;
  Disposition& operator=(const Disposition&) = delete;
  ~Disposition() { ::sigaction(signal_, &old_, nullptr); }

 private:
  int signal_;
  struct sigaction old_ {};
};

/// Whether the calling thread blocks it.
inline bool is_blocked(int signal) {
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return sigismember(&now, signal) == 1;
}

/// Whether a thread that waits in a call and does not block `signal` itself cannot miss it any more: its spin holds
/// signals, or it sleeps, as it does at once where others want the CPU.
inline bool is_interruptible(pid_t thread, int signal) {
  const std::string blocked = status_of(thread, "SigBlk");
  const bool holds = !blocked.empty() && (std::stoull(blocked, nullptr, 16) >> (signal - 1) & 1) != 0;
  return holds || status_of(thread, "State").starts_with('S');
}

/// Calls `wait`, and sends the calling thread one SIGUSR1 once it waits; then another thread does `afterwards`.
/// @return the answer of `wait`, with its errno.
template <class Wait>
auto with_one_signal(
    Wait wait, std::function<void()> afterwards = [] {}) {
  std::atomic<bool> begun{false};  // libc holds signals itself while it makes a thread
  std::thread sender([&, victim = ::pthread_self(), id = ::gettid()] {
    while (!begun || !is_interruptible(id, SIGUSR1)) std::this_thread::yield();
    ::pthread_kill(victim, SIGUSR1);
    afterwards();
  });
  begun = true;
  auto answer = wait();
  const int error = errno;
  sender.join();
  errno = error;
  return answer;
}

inline void until_handled() {
  while (handled == 0) std::this_thread::yield();
}

/// A call of libc that waits until a socket is readable, for ever. -1 and errno.
struct LibcWait {
  const char* name;
  int (*call)(int fd);
};
inline int wait_in_recv(int fd) {
  char byte = 0;
  return static_cast<int>(::recv(fd, &byte, 1, 0));
}
inline int wait_in_poll(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, -1);
}
inline int wait_in_select(int fd) {
  fd_set readable;
  FD_ZERO(&readable);
  FD_SET(fd, &readable);
  return ::select(fd + 1, &readable, nullptr, nullptr, nullptr);
}
inline int wait_in_epoll(int fd) {
  const int set = ::epoll_create1(0);
  epoll_event event{EPOLLIN, {.fd = fd}};
  ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
  const int ready = ::epoll_wait(set, &event, 1, -1);
  const int error = errno;
  ::close(set);
  errno = error;
  return ready;
}
inline constexpr LibcWait kLibcWaits[] = {
    {"recv", wait_in_recv}, {"poll", wait_in_poll}, {"select", wait_in_select}, {"epoll_wait", wait_in_epoll}};

}  // namespace ringsock::support
