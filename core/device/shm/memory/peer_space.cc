#include "core/device/shm/memory/peer_space.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "core/base/rare_calls.h"
#include "core/base/refusals.h"
#include "core/base/unique_fd.h"
#include "core/device/common/scatter_gather.h"

namespace ringsock::soft {

namespace {

/// Reads /proc/PID/stat from its third field on, because the second one is a name of any characters. False when the
/// process has ended.
bool read_stat(const UniqueFd& directory, std::span<char> text) {
  const UniqueFd file(::openat(directory.get(), "stat", O_RDONLY | O_CLOEXEC));
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size() - 1) : -1;
  if (got <= 0) return false;
  text[static_cast<std::size_t>(got)] = '\0';
  return true;
}

/// Returns the start of the process in clock ticks since boot. Source: proc_pid_stat(5), field 22.
std::optional<std::uint64_t> start_of(const UniqueFd& directory) {
  std::array<char, 1024> text;
  if (!read_stat(directory, text)) return std::nullopt;
  const char* at = std::strrchr(text.data(), ')');
  constexpr int kFieldsBetween = 20;
  for (int field = 0; at != nullptr && field < kFieldsBetween; ++field) at = std::strchr(at + 1, ' ');
  unsigned long long ticks = 0;
  if (at == nullptr || std::sscanf(at, "%llu", &ticks) != 1) return std::nullopt;
  return ticks;
}

bool is_old_enough_and_ours(pid_t process, std::uint64_t ticks) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d", process);
  // The descriptor keeps referring to the same process, even if its number is reused.
  const UniqueFd directory(::open(path, O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!directory || ::fstat(directory.get(), &status) != 0 || status.st_uid != ::geteuid()) return false;
  const auto start = start_of(directory);
  return start && *start <= ticks;
}

bool has_token(pid_t process, const SpaceMark& mark) {
  std::uint64_t token = 0;
  const iovec here{&token, sizeof token};
  const iovec there{reinterpret_cast<void*>(mark.address), sizeof token};
  return ::process_vm_readv(process, &here, 1, &there, 1, 0) == sizeof token && token == mark.token;
}

iovec part(std::uint64_t address, std::uint64_t bytes) { return {reinterpret_cast<void*>(address), bytes}; }

}  // namespace

std::uint64_t ticks_since_boot() {
  const auto per_second = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * per_second +
         static_cast<std::uint64_t>(now.tv_nsec) / (1'000'000'000 / per_second);
}

bool is_space_of(pid_t process, const SpaceMark& mark, std::uint64_t ticks) {
  // The token is read first: if the number is reused after that, the start time shows it.
  return mark.token != 0 && has_token(process, mark) && is_old_enough_and_ours(process, ticks);
}

void PeerSpace::set_process(pid_t process) {
  process_ = process;
  connected_at_ = ticks_since_boot();
}

pid_t PeerSpace::find(const SpaceMark& mark) {
  if (process_ == 0 || mark.token == 0 || mark == refused_) return 0;
  if (!is_permitted(RareCall::process_vm_writev) || !is_permitted(RareCall::process_vm_readv)) return 0;
  const bool is_fresh = mark == proven_ && monotonic_now() - proven_at_ < kProofLasts;
  return is_fresh || prove(mark) ? process_ : 0;
}

bool PeerSpace::prove(const SpaceMark& mark) {
  const int saved_errno = errno;
  errno = 0;
  const Nanos now = monotonic_now();
  const bool proven = is_space_of(process_, mark, connected_at_);
  if (proven) {
    proven_ = mark;
    proven_at_ = now;
  } else {
    judge_failure(mark, errno);
  }
  errno = saved_errno;
  return proven;
}

/// A refusal by the kernel does not count as a false claim.
void PeerSpace::judge_failure(const SpaceMark& mark, int error) {
  refused_ = mark;
  if (error != EPERM && error != ENOSYS) count_refusal(Refusal::other_process);
}

bool PeerSpace::write(const SpaceMark& mark, std::span<iovec> local, std::uint64_t address, std::uint64_t length) {
  const pid_t process = find(mark);
  if (process == 0) return false;
  std::uint64_t touch = 0;
  local.front() = {&touch, sizeof touch};
  const std::uint64_t head = length > kTailBytes ? length - kTailBytes : 0;
  const iovec remote[] = {part(mark.scratch(), sizeof touch), part(address, head), part(address + head, length - head)};
  const int saved_errno = errno;
  const ssize_t moved = ::process_vm_writev(process, local.data(), local.size(), remote, 3, 0);
  if (moved < 0) judge_failure(mark, errno);
  errno = saved_errno;
  return moved == static_cast<ssize_t>(sizeof touch + length);
}

bool PeerSpace::read(const SpaceMark& mark, std::span<iovec> local, std::uint64_t address, std::uint64_t length) {
  const pid_t process = find(mark);
  if (process == 0) return false;
  std::uint64_t token = 0;
  local.front() = {&token, sizeof token};
  const iovec remote[] = {part(mark.address, sizeof token), part(address, length)};
  const int saved_errno = errno;
  const ssize_t moved = ::process_vm_readv(process, local.data(), local.size(), remote, 2, 0);
  if (moved < 0 || token != mark.token) judge_failure(mark, moved < 0 ? errno : 0);
  errno = saved_errno;
  return moved == static_cast<ssize_t>(sizeof token + length) && token == mark.token;
}

}  // namespace ringsock::soft
