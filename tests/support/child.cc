#include "tests/support/child.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace ringsock::testing {

bool Channel::send_bytes(const void* data, std::size_t length) {
  return ::send(socket_.get(), data, length, MSG_NOSIGNAL) == static_cast<ssize_t>(length);
}

bool Channel::receive_bytes(void* data, std::size_t length, Milliseconds limit) {
  pollfd readable{socket_.get(), POLLIN, 0};
  int ready;
  do {
    ready = ::poll(&readable, 1, static_cast<int>(limit.count()));
  } while (ready < 0 && errno == EINTR);
  return ready == 1 && ::recv(socket_.get(), data, length, 0) == static_cast<ssize_t>(length);
}

void end_with(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(128 + SIGKILL);
}

Child Child::start(const std::function<int(Channel&)>& body) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  std::fflush(nullptr);  // or the child would print what waits in our buffers once more
  const pid_t us = getpid();
  const pid_t pid = fork();
  if (pid < 0) std::abort();
  if (pid == 0) {
    end_with(us);
    ::close(ends[0]);
    Channel channel{UniqueFd(ends[1])};
    const int status = body(channel);
    std::fflush(nullptr);
    _exit(status);
  }
  ::close(ends[1]);
  return Child(pid, UniqueFd(ends[0]));
}

Child::~Child() {
  if (pid_ < 0) return;
  kill(SIGKILL);
  wait();
}

void Child::kill(int signal) const {
  if (pid_ > 0) ::kill(pid_, signal);
}

int Child::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace ringsock::testing
