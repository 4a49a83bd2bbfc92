// Options of a socket that its way does not carry out, for the kernel sockets that answer for them.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/mutex.h"

namespace ringsock::transports {

/// Returns whether the way of a connection carries an option out, and answers for it. For all others the kernel decides
/// what a value means and what is read back, and the way gets nothing but the values that concern it.
[[nodiscard]] bool is_ways_option(int level, int name);

/// What setsockopt(2) was last given for each option that is not the way's (is_ways_option()), in the order in which
/// they were set. A kernel socket that is given these options answers as the application's socket would. Threads: any.
class KeptOptions {
 public:
  enum class Time : bool { before_connection, in_connection };

  KeptOptions() = default;
  KeptOptions(const KeptOptions&) = delete;
  KeptOptions& operator=(const KeptOptions&) = delete;
  ~KeptOptions() = default;

  /// Keeps a value that the kernel has accepted. Values of more than kMostBytes are not kept, nor are options beyond
  /// kMostOptions, nor any without memory.
  /// @param value  null as the kernel may permit
  void keep(int level, int name, const void* value, socklen_t length, Time time) noexcept;
  /// Takes over what an accepted socket inherits from its listener.
  void inherit(const KeptOptions& listener) noexcept;
  /// Sets the options of one time on a kernel socket. Errors of the kernel have no effect.
  void give_to(int fd, Time time) const noexcept;
  /// Sets all of them, in the order of their times.
  void give_all_to(int fd) const noexcept {
    give_to(fd, Time::before_connection);
    give_to(fd, Time::in_connection);
  }
  /// Returns whether one of these options of a level was set.
  [[nodiscard]] bool has_any(int level, bool (*is_one)(int name)) const noexcept;
  /// Returns the lock, for fork(2).
  [[nodiscard]] Mutex& lock() const { return lock_; }

 private:
  static constexpr std::size_t kMostBytes = 256;
  static constexpr std::size_t kMostOptions = 64;
  struct Option {
    int level;
    int name;
    Time time;
    socklen_t length;
    std::vector<std::byte> value;  ///< empty: setsockopt(2) was given a null pointer, or no bytes
  };
  using Options = std::vector<Option>;

  mutable Mutex lock_;
  std::unique_ptr<Options> options_;  ///< null: there are none
};

}  // namespace ringsock::transports
