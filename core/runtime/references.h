// The references to an endpoint, and which of them are calls that may wait.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace ringsock::runtime {

class Endpoint;

/// Counts in one word, so that a call costs what a reference does.
///
///     | 1 bit: retires behind the calls | 15 bits: calls of the process that forked this one | 16: calls | 32: count |
///
/// Threads: any.
class References {
 public:
  void add() { word_.fetch_add(1, std::memory_order_relaxed); }
  /// Returns whether it was the last one.
  bool drop() { return Word{word_.fetch_sub(1, std::memory_order_acq_rel)}.count() == 1; }
  /// Returns false when the count had already reached zero.
  bool try_add() {
    std::uint64_t now = word_.load(std::memory_order_relaxed);
    while (Word{now}.count() != 0 && !word_.compare_exchange_weak(now, now + 1, std::memory_order_relaxed)) {
    }
    return Word{now}.count() != 0;
  }
  /// So many that none is ever the last one.
  void set(std::uint32_t count) { word_.store(count); }

  /// The reference of a call that may wait.
  void begin_call() { word_.fetch_add(kCall + 1, std::memory_order_relaxed); }
  enum class CallEnd : std::uint8_t { others_stay, was_last_reference, retires };
  /// `retires`: the caller has a reference more, and must retire the endpoint.
  CallEnd end_call() {
    std::uint64_t before = word_.load(std::memory_order_relaxed);
    std::uint64_t after = 0;
    bool retires = false;
    do {
      retires = (before & kRetires) != 0 && Word{before}.calls() <= Word{before}.forked() + 1;
      after = (retires ? before & ~kRetires : before) - kCall - 1;
    } while (!word_.compare_exchange_weak(before, after, std::memory_order_acq_rel));
    if (retires) return CallEnd::retires;
    return Word{after}.count() == 0 ? CallEnd::was_last_reference : CallEnd::others_stay;
  }
  /// Returns whether calls of this process are inside.
  [[nodiscard]] bool has_calls() const {
    const Word now{word_.load(std::memory_order_relaxed)};
    return now.calls() > now.forked();
  }
  /// Makes the last call retire the endpoint. Returns false when no calls are inside.
  bool retire_behind_calls() {
    std::uint64_t now = word_.load(std::memory_order_relaxed);
    do {
      if (Word{now}.calls() <= Word{now}.forked()) return false;
    } while (!word_.compare_exchange_weak(now, (now | kRetires) + 1, std::memory_order_acq_rel));
    return true;
  }
  [[nodiscard]] bool retires_later() const { return (word_.load(std::memory_order_acquire) & kRetires) != 0; }
  /// Called in a forked child: the threads that are inside exist in the parent only, except the one that forks.
  void forget_calls() {
    constexpr std::uint64_t kMost = 0x7fff;
    const std::uint64_t now = word_.load(std::memory_order_relaxed);
    const std::uint64_t calls = std::min<std::uint64_t>(Word{now}.calls(), kMost);
    word_.store((now & ~(kMost * kForked)) | calls * kForked, std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint64_t kCall = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kForked = std::uint64_t{1} << 48;
  static constexpr std::uint64_t kRetires = std::uint64_t{1} << 63;
  struct Word {
    std::uint64_t value;
    [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(value); }
    [[nodiscard]] std::uint32_t calls() const { return static_cast<std::uint32_t>(value >> 32 & 0xffff); }
    [[nodiscard]] std::uint32_t forked() const { return static_cast<std::uint32_t>(value >> 48 & 0x7fff); }
  };
  std::atomic<std::uint64_t> word_{1};
};

/// Calls that may wait on an endpoint (FdTable::Lookup::pin()).
class Calls {
 public:
  static void end(Endpoint& endpoint) noexcept;
  /// Called in place of Endpoint::retire(), before libc's close(2) of the last descriptor `fd`. Calls that wait on a
  /// connection go on, as in the kernel: the last of them will retire the endpoint, and the number is free afterwards.
  /// Epoll sets lose the connection. Returns false when there are no calls, or it is no connection: retire() must be
  /// called.
  static bool keep(Endpoint& endpoint, int fd) noexcept;
};

}  // namespace ringsock::runtime
