// The descriptors that the service thread sleeps on, and the proof that they are still ours.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <memory>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::runtime {

/// Identifies the file of a descriptor number, which may be closed and refer to another file later. Files without an
/// inode of their own (eventfd, epoll) cannot be told apart.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  /// Error: EBADF.
  static Result<FileIdentity> of(int fd);
  bool operator==(const FileIdentity&) const = default;
};

/// An epoll set with a bell. The bell is a pipe: it has an inode, and a thread that sleeps on its reading end wakes up
/// when somebody closes the writing end.
///
/// Nothing here reads, writes, changes or closes a file that took over one of the numbers; the application may still
/// close a descriptor between the proof and its use, as it may any other of a thread that is using it.
class ServiceLoop {
 public:
  /// Errors: EMFILE, ENFILE, ENOMEM.
  static Result<std::shared_ptr<ServiceLoop>> make();
  ServiceLoop(const ServiceLoop&) = delete;
  ServiceLoop& operator=(const ServiceLoop&) = delete;
  /// Closes the descriptors that are still ours.
  ~ServiceLoop() { close(); }
  void close();

  /// Returns whether the numbers of the set and of the bell's reading end still refer to the same files. Costs two
  /// system calls.
  [[nodiscard]] bool is_ours() const;
  /// Wakes the thread. Returns false when the bell is not ours.
  bool ring() const;
  /// Empties the bell. Call it after is_ours().
  void silence() const;

  [[nodiscard]] int events() const { return events_.get(); }
  [[nodiscard]] int bell() const { return bell_.get(); }

 private:
  ServiceLoop() = default;
  [[nodiscard]] bool is_of_bell(const UniqueFd& end) const;

  UniqueFd events_;  ///< epoll; data: the watch's Id, 0 for the bell
  UniqueFd bell_;    ///< the pipe's reading end
  UniqueFd ringer_;  ///< its writing end
  FileIdentity pipe_;
};

}  // namespace ringsock::runtime
