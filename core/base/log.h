// One line on stderr per message. Libraries set the level; the core never reads the environment.
#pragma once

#include <string_view>

namespace ringsock {

enum class LogLevel : int { none = 0, error = 1, warn = 2, info = 3, debug = 4 };

void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);

/// Receives each message instead of standard error, without level and newline. It must not log itself.
using LogSink = void (*)(LogLevel level, const char* text);
/// Sets the sink; null restores standard error. Messages above the set level do not reach the sink.
void set_log_sink(LogSink sink);

/// Writes "ringsock: <level>: text\n" with one write(2), or gives the text to the sink; errno is kept. Not for signal
/// handlers.
void log_line(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

/// Writes to standard error, unless that is a connection: servers of inetd(8) and others have their client's there.
void write_to_stderr(std::string_view line);

#define log_error(...) ::ringsock::log_line(::ringsock::LogLevel::error, __VA_ARGS__)
#define log_warn(...) ::ringsock::log_line(::ringsock::LogLevel::warn, __VA_ARGS__)
#define log_info(...) ::ringsock::log_line(::ringsock::LogLevel::info, __VA_ARGS__)
#define log_debug(...) ::ringsock::log_line(::ringsock::LogLevel::debug, __VA_ARGS__)

}  // namespace ringsock
