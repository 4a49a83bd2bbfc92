// What an open file description keeps for all descriptors and processes that have it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/clock.h"

namespace ringsock::runtime {

/// Flags, time limits and options of one endpoint. At first they are in this object. share() moves them to memory that
/// this process shares with its children, so that all see what one of them sets, as with a socket of the kernel.
/// Threads: any.
class DescriptionValues {
 public:
  enum Name : std::uint8_t {
    nonblocking,       ///< O_NONBLOCK
    receive_low_mark,  ///< SO_RCVLOWAT, 1 or more
    other_flags,       ///< O_APPEND and O_ASYNC
    receive_timeout,   ///< SO_RCVTIMEO in ns; the highest number means for ever
    send_timeout,      ///< SO_SNDTIMEO, likewise
    linger,            ///< SO_LINGER, as its owner writes it
    is_kernels,        ///< a process has moved the connection to a kernel socket, which has the values from then on
    tells_unread,      ///< TCP_INQ: recvmsg(2) tells how many bytes are left
    tells_times,       ///< SO_TIMESTAMP or SO_TIMESTAMPNS: recvmsg(2) tells when bytes came, which only the kernel can
    first_option,      ///< kMostOptions values, each for the implementation
  };
  static constexpr std::size_t kMostOptions = 24;

  DescriptionValues();
  DescriptionValues(const DescriptionValues&) = delete;
  DescriptionValues& operator=(const DescriptionValues&) = delete;
  ~DescriptionValues() = default;

  [[nodiscard]] std::int64_t get(std::size_t name) const {
    return current_.load(std::memory_order_acquire)->values[name].load(std::memory_order_relaxed);
  }
  void set(std::size_t name, std::int64_t value) noexcept;
  [[nodiscard]] Nanos time(Name name) const { return Nanos(get(name)); }

  /// Called before fork(2). Without memory the values stay in this process. Threads: only the forking one.
  void share() noexcept;
  [[nodiscard]] bool is_shared() const { return current_.load(std::memory_order_acquire) != &own_; }

 private:
  struct Slot {
    std::array<std::atomic<std::int64_t>, first_option + kMostOptions> values{};
  };
  std::atomic<Slot*> current_{&own_};  ///< beside the first values, which each call uses
  Slot own_;
  std::shared_ptr<void> shared_;
};

}  // namespace ringsock::runtime
