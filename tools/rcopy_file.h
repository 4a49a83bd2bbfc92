// A file that gets its name only when it is complete.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::tools {

/// Collects the contents in a temporary file beside the destination. commit() renames it in one step. Without commit()
/// nothing changes, so an aborted transfer neither leaves a partial file nor damages an old one.
class IncomingFile {
 public:
  /// `mode` has the permission bits; set-user-ID and the like are dropped, and the umask applies.
  /// Errors: those of open(2); EISDIR or EINVAL when something other than a regular file has that name.
  static Result<IncomingFile> create(const std::string& path, mode_t mode);
  IncomingFile(IncomingFile&& other) noexcept
      : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, {})), file_(std::move(other.file_)) {}
  IncomingFile& operator=(IncomingFile&&) = delete;
  ~IncomingFile();

  /// Reserves space for `bytes`. Errors: ENOSPC, EFBIG ...
  Status reserve(std::uint64_t bytes);
  Status append(std::span<const std::byte> data);
  Status commit();

 private:
  IncomingFile(std::string path, std::string temporary, UniqueFd file)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(std::move(file)) {}

  std::string path_;
  std::string temporary_;  ///< empty once there is none to remove
  UniqueFd file_;
};

}  // namespace ringsock::tools
