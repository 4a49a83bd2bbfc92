// A second process, perhaps of another user, for stories that need one.
#pragma once

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>

namespace ringsock::tests {

inline constexpr uid_t kAlice = 65534;
inline constexpr uid_t kBob = 65001;

/// Numbers go to and fro between the two.
class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  void tell(std::uint32_t number) const {
    [[maybe_unused]] auto sent = ::send(fd_, &number, sizeof number, MSG_NOSIGNAL);
  }
  /// Nothing when the other process has gone.
  [[nodiscard]] std::optional<std::uint32_t> hear() const {
    std::uint32_t number = 0;
    if (::recv(fd_, &number, sizeof number, 0) != sizeof number) return std::nullopt;
    return number;
  }
  /// Whether hear() has something to tell, or nobody can tell it any more, within that time.
  [[nodiscard]] bool can_hear(int timeout_ms) const {
    pollfd wait{fd_, POLLIN, 0};
    return ::poll(&wait, 1, timeout_ms) == 1;
  }
  /// The other process hears nothing more.
  void hang_up() const { ::shutdown(fd_, SHUT_WR); }

 private:
  int fd_;
};

/// Runs `body` in a forked child as user `uid`; its result is the exit status. Killed and reaped on destruction.
class OtherProcess {
 public:
  OtherProcess(uid_t uid, const std::function<int(Channel)>& body) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) ::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (uid != ::geteuid() && (::setresgid(uid, uid, uid) != 0 || ::setresuid(uid, uid, uid) != 0)) ::_exit(99);
      ::_exit(body(Channel(ends[1])));
    }
    ::close(ends[1]);
    fd_ = ends[0];
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;
  ~OtherProcess() {
    signal(SIGKILL);
    [[maybe_unused]] const int status = wait();
    ::close(fd_);
  }

  [[nodiscard]] Channel channel() const { return Channel(fd_); }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }
  /// Whether it has; `status` as wait() tells.
  bool has_ended(int& status) {
    if (pid_ > 0) {
      int raw = 0;
      if (::waitpid(pid_, &raw, WNOHANG) != pid_) return false;
      pid_ = -1;
      status_ = WIFEXITED(raw) ? WEXITSTATUS(raw) : -1;
    }
    status = status_;
    return true;
  }
  /// The exit status, or -1 when a signal ended it.
  int wait() {
    if (pid_ <= 0) return status_;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return status_;
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
  int status_ = -1;
};

}  // namespace ringsock::tests
