#include "core/config/vma_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>

#include "core/base/log.h"

namespace ringsock::config {

namespace {

/// Returns the escape sequence before a line, empty for none.
std::string_view color_of(VmaLogLevel level) {
  switch (level) {
    case VmaLogLevel::panic:
    case VmaLogLevel::error: return "\033[0;31m";
    case VmaLogLevel::warning: return "\033[2;35m";
    case VmaLogLevel::fine:
    case VmaLogLevel::finer:
    case VmaLogLevel::all: return "\033[2m";
    case VmaLogLevel::none:
    case VmaLogLevel::info:
    case VmaLogLevel::details:
    case VmaLogLevel::debug: break;
  }
  return "";
}

UniqueFd open_log(const std::string& path) {
  if (path.empty()) return UniqueFd();
  constexpr mode_t kMode = 0644;
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOCTTY, kMode));
  if (!file) log_warn("VMA_LOG_FILE %s cannot be opened (%m); the log goes to standard error", path.c_str());
  return out_of_the_way(std::move(file));
}

}  // namespace

std::string vma_log_line(VmaLogLevel level, std::string_view text, int details, const VmaLogStamp& stamp,
                         bool with_colors) {
  const std::string_view color = with_colors ? color_of(level) : "";
  std::string out(color);
  if (details >= 3) {
    char time[32];
    std::snprintf(time, sizeof time, " Time: %.3f",
                  std::chrono::duration<double, std::milli>(stamp.since_start).count());
    out += time;
  }
  if (details >= 2) out += " Pid: " + std::to_string(stamp.pid);
  if (details >= 1) out += " Tid: " + std::to_string(stamp.tid);
  out.append(" VMA ").append(name_of(level)).append(": ").append(text);
  if (!color.empty()) out += "\033[0m";
  return out += '\n';
}

VmaLog::VmaLog(const VmaConfig& config, Nanos start)
    : start_(start),
      level_(static_cast<int>(config.log_level)),
      details_(config.log_details),
      file_(open_log(with_process_id(config.log_file, ::getpid()))),
      callback_(reinterpret_cast<Callback>(config.log_callback)),
      with_colors_(config.log_colors && callback_ == nullptr && ::isatty(file_ ? file_.get() : STDERR_FILENO) == 1) {
  if (file_) ::fstat(file_.get(), &file_status_);
}

int VmaLog::file_descriptor() const {
  // A program that closes every descriptor closes this one, too, and the next file that it opens gets the number.
  struct stat now {};
  const bool still_ours = file_ && ::fstat(file_.get(), &now) == 0 && now.st_ino == file_status_.st_ino &&
                          now.st_dev == file_status_.st_dev;
  return still_ours ? file_.get() : -1;
}

void VmaLog::write(VmaLogLevel level, std::string_view text) const {
  if (!enabled(level)) return;
  const int saved_errno = errno;
  const VmaLogStamp stamp{monotonic_now() - start_, ::getpid(), ::gettid()};
  const std::string line = vma_log_line(level, text, details_.load(std::memory_order_relaxed), stamp, with_colors_);
  if (callback_ != nullptr) {
    callback_(static_cast<int>(level), line.c_str());
  } else if (const int file = file_descriptor(); file >= 0) {
    [[maybe_unused]] const ssize_t written = ::write(file, line.data(), line.size());
  } else {
    write_to_stderr(line);
  }
  errno = saved_errno;
}

}  // namespace ringsock::config
