// VMA's log: the destination and format of its lines.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <string>
#include <string_view>

#include "core/base/clock.h"
#include "core/base/unique_fd.h"
#include "core/config/vma_config.h"

namespace ringsock::config {

/// The facts that the start of a line may show.
struct VmaLogStamp {
  Nanos since_start;  ///< of the process
  int pid;
  int tid;
};

/// Formats one line, including its newline: " Pid: 7 Tid: 8 VMA WARNING: text".
/// @param details  0 nothing, 1 thread, 2 process and thread, 3 time, process and thread; as VMA_LOG_DETAILS
std::string vma_log_line(VmaLogLevel level, std::string_view text, int details, const VmaLogStamp& stamp,
                         bool with_colors);

/// The log of a process. Threads: any, at any time.
class VmaLog {
 public:
  /// @param start monotonic_now() when the process began A file that cannot be opened is reported on standard error,
  /// which is then used instead.
  VmaLog(const VmaConfig& config, Nanos start);

  [[nodiscard]] bool enabled(VmaLogLevel level) const {
    return static_cast<int>(level) <= level_.load(std::memory_order_relaxed);
  }
  /// Writes a line in one write(2), or gives it to the callback. errno is kept. Not for signal handlers.
  void write(VmaLogLevel level, std::string_view text) const;

  /// vma_stats may change these while the program runs.
  void set_level(VmaLogLevel level) { level_.store(static_cast<int>(level), std::memory_order_relaxed); }
  void set_details(int details) { details_.store(details, std::memory_order_relaxed); }

 private:
  using Callback = void (*)(int level, const char* line);

  /// Returns the descriptor of the log's file, -1 for standard error.
  [[nodiscard]] int file_descriptor() const;

  Nanos start_;
  std::atomic<int> level_;
  std::atomic<int> details_;
  UniqueFd file_;
  struct stat file_status_ {};
  Callback callback_;
  bool with_colors_;
};

}  // namespace ringsock::config
