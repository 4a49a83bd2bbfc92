// A descriptor that is kept while the application runs, which may close it.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <utility>

#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// A file, whatever descriptors refer to it.
struct Inode {
  dev_t device = 0;
  ino_t number = 0;
  bool operator==(const Inode&) const = default;

  /// Returns that of no file if the number is not open.
  static Inode of(const UniqueFd& fd) {
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) return {};
    return {status.st_dev, status.st_ino};
  }
};

/// A descriptor of which it is checked whether it is still ours. A program may close every descriptor that it does not
/// know, and open others under their numbers: such a number is neither passed on nor closed.
struct KeptDescriptor {
  UniqueFd fd;
  Inode inode;
  KeptDescriptor() = default;
  KeptDescriptor(UniqueFd kept, Inode known) : fd(std::move(kept)), inode(known) {}
  KeptDescriptor(KeptDescriptor&&) = default;
  KeptDescriptor& operator=(KeptDescriptor&&) = delete;
  ~KeptDescriptor() {
    if (fd && !is_still_ours()) (void)fd.release();
  }
  [[nodiscard]] bool is_still_ours() const { return Inode::of(fd) == inode; }
};

}  // namespace ringsock::soft
