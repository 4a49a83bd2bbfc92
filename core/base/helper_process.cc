#include "core/base/helper_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/base/at_fork.h"
#include "core/base/process_state.h"
#include "core/base/rare_calls.h"
#include "core/base/unique_fd.h"

namespace ringsock {

namespace {

/// The kernel cuts names off after 15 characters: the guardian (core/device/packet/steering) is known by its file.
constexpr std::array<std::string_view, 2> kHelpers{kRelayName, "flow-guardian"};

/// What /proc/PID/stat tells of a process: proc(5).
struct ProcessLine {
  bool is_helper = false;
  pid_t group = 0;
  bool raises_sigchld = true;
};

/// Returns the number in field `index`, counted from 0.
std::optional<int> field(std::string_view fields, int index) {
  for (; index > 0; --index) {
    const auto gap = fields.find(' ');
    if (gap == std::string_view::npos) return std::nullopt;
    fields.remove_prefix(gap + 1);
  }
  int value = 0;
  if (std::from_chars(fields.data(), fields.data() + fields.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

ProcessLine parse_line(std::string_view line) {
  // "number (name) state parent group ..."; a name may contain anything.
  const auto begin = line.find('('), end = line.rfind(") ");
  if (begin == std::string_view::npos || end == std::string_view::npos || end <= begin) return {};
  const std::string_view name = line.substr(begin + 1, end - begin - 1), rest = line.substr(end + 2);
  constexpr int kGroup = 2, kExitSignal = 35;
  return {std::find(kHelpers.begin(), kHelpers.end(), name) != kHelpers.end(), field(rest, kGroup).value_or(0),
          field(rest, kExitSignal).value_or(SIGCHLD) == SIGCHLD};
}

ProcessLine line_of(pid_t process) {
  std::array<char, 40> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", static_cast<int>(process));
  const UniqueFd file(::open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text;
  const ssize_t length = file ? ::read(file.get(), text.data(), text.size()) : -1;
  return length > 0 ? parse_line({text.data(), static_cast<std::size_t>(length)}) : ProcessLine{};
}

/// The numbers in a file of numbers with spaces between them, one after the other.
class Numbers {
 public:
  explicit Numbers(const char* path) : file_(::open(path, O_RDONLY | O_CLOEXEC)) {}
  std::optional<pid_t> next() {
    pid_t number = 0;
    for (bool has_begun = false;; has_begun = true) {
      const int letter = next_letter();
      const bool is_digit = letter >= '0' && letter <= '9';
      if (!is_digit) return has_begun ? std::optional(number) : std::nullopt;
      number = number * 10 + (letter - '0');
    }
  }

 private:
  int next_letter() {
    if (at_ == filled_) {
      const ssize_t got = file_ ? ::read(file_.get(), text_.data(), text_.size()) : 0;
      at_ = 0;
      filled_ = got > 0 ? static_cast<std::size_t>(got) : 0;
      if (filled_ == 0) return -1;
    }
    return text_[at_++];
  }

  UniqueFd file_;
  std::array<char, 512> text_;
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
};

bool is_wanted(const ProcessLine& line, const ChildFilter& filter) {
  return (filter.group == 0 || line.group == filter.group) &&
         (filter.any_signal || line.raises_sigchld != filter.clones);
}

/// Adds the children of one thread. Returns false when all has been seen that is asked.
bool look_at_children_of(const char* thread, const ChildFilter& filter, ChildrenSeen& seen) {
  std::array<char, 64> path;
  std::snprintf(path.data(), path.size(), "/proc/self/task/%.20s/children", thread);
  Numbers children(path.data());
  while (const auto child = children.next()) {
    const ProcessLine line = line_of(*child);
    if (!is_wanted(line, filter)) continue;
    if (!line.is_helper) {
      seen.other = *child;
      return false;
    }
    seen.helper = true;
  }
  return true;
}

/// Calls `each(name)` for the threads of this process, until it returns false. opendir(3) would allocate memory.
template <class Each>
void for_each_thread(Each each) {
  const UniqueFd directory(::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return;
  // struct linux_dirent64 of getdents(2): two words, the length of the entry, the type, the name.
  constexpr std::size_t kLength = 16, kName = 19;
  alignas(8) std::array<char, 1024> entries;
  for (;;) {
    const long bytes = ::syscall(SYS_getdents64, directory.get(), entries.data(), entries.size());
    if (bytes <= 0) return;
    for (std::size_t at = 0; at + kName < static_cast<std::size_t>(bytes);) {
      std::uint16_t length = 0;
      std::memcpy(&length, entries.data() + at + kLength, sizeof length);
      const char* const name = entries.data() + at + kName;
      if (*name != '.' && !each(name)) return;
      if (length == 0) return;
      at += length;
    }
  }
}

// -- subreapers ------------------------------------------------------------------------------------

/// Twice the number of forks up to this process, plus 1 when it adopts orphans; kUnknown at the start.
constexpr std::uint64_t kUnknown = ~std::uint64_t{0};
struct Adopting {
  static constexpr ProcessPart kPart = ProcessPart::adopting;
  std::atomic<std::uint64_t> known{kUnknown};
};

std::uint64_t stamp() { return std::uint64_t{fork_generation()} << 1; }

bool ask_whether_subreaper() noexcept {
  if (::getpid() == 1) return true;
  // A filter may kill for the call. A process with a filter is known to be a subreaper once it becomes one.
  if (began_with_filter() || is_known_forbidden(RareCall::subreaper)) return false;
  int is_one = 0;
  return ::prctl(PR_GET_CHILD_SUBREAPER, &is_one, 0, 0, 0) == 0 && is_one != 0;
}

// -- children that pass ----------------------------------------------------------------------------

/// The children of PassingChild, each with the number of forks before it; the last ones are kept.
struct PassingChildren {
  static constexpr ProcessPart kPart = ProcessPart::passing_children;
  std::array<std::atomic<std::uint64_t>, 16> children{};
  std::atomic<std::uint32_t> count{0};  ///< of all since the start
};

[[gnu::constructor]] void start() {
  process_state<Adopting>();
  process_state<PassingChildren>();
}

std::uint64_t entry_of(pid_t child) {
  return std::uint64_t{fork_generation()} << 32 | static_cast<std::uint32_t>(child);
}

bool remove_entry(pid_t child) {
  auto& passing = process_state<PassingChildren>().children;
  return std::any_of(passing.begin(), passing.end(), [wanted = entry_of(child)](auto& slot) {
    std::uint64_t expected = wanted;
    return slot.compare_exchange_strong(expected, 0);
  });
}

}  // namespace

bool is_helper(pid_t child) noexcept { return line_of(child).is_helper; }

ChildrenSeen look_at_children(const ChildFilter& filter) noexcept {
  ChildrenSeen seen;
  for_each_thread([&](const char* thread) { return look_at_children_of(thread, filter, seen); });
  return seen;
}

bool adopts_orphans() noexcept {
  const std::uint64_t known = process_state<Adopting>().known.load(std::memory_order_relaxed);
  if ((known | 1) == (stamp() | 1)) return (known & 1) != 0;
  const int saved_errno = errno;
  const bool is_one = ask_whether_subreaper();
  note_subreaper(is_one);
  errno = saved_errno;
  return is_one;
}

void note_subreaper(bool is_one) noexcept {
  process_state<Adopting>().known.store(stamp() | (is_one || ::getpid() == 1 ? 1 : 0), std::memory_order_relaxed);
}

void PassingChild::expect(pid_t child) noexcept {
  auto& [children, count] = process_state<PassingChildren>();
  children[count.fetch_add(1) % children.size()].store(entry_of(child));
}

void PassingChild::wait(pid_t child) noexcept {
  pid_t ended;
  do {
    ended = ::waitpid(child, nullptr, 0);
  } while (ended < 0 && errno == EINTR);
  // Otherwise the entry stays for the thread that has found the child.
  if (ended == child) remove_entry(child);
}

bool PassingChild::is_found(pid_t child) noexcept {
  return process_state<PassingChildren>().count.load(std::memory_order_relaxed) != 0 && remove_entry(child);
}

}  // namespace ringsock
