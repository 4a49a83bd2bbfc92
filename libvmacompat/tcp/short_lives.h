// Where TCP connections have been short lately, so that moving them to a ring and back does not pay.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/clock.h"
#include "core/base/process_state.h"
#include "core/base/socket_address.h"

namespace ringsock::vma {

/// What the application has done with one connection, as far as it tells whether the connection lasts. Threads: any;
/// what one of two threads counts at the same moment may be lost.
class Exchange {
 public:
  enum class Direction : std::uint8_t { none, received, sent };
  // A move to the ring and back costs as much as these save there: the numbers are about ten round trips of a kernel.
  static constexpr std::uint32_t kTurns = 8;  ///< changes between sending and receiving: TLS, and an answer, are fewer
  static constexpr std::uint32_t kCalls = 64;
  static constexpr std::uint64_t kBytes = std::uint64_t{256} << 10;
  static constexpr Nanos kAge = std::chrono::seconds(1);

  void begin(Nanos now) { began_.store(now, std::memory_order_relaxed); }
  /// A call has moved `bytes`, 0 at the end of the stream.
  void count(Direction direction, ssize_t bytes);
  /// Returns whether the connection has proved to last.
  [[nodiscard]] bool lasts(Nanos now) const;
  /// Returns whether the application only takes what comes: it has never sent, or not for the last kBytes that it has
  /// received.
  [[nodiscard]] bool only_receives() const {
    return last_.load(std::memory_order_relaxed) == Direction::received &&
           (turns_.load(std::memory_order_relaxed) == 0 || since_turn_.load(std::memory_order_relaxed) >= kBytes);
  }

 private:
  std::atomic<Nanos> began_{Nanos::zero()};
  std::atomic<Direction> last_{Direction::none};
  std::atomic<std::uint32_t> turns_{0};
  std::atomic<std::uint32_t> calls_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> since_turn_{0};  ///< bytes
};

/// Remembers for places how connections have lived: a server's place is its own address and port, a client's that of
/// the peer. Places that have the same slot take it from each other: a wrong answer costs time, nothing else.
/// Threads: any.
class ShortLives {
 public:
  static constexpr ProcessPart kPart = ProcessPart::short_lives;
  using Place = std::uint64_t;
  /// So many short lives have the next connection wait for its proof.
  static constexpr std::uint32_t kEnough = 3;
  static constexpr std::uint32_t kMost = 8;
  /// A place at which nothing was noted for so long is unknown again.
  static constexpr Nanos kMemory = std::chrono::minutes(1);

  static Place place_of(const SocketAddress& address);
  /// Returns whether connections at the place are short, by what is known.
  [[nodiscard]] bool are_expected(Place place, Nanos now) const;
  void note_short(Place place, Nanos now);
  void note_long(Place place, Nanos now);

  /// Returns whether this process, a program's first one or a forked one, has not moved a connection yet. Such a
  /// process often asks one question or serves one client, and the end of its ring, which the kernel frees before the
  /// process has ended, takes some 100 ms.
  [[nodiscard]] bool is_first_of_process() const;
  /// Called when a connection of this process has moved to a ring, or when it is to move at once: the application has
  /// asked for the Extra API.
  void expect_no_short_process();

 private:
  static constexpr std::size_t kSlots = 256;
  struct Slot {
    std::atomic<Place> place{0};
    std::atomic<std::uint32_t> lives{0};
    std::atomic<Nanos> noted{Nanos::zero()};
  };
  [[nodiscard]] std::uint32_t known(Place place, Nanos now) const;
  void keep(Place place, std::uint32_t lives, Nanos now);

  std::array<Slot, kSlots> slots_;
  std::atomic<unsigned> moved_in_{~0U};  ///< fork_generation()
};

ShortLives& short_lives();

}  // namespace ringsock::vma
