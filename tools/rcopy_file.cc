#include "tools/rcopy_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <limits>

namespace ringsock::tools {

namespace {

/// Checks that the name is free or that of a regular file.
Status check_replaceable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno == ENOENT ? ok() : Status(Error::last("stat"));
  if (S_ISDIR(status.st_mode)) return Error{EISDIR, "destination"};
  if (!S_ISREG(status.st_mode)) return Error{EINVAL, "destination is not a regular file"};
  if (::access(path.c_str(), W_OK) != 0) return Error::last("access");
  return ok();
}

}  // namespace

Result<IncomingFile> IncomingFile::create(const std::string& path, mode_t mode) {
  if (path.empty() || path.back() == '/') return Error{EISDIR, "destination"};
  if (auto replaceable = check_replaceable(path); !replaceable) return replaceable.error();
  std::string temporary = path;
  temporary.append(".rcopy-XXXXXX");
  UniqueFd file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!file) return Error::last("open");
  IncomingFile incoming(path, std::move(temporary), std::move(file));
  const mode_t mask = ::umask(0);
  ::umask(mask);
  constexpr mode_t kPermissions = S_IRWXU | S_IRWXG | S_IRWXO;
  if (::fchmod(incoming.file_.get(), mode & kPermissions & ~mask) != 0) return Error::last("fchmod");
  return incoming;
}

IncomingFile::~IncomingFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status IncomingFile::reserve(std::uint64_t bytes) {
  if (bytes == 0) return ok();
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) return Error{EFBIG, "fallocate"};
  if (::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0) return ok();
  // A file system that cannot reserve space fails later when it is full.
  return errno == EOPNOTSUPP || errno == ENOSYS ? ok() : Status(Error::last("fallocate"));
}

Status IncomingFile::append(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t count = ::write(file_.get(), data.data(), data.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::last("write");
    data = data.subspan(static_cast<std::size_t>(count));
  }
  return ok();
}

Status IncomingFile::commit() {
  if (::close(file_.release()) != 0 && errno != EINTR) return Error::last("close");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return Error::last("rename");
  temporary_.clear();
  return ok();
}

}  // namespace ringsock::tools
