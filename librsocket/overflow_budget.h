// The memory of overflow areas that other users may make this process use.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "core/base/clock.h"

namespace ringsock::rs {

/// A page of shared memory is charged to the process that first touches it. In the area of a peer that does not read
/// this is the sender, and in an area that the peer has only pretended to fill, the reader. So what the connections of
/// one other user may make us use has a limit. Beyond it they work without areas.
inline constexpr std::uint64_t kMaxOverflowOfUser = std::uint64_t{64} << 20;
/// A peer may keep the memory of a connection that has ended with unread bytes. It counts for a while, which bounds how
/// fast that memory can grow.
inline constexpr Nanos kUnreadCounts{10'000'000'000};

/// The memory that one area may use, from its start. Threads: one at a time.
class OverflowCharge {
 public:
  OverflowCharge() = default;
  OverflowCharge(const OverflowCharge&) = delete;
  OverflowCharge& operator=(const OverflowCharge&) = delete;
  ~OverflowCharge() {
    if (covered_ != 0) give_back_later(monotonic_now());
  }

  /// Charges that user from now on. Before, nothing is limited.
  void begin(uid_t user) { user_ = user; }
  [[nodiscard]] bool is_limited() const { return user_.has_value(); }
  [[nodiscard]] std::uint64_t covered() const { return covered_; }
  /// Charges as much as is needed for `bytes`, in steps of kStep, if the user has so much left. Returns the bytes that
  /// are covered now, which may be more or less.
  std::uint64_t cover(std::uint64_t bytes, Nanos now);
  /// Called when the kernel has the memory again.
  void give_back();
  /// Called when the peer may have the memory still.
  void give_back_later(Nanos now);

  static constexpr std::uint64_t kStep = 256U << 10;

 private:
  std::optional<uid_t> user_;
  std::uint64_t covered_ = 0;
};

}  // namespace ringsock::rs
