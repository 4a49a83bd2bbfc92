#include "core/base/log.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "core/base/process_state.h"
#include "core/base/rare_calls.h"

namespace ringsock {

namespace {

struct Log {
  static constexpr ProcessPart kPart = ProcessPart::log;
  std::atomic<int> level{static_cast<int>(LogLevel::warn)};
  std::atomic<LogSink> sink{nullptr};
};

Log& own_log() { return process_state<Log>(); }

[[gnu::constructor]] void start() { own_log(); }

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::error: return "error";
    case LogLevel::warn: return "warning";
    case LogLevel::info: return "info";
    case LogLevel::debug: return "debug";
    case LogLevel::none: break;
  }
  return "";
}

bool is_connection(int fd) {
  if (is_known_forbidden(RareCall::getsockopt)) return false;
  int domain = AF_UNSPEC;
  socklen_t length = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) return false;
  return domain == AF_INET || domain == AF_INET6;
}

}  // namespace

void write_to_stderr(std::string_view line) {
  if (is_connection(STDERR_FILENO)) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

void set_log_level(LogLevel level) { own_log().level.store(static_cast<int>(level), std::memory_order_relaxed); }

void set_log_sink(LogSink sink) { own_log().sink.store(sink, std::memory_order_release); }

bool log_enabled(LogLevel level) { return static_cast<int>(level) <= own_log().level.load(std::memory_order_relaxed); }

void log_line(LogLevel level, const char* format, ...) {
  if (!log_enabled(level)) return;
  const int saved_errno = errno;
  const LogSink sink = own_log().sink.load(std::memory_order_acquire);
  char line[512];
  const int head = sink != nullptr ? 0 : std::snprintf(line, sizeof line, "ringsock: %s: ", name_of(level));
  line[head] = '\0';
  va_list args;
  va_start(args, format);
  const int text = std::vsnprintf(line + head, sizeof line - static_cast<std::size_t>(head), format, args);
  va_end(args);
  if (sink != nullptr) {
    sink(level, line);
    errno = saved_errno;
    return;
  }
  // A line that is too long is cut; every line ends in a newline.
  std::size_t length = std::min(sizeof line - 1, static_cast<std::size_t>(head + std::max(text, 0)));
  line[length++] = '\n';
  write_to_stderr({line, length});
  errno = saved_errno;
}

}  // namespace ringsock
