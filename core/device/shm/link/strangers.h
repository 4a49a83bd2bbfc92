// The budgets of other users in this process, and the users that it refuses.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "core/base/clock.h"

namespace ringsock::soft {

/// Distrusts a user that passed a descriptor without being asked. Its connections are refused for kDistrusted, so they
/// use the kernel. The time is limited because others may have the same uid, in containers for example. The last
/// kMaxDistrusted users are remembered. Threads: any.
void distrust(uid_t uid, Nanos now = monotonic_now()) noexcept;
bool is_distrusted(uid_t uid, Nanos now = monotonic_now()) noexcept;
inline constexpr Nanos kDistrusted{10'000'000'000};
inline constexpr unsigned kMaxDistrusted = 64;

/// The limits of memory that one connection of another user, and all connections of one user together, may make us map
/// beyond the needs of this process's own connections. A page of shared memory is charged to the process that first
/// touches it, which is the writing side, and the peer chooses where we write.
inline constexpr std::uint64_t kMaxExtraBytes = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kMaxExtraBytesOfUser = std::uint64_t{64} << 20;
/// The amount that a process of our own user may always offer: it could harm our memory by other means.
inline constexpr std::uint64_t kMaxBytesOfOwnUser = std::uint64_t{1} << 30;

/// A part of a user's budget, which is returned on destruction.
class UserCharge {
 public:
  /// Returns nothing, and counts the refusal, when the connection or the user would exceed its limit.
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
