#include "core/device/shm/names/pid_namespace.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "core/base/process_state.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {
namespace {

constexpr std::int64_t kHoldsMs = 1000;

/// Remembers processes, each with the end of its validity in one word, so that no reader sees half of it. Of two
/// processes that share a place the newer one is remembered.
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
struct BelievedProcesses {
  static constexpr ProcessPart kPart = ProcessPart::believed_processes;
  Believed ours;
  /// Processes that did not exist. A new process with that number counts as ended, too, because the process that
  /// answers is checked.
  Believed ended;
};

[[gnu::constructor]] void start() { process_state<BelievedProcesses>(); }

/// The text of /proc/PID/status, empty where there is none.
class StatusText {
 public:
  explicit StatusText(const char* path) {
    const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
    const ssize_t got = file ? ::read(file.get(), text_.data(), text_.size()) : -1;
    length_ = got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  static StatusText of(pid_t process) {
    std::array<char, 32> path;
    std::snprintf(path.data(), path.size(), "/proc/%d/status", process);
    return StatusText(path.data());
  }
  [[nodiscard]] std::string_view view() const { return {text_.data(), length_}; }

 private:
  std::array<char, 4096> text_;
  std::size_t length_ = 0;
};

enum class Found { ours, others, nothing };

Found look(pid_t process) {
  const unsigned ours = count_pid_numbers(StatusText("/proc/self/status").view());
  if (ours == 0) return Found::ours;
  const StatusText status = StatusText::of(process);
  if (status.view().empty()) return Found::nothing;
  return count_pid_numbers(status.view()) == ours ? Found::ours : Found::others;
}

/// Looks the process up. Remembers processes of our namespace, and those that do not exist.
Found find(pid_t process, Nanos now, bool may_have_ended) {
  const auto now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  auto& believed = process_state<BelievedProcesses>();
  if (believed.ours.has(process, now_ms)) return Found::ours;
  if (may_have_ended && believed.ended.has(process, now_ms)) return Found::nothing;
  const int saved_errno = errno;
  const Found found = look(process);
  errno = saved_errno;
  if (found == Found::ours) believed.ours.add(process, now_ms);
  if (found == Found::nothing) believed.ended.add(process, now_ms);
  return found;
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

bool has_capability(std::string_view status, unsigned capability) {
  constexpr std::string_view kLine = "\nCapEff:\t";
  const auto place = status.find(kLine);
  if (place == std::string_view::npos) return false;
  const std::string_view digits = status.substr(place + kLine.size());
  std::uint64_t set = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), set, 16);
  return parsed.ec == std::errc{} && (set >> capability & 1) != 0;
}

bool may_bind_privileged_ports(pid_t process) {
  const int saved_errno = errno;
  const StatusText status = StatusText::of(process);
  errno = saved_errno;
  return has_capability(status.view(), CAP_NET_BIND_SERVICE);
}

bool is_of_our_pid_namespace(pid_t process, Nanos now) { return find(process, now, false) == Found::ours; }

bool may_be_of_our_pid_namespace(pid_t process, Nanos now) { return find(process, now, true) != Found::others; }

}  // namespace ringsock::soft
