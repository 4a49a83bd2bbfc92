// Descriptors of endpoints that are sent to other processes or given to posix_spawn(3).
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <functional>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::preload {

/// Carry out sendmsg(2) and sendmmsg(2) on a kernel socket. Connections on a way in the control data move to the kernel
/// first. Error: EOPNOTSUPP when that fails.
ssize_t send_with_control(int fd, const msghdr& message, int flags);
int send_many_with_control(int fd, mmsghdr* messages, unsigned count, int flags);

/// Tells the relay of inherited connections which process has them.
class SpawnedProcess {
 public:
  SpawnedProcess() = default;
  SpawnedProcess(SpawnedProcess&&) = default;
  SpawnedProcess(const SpawnedProcess&) = delete;
  SpawnedProcess& operator=(const SpawnedProcess&) = delete;
  SpawnedProcess& operator=(SpawnedProcess&&) = delete;
  /// Unless a process has been told: there is none.
  ~SpawnedProcess() { is(0); }
  /// Errors: those of pipe(2).
  Status prepare();
  [[nodiscard]] int relays_end() const { return relays_.get(); }
  void is(pid_t process);

 private:
  UniqueFd relays_;
  UniqueFd ours_;
};

/// What a program that is spawned gets in place of connections on a way.
struct ForProgram {
  struct Number {
    int fd;
    bool is_inherited;  ///< else it is close-on-exec, and there for the file actions
  };
  std::vector<Number> numbers;
  std::vector<UniqueFd> sockets;  ///< the kernel sockets for these numbers, close-on-exec
  SpawnedProcess process;
};

/// Makes kernel sockets for the connections on a way that the program gets. Leaves listeners among `numbers` to the
/// kernel. Errors are those of posix_spawn(3): EIO or a shortage, when a connection among `numbers` cannot be passed
/// on.
/// @param numbers  those that the file actions duplicate
/// @param is_kept  whether the file actions leave the program what is under a number that it inherits
Result<ForProgram> replace_for_program(const std::vector<int>& numbers, const std::function<bool(int fd)>& is_kept);

}  // namespace ringsock::preload
