// Destinations whose connections end soon, and who makes these faster: the way or the kernel.
#pragma once

#include <array>
#include <cstddef>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/socket_address.h"

namespace ringsock::transports {

/// Measures the rate of a program that connects to one destination again and again, and whose connections end soon: in
/// turns by the way and by the kernel. The faster one makes the next connections, until the next comparison. What costs
/// the way most of the time of such a connection, waking a process a second time, costs a busy machine more than an
/// idle one, so only the machine can tell.
///
/// A connection that stays open is worth more than any number of short ones, and belongs on the way. So the kernel gets
/// none unless half of the way's latest connections have ended, none while the process has more descriptors than the
/// way's connections needed, and none after a pause.
///
/// Bounded: destinations that share a place take turns by the second; one without a place uses the way. Takes no
/// memory, makes no system call, reads no clock. Threads: any. A forked child goes on with what its parent knew.
class ShortConnections {
 public:
  /// Connections in one measurement, without those before it that warm up.
  static constexpr unsigned kMeasured = 64;
  static constexpr unsigned kWarmUp = 8;
  /// The longest time between two connections of a program that is limited by their cost.
  static constexpr Nanos kLongestPause = std::chrono::milliseconds(50);
  /// Connections until the next comparison: the more, the more often comparisons had the same result, and the more time
  /// the slower one has taken.
  static constexpr unsigned kFirstStretch = 1'024;
  static constexpr unsigned kLongestStretch = 16'384;
  /// The stretch takes so many times what the slower one has cost, if four times the longest stretch are long enough.
  static constexpr unsigned kWorth = 20;
  /// How many descriptors more than before tell of connections that stay open.
  static constexpr int kMoreDescriptors = 4;

  /// Called before each connect(2) that the way may make. Returns whether the kernel is to make it.
  /// @param descriptor  the socket's number
  /// @param now         CLOCK_MONOTONIC
  bool is_kernels(const SocketAddress& destination, int descriptor, Nanos now) noexcept;
  /// Returns whether the kernel is to make this connection as it has made the ones before. The other answer says
  /// nothing: is_kernels() follows, unless the way cannot make it. So a long stretch of the kernel's asks nobody for
  /// listeners.
  bool are_still_kernels(const SocketAddress& destination, int descriptor, Nanos now) noexcept;
  /// Called when a connection that the way has made was closed.
  void ended(const SocketAddress& destination) noexcept;
  /// Lets a forked child go on with a free lock. For an object that is never destroyed.
  void survive_fork();

 private:
  enum class Maker : std::size_t { way, kernel };

  /// What is known of one destination. With many connections at a time the first ones after a change of the maker end
  /// those of the other maker, and the first ones at all end none: a measurement begins behind these. Each comparison
  /// measures the way, the kernel and, unless the one is far faster, both once more; the better one of the two times of
  /// each counts, because other work only adds to them.
  class Course {
   public:
    [[nodiscard]] bool is_to(const SocketAddress& destination) const { return destination_ == destination; }
    [[nodiscard]] bool is_over(Nanos now) const { return now - last_ > kLongestPause; }
    void begin(const SocketAddress& destination, Nanos now);
    /// Returns who is to make the next connection.
    Maker next(int descriptor, Nanos now);
    /// Returns whether next() would return the kernel without a comparison.
    [[nodiscard]] bool is_still_kernels(int descriptor) const {
      return is_settled() && faster_ == Maker::kernel && left_ != 0 && !are_more_open(descriptor);
    }
    void ended() { ++ended_; }

   private:
    static constexpr unsigned kMeasurements = 4;
    [[nodiscard]] bool is_settled() const { return measurement_ == kMeasurements; }
    [[nodiscard]] Maker maker() const;
    [[nodiscard]] bool are_more_open(int descriptor) const {
      return descriptor > highest_descriptor_ + kMoreDescriptors;
    }
    [[nodiscard]] bool have_stayed_open() const { return ended_ - ended_before_ < kMeasured / 2; }
    void compare_again();
    void step_on(Nanos now);
    void measured(Nanos took);
    void settle();
    void stay_with_way();

    SocketAddress destination_;
    Nanos last_{};                                           ///< connect(2)
    unsigned measurement_ = 0;                               ///< 0 to 3, settled: 4
    bool warms_up_ = true;                                   ///< the measurement has not begun
    unsigned left_ = 0;                                      ///< connections until step_on()
    Nanos began_{};                                          ///< the measurement
    std::array<Nanos, 2> best_{Nanos::max(), Nanos::max()};  ///< by Maker
    Maker faster_ = Maker::way;
    unsigned stretch_ = 0;            ///< length of the stretch after the last comparison; 0: there was none
    std::uint64_t made_ = 0;          ///< by the way
    std::uint64_t ended_ = 0;         ///< of these
    std::uint64_t ended_before_ = 0;  ///< when the measurement, or its warm-up, began
    unsigned at_a_time_ = 0;          ///< connections that were open when the way was measured last
    int highest_descriptor_ = -1;     ///< of connections by the way since the comparison began
  };

  Course* find(const SocketAddress& destination, Nanos now);
  static std::size_t place_of(const SocketAddress& destination);

  Mutex lock_;
  std::array<Course, 16> courses_;
};

}  // namespace ringsock::transports
