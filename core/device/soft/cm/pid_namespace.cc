#include "core/device/soft/cm/pid_namespace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "core/base/unique_fd.h"

namespace ringsock::soft {
namespace {

constexpr std::int64_t kHoldsMs = 1000;

/// In one word, so that no reader sees half of it: a process, and until when it is believed. Forgetful: of two
/// processes that share a place the newer one is known.
class Believed {
 public:
  [[nodiscard]] bool has(pid_t process, std::int64_t now_ms) const {
    const std::uint64_t word = place_of(process).load(std::memory_order_relaxed);
    return word >> 40 == static_cast<std::uint32_t>(process) && (word & kTimeMask) > time_word(now_ms) &&
           (word & kTimeMask) <= time_word(now_ms + kHoldsMs);
  }
  void add(pid_t process, std::int64_t now_ms) {
    const std::uint64_t word = std::uint64_t{static_cast<std::uint32_t>(process)} << 40 | time_word(now_ms + kHoldsMs);
    place_of(process).store(word, std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << 40) - 1;
  static std::uint64_t time_word(std::int64_t ms) { return static_cast<std::uint64_t>(ms) & kTimeMask; }
  [[nodiscard]] const std::atomic<std::uint64_t>& place_of(pid_t process) const {
    return places_[static_cast<std::size_t>(process) % std::tuple_size_v<decltype(places_)>];
  }
  std::atomic<std::uint64_t>& place_of(pid_t process) {
    return places_[static_cast<std::size_t>(process) % std::tuple_size_v<decltype(places_)>];
  }
  std::array<std::atomic<std::uint64_t>, 64> places_{};
};
constinit Believed believed;

/// 0: there is no such file, or no such line.
unsigned count_numbers_in(const char* path) {
  const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text;
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : -1;
  return got > 0 ? count_pid_numbers({text.data(), static_cast<std::size_t>(got)}) : 0;
}

bool look(pid_t process) {
  const unsigned ours = count_numbers_in("/proc/self/status");
  if (ours == 0) return true;
  std::array<char, 32> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/status", process);
  return count_numbers_in(path.data()) == ours;
}

}  // namespace

unsigned count_pid_numbers(std::string_view status) {
  constexpr std::string_view kLine = "\nNSpid:";
  const auto place = status.find(kLine);
  if (place == std::string_view::npos) return 0;
  const std::string_view rest = status.substr(place + kLine.size());
  const std::string_view line = rest.substr(0, rest.find('\n'));
  return static_cast<unsigned>(std::count(line.begin(), line.end(), '\t'));
}

bool is_of_our_pid_namespace(pid_t process, Nanos now) {
  const auto now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  if (believed.has(process, now_ms)) return true;
  const int saved_errno = errno;
  const bool same = look(process);
  errno = saved_errno;
  if (same) believed.add(process, now_ms);
  return same;
}

}  // namespace ringsock::soft
