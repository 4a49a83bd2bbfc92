// What other users may have of this process, and which of them it has nothing more to do with.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "core/base/clock.h"

namespace ringsock::soft {

/// This user passed a descriptor that it was not asked for. Its connections are refused for kDistrusted, so they go by
/// the kernel: others of its number, in containers say, do not suffer for long. The last kMaxDistrusted users are
/// known. Threads: any.
void distrust(uid_t uid, Nanos now = monotonic_now()) noexcept;
bool is_distrusted(uid_t uid, Nanos now = monotonic_now()) noexcept;
inline constexpr Nanos kDistrusted{10'000'000'000};
inline constexpr unsigned kMaxDistrusted = 64;

/// How much more than this process's own connections need one connection of another user may have us map, and all of
/// one user's connections together. A page of shared memory is charged to whoever touches it first, and that is the
/// side that writes: a peer chooses where we write.
inline constexpr std::uint64_t kMaxExtraBytes = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kMaxExtraBytesOfUser = std::uint64_t{64} << 20;
/// What a process of our own user may offer in any case: it can spoil our memory by other means.
inline constexpr std::uint64_t kMaxBytesOfOwnUser = std::uint64_t{1} << 30;

/// A part of a user's budget, given back at the end.
class UserCharge {
 public:
  /// Nothing when the connection, or the user, would have too much: the refusal is counted.
  static std::optional<UserCharge> take(uid_t uid, std::uint64_t bytes);
  UserCharge(UserCharge&& other) noexcept;
  UserCharge& operator=(UserCharge&&) = delete;
  ~UserCharge();

 private:
  UserCharge(uid_t uid, std::uint64_t bytes) : uid_(uid), bytes_(bytes) {}
  uid_t uid_;
  std::uint64_t bytes_;
};

}  // namespace ringsock::soft
