// The notify directory of vmad: the files of its clients, which any user may have put there.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::tools {

/// Nothing here follows a symbolic link out of the directory. Used by one thread.
class VmadFiles {
 public:
  /// Opens the directory, or makes it, writable by all users, of whom each can remove only their own files. Errors:
  /// those of mkdir(2) and open(2); EPERM it belongs to another user, who could replace what is in it.
  static Result<VmadFiles> open(const std::string& directory);

  /// Opens the socket of a client, by which send_to() reaches it. Errors: ENOENT; EPERM it is no socket, or not of the
  /// client's user.
  [[nodiscard]] Result<UniqueFd> socket_of(pid_t pid) const;
  void remove(pid_t pid) const;
  /// Returns the processes that have files there.
  [[nodiscard]] std::vector<pid_t> present() const;

 private:
  explicit VmadFiles(UniqueFd directory) : directory_(std::move(directory)) {}
  UniqueFd directory_;
};

/// Returns the process of a file name "vma_agent.PID.sock" or ".pid", 0 for any other name.
pid_t process_of_file(const std::string& name);

}  // namespace ringsock::tools
