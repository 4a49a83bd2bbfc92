#include "tools/vmad_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string_view>

#include "tools/text.h"

namespace ringsock::tools {

namespace {

constexpr std::string_view kPrefix = "vma_agent.", kSocket = ".sock", kPid = ".pid";

std::string file_of(pid_t pid, std::string_view suffix) {
  return std::string(kPrefix).append(std::to_string(pid)).append(suffix);
}

/// Returns the user of a process, or nobody.
uid_t user_of(pid_t pid) {
  struct stat about {};
  return ::stat(("/proc/" + std::to_string(pid)).c_str(), &about) == 0 ? about.st_uid : static_cast<uid_t>(-1);
}

struct DirectoryCloser {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

}  // namespace

pid_t process_of_file(const std::string& name) {
  std::string_view rest = name;
  if (!rest.starts_with(kPrefix)) return 0;
  rest.remove_prefix(kPrefix.size());
  if (!rest.ends_with(kSocket) && !rest.ends_with(kPid)) return 0;
  rest = rest.substr(0, rest.rfind('.'));
  const auto pid = parse_number(rest, 1, INT32_MAX);
  return pid && std::to_string(*pid) == rest ? static_cast<pid_t>(*pid) : 0;
}

Result<VmadFiles> VmadFiles::open(const std::string& directory) {
  constexpr mode_t kForAll = 01777;
  const bool is_new = ::mkdir(directory.c_str(), 0700) == 0;
  if (!is_new && errno != EEXIST) return Error::last("mkdir");
  UniqueFd opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened) return Error::last("open");
  struct stat about {};
  if (::fstat(opened.get(), &about) != 0) return Error::last("fstat");
  if (about.st_uid != ::geteuid()) return Error{EPERM, "it belongs to another user"};
  if ((about.st_mode & 07777) != kForAll && ::fchmod(opened.get(), kForAll) != 0) return Error::last("fchmod");
  return VmadFiles(std::move(opened));
}

Result<UniqueFd> VmadFiles::socket_of(pid_t pid) const {
  UniqueFd found(::openat(directory_.get(), file_of(pid, kSocket).c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat about {};
  if (!found || ::fstat(found.get(), &about) != 0) return Error::last("socket of the process");
  if (!S_ISSOCK(about.st_mode) || about.st_uid != user_of(pid)) return Error{EPERM, "socket of the process"};
  return found;
}

void VmadFiles::remove(pid_t pid) const {
  for (const std::string_view suffix : {kSocket, kPid}) ::unlinkat(directory_.get(), file_of(pid, suffix).c_str(), 0);
}

std::vector<pid_t> VmadFiles::present() const {
  std::vector<pid_t> out;
  const int copy = ::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, DirectoryCloser> directory(copy >= 0 ? ::fdopendir(copy) : nullptr);
  if (!directory) return out;
  while (const dirent* const entry = ::readdir(directory.get())) {
    if (const pid_t pid = process_of_file(entry->d_name); pid != 0) out.push_back(pid);
  }
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace ringsock::tools
