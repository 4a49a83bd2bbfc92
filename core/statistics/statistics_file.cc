#include "core/statistics/statistics_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/base/file_limit.h"
#include "core/base/rare_calls.h"
#include "core/base/text_lines.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace ringsock::runtime {

namespace {

/// Removes "<number>." from the front.
template <class T>
bool take_number(std::string_view& text, T& out) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, out);
  if (error != std::errc() || rest == end || *rest != '.') return false;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()) + 1);
  return true;
}

bool is_regular_file_of(int directory, const char* name, uid_t uid) {
  struct stat status {};
  return ::fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) &&
         status.st_uid == uid;
}

bool write_all(int fd, const void* data, std::size_t length) {
  const auto* bytes = static_cast<const std::byte*>(data);
  for (std::size_t done = 0; done < length;) {
    const ssize_t written = ::pwrite(fd, bytes + done, length - done, static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<std::size_t>(written);
  }
  return true;
}

/// Returns whether the process may have made the file and be about to map it. A file that has a size is locked until it
/// is mapped (show_statistics()).
bool is_being_made(const OpenStatistics& opened, off_t bytes) {
  if (!is_process_there(opened.name.pid)) return false;
  return bytes == 0 || ::flock(opened.fd.get(), LOCK_SH | LOCK_NB) != 0;
}

/// Returns whether the process has mapped the file. A process whose memory map is hidden from us only has to be alive.
bool is_in_memory_of(pid_t pid, ino_t inode, std::string_view name) {
  const std::string process = "/proc/" + std::to_string(pid);
  TextLines maps((process + "/maps").c_str());
  const std::string inode_text = " " + std::to_string(inode) + " ";
  bool has_lines = false;
  while (const char* const text = maps.next()) {
    has_lines = true;
    const std::string_view line(text);
    if (line.ends_with(name) && line.find(inode_text) != std::string_view::npos) return true;
  }
  return !has_lines && ::access(process.c_str(), F_OK) == 0;
}

}  // namespace

bool is_process_there(pid_t pid) { return ::kill(pid, 0) == 0 || errno != ESRCH; }

std::optional<StatisticsName> parse_statistics_name(std::string_view name, std::string_view prefix) {
  constexpr std::size_t kRandomLetters = 6;
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
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

Result<StatisticsFile> create_statistics_file(std::size_t bytes, std::string_view prefix) {
  if (!may_make_file_of(bytes)) return Error{EFBIG, "statistics"};
  StatisticsFile file;
  const int length = std::snprintf(file.path.data(), file.path.size(), "%s/%.*s%u.%llu.%d.XXXXXX", kStatisticsDirectory,
                                   static_cast<int>(prefix.size()), prefix.data(), ::geteuid(),
                                   static_cast<unsigned long long>(own_pid_namespace()), ::getpid());
  if (length < 0 || static_cast<std::size_t>(length) >= file.path.size()) return Error{ENAMETOOLONG, "statistics"};
  // mkostemp(3) uses O_EXCL and an unpredictable name, so no existing file is opened or link followed.
  file.fd.reset(::mkostemp(file.path.data(), O_CLOEXEC));
  if (!file.fd) return Error::last("mkostemp");
  return file;
}

void* map_private_statistics(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

bool show_statistics(void* memory, std::size_t bytes, std::size_t used, std::size_t ready, int file) {
  // Until the caller closes the file, a reader of statistics does not take it for that of an earlier program.
  ::flock(file, LOCK_EX | LOCK_NB);
  return ::fallocate(file, 0, 0, static_cast<off_t>(ready)) == 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0 &&
         write_all(file, memory, used) &&
         ::mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
}

void replace_statistics(void* memory, std::size_t bytes, void* fresh, std::size_t used) {
  if (!is_known_forbidden(RareCall::mremap) &&
      ::mremap(fresh, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, memory) != MAP_FAILED)
    return;
  constexpr int kInPlace = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (::mmap(memory, bytes, PROT_READ | PROT_WRITE, kInPlace, -1, 0) != MAP_FAILED) std::memcpy(memory, fresh, used);
  ::munmap(fresh, bytes);
}

bool reserve_statistics(void* memory, std::size_t begin, std::size_t end) {
  const auto mask = ~(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) - 1);
  begin &= mask;
  return ::madvise(static_cast<std::byte*>(memory) + begin, end - begin, MADV_POPULATE_WRITE) == 0;
}

Result<OpenStatistics> open_statistics(int directory, const char* name, std::string_view prefix, std::size_t most_bytes,
                                       int access) {
  const auto said = parse_statistics_name(name, prefix);
  if (!said) return Error{EINVAL, "statistics: name"};
  OpenStatistics out{UniqueFd(::openat(directory, name, access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)),
                     *said, 0};
  if (!out.fd) return Error::last("open");
  struct stat status {};
  if (::fstat(out.fd.get(), &status) != 0) return Error::last("fstat");
  if (!S_ISREG(status.st_mode) || status.st_uid != said->uid) return Error{EPERM, "statistics: not its owner's file"};
  if (static_cast<std::uint64_t>(status.st_size) > most_bytes) return Error{EFBIG, "statistics"};
  if (!is_in_memory_of(said->pid, status.st_ino, name)) {
    if (is_being_made(out, status.st_size)) return Error{EBUSY, "statistics: being made"};
    if (!is_in_memory_of(said->pid, status.st_ino, name)) return Error{ESRCH, "statistics: process"};
  }
  out.bytes = static_cast<std::size_t>(status.st_size);
  return out;
}

Result<std::vector<std::byte>> read_statistics(int file, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  std::size_t used = 0;
  while (used < bytes) {
    const ssize_t count = ::pread(file, out.data() + used, bytes - used, static_cast<off_t>(used));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::last("read");
    if (count == 0) break;  // cut off meanwhile
    used += static_cast<std::size_t>(count);
  }
  out.resize(used);
  return out;
}

void remove_stale_statistics(std::string_view keep, std::string_view prefix) {
  const Directory directory(::opendir(kStatisticsDirectory));
  if (!directory) return;
  const uid_t uid = ::geteuid();
  const std::uint64_t pid_namespace = own_pid_namespace();
  const int fd = ::dirfd(directory.get());
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    const auto parsed = parse_statistics_name(name, prefix);
    if (!parsed || parsed->uid != uid || parsed->pid_namespace != pid_namespace || keep.ends_with(name)) continue;
    const bool is_stale = parsed->pid == ::getpid() || !is_process_there(parsed->pid);
    if (is_stale && is_regular_file_of(fd, entry->d_name, uid)) ::unlinkat(fd, entry->d_name, 0);
  }
}

}  // namespace ringsock::runtime
