// Child processes for tests and benchmarks, with a channel to the parent.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <type_traits>

#include "core/base/unique_fd.h"

namespace ringsock::testing {

using Milliseconds = std::chrono::milliseconds;

/// One end of a connection between parent and child; carries plain structs, each whole.
class Channel {
 public:
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}

  /// False when the other end is gone.
  template <class T>
  bool send(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return send_bytes(&value, sizeof value);
  }
  /// The next message; nothing when the other end is gone or `limit` has passed.
  template <class T>
  std::optional<T> receive(Milliseconds limit = Milliseconds(30000)) {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    if (!receive_bytes(&value, sizeof value, limit)) return std::nullopt;
    return value;
  }
  /// Readable when a message, or the end, is there.
  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  bool send_bytes(const void* data, std::size_t length);
  bool receive_bytes(void* data, std::size_t length, Milliseconds limit);
  UniqueFd socket_;
};

/// Makes this process, a child of `parent`, be killed when that ends, also if it has ended already.
void end_with(pid_t parent);

/// A forked process; killed and reaped at the end of its life if it has not ended by itself.
/// The libraries under test are not made for a fork after their first use: fork before it, and use them in children
/// only.
class Child {
 public:
  /// `body` runs in the child, its result is the exit status.
  static Child start(const std::function<int(Channel&)>& body);
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), channel_(std::move(other.channel_)) {}
  Child& operator=(Child&&) = delete;
  ~Child();

  Channel& channel() { return channel_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill(int signal) const;
  /// Waits for its end; the exit status, or 128 + the signal that ended it.
  int wait();

 private:
  Child(pid_t pid, UniqueFd socket) : pid_(pid), channel_(std::move(socket)) {}
  pid_t pid_;
  Channel channel_;
};

}  // namespace ringsock::testing
