#include "core/runtime/statistics_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "core/runtime/statistics_page.h"

namespace ringsock::runtime {

namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

/// Takes "<number>." from the front.
template <class T>
bool take_number(std::string_view& text, T& out) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, out);
  if (error != std::errc() || rest == end || *rest != '.') return false;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()) + 1);
  return true;
}

bool is_dead(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

bool is_regular_file_of(int directory, const char* name, uid_t uid) {
  struct stat status {};
  return ::fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) &&
         status.st_uid == uid;
}

}  // namespace

std::optional<StatisticsName> parse_statistics_name(std::string_view name) {
  constexpr std::size_t kRandomLetters = 6;
  constexpr std::string_view kPrefix = kStatisticsPrefix;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  StatisticsName out{};
  if (!take_number(name, out.uid) || !take_number(name, out.pid_namespace) || !take_number(name, out.pid))
    return std::nullopt;
  if (out.pid <= 0 || name.size() != kRandomLetters) return std::nullopt;
  return out;
}

std::uint64_t own_pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

Result<StatisticsFile> create_statistics_file() {
  StatisticsFile file;
  const int length =
      std::snprintf(file.path.data(), file.path.size(), "%s/%s%u.%llu.%d.XXXXXX", kStatisticsDirectory,
                    kStatisticsPrefix, ::geteuid(), static_cast<unsigned long long>(own_pid_namespace()), ::getpid());
  if (length < 0 || static_cast<std::size_t>(length) >= file.path.size()) return Error{ENAMETOOLONG, "statistics"};
  // O_EXCL with a name nobody can guess: nothing that is there is opened or followed.
  file.fd.reset(::mkostemp(file.path.data(), O_CLOEXEC));
  if (!file.fd) return Error::last("mkostemp");
  return file;
}

void remove_stale_statistics(std::string_view keep) {
  const std::unique_ptr<DIR, CloseDirectory> directory(::opendir(kStatisticsDirectory));
  if (!directory) return;
  const uid_t uid = ::geteuid();
  const std::uint64_t pid_namespace = own_pid_namespace();
  const int fd = ::dirfd(directory.get());
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    const auto parsed = parse_statistics_name(name);
    if (!parsed || parsed->uid != uid || parsed->pid_namespace != pid_namespace || keep.ends_with(name)) continue;
    const bool is_stale = parsed->pid == ::getpid() || is_dead(parsed->pid);
    if (is_stale && is_regular_file_of(fd, entry->d_name, uid)) ::unlinkat(fd, entry->d_name, 0);
  }
}

}  // namespace ringsock::runtime
