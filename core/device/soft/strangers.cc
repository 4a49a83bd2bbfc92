#include "core/device/soft/strangers.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/refusals.h"

namespace ringsock::soft {

namespace {

/// Never destroyed: connections may end after the end of main().
struct Strangers {
  Mutex lock;
  std::array<uid_t, kMaxDistrusted> distrusted{};
  std::size_t distrusted_count = 0;
  std::map<uid_t, std::uint64_t> charged;  ///< users with connections that have more than our own need

  [[nodiscard]] auto known() const {
    return std::pair(distrusted.begin(), distrusted.begin() + std::min<std::size_t>(distrusted_count, kMaxDistrusted));
  }
  [[nodiscard]] bool knows(uid_t uid) const {
    const auto [first, last] = known();
    return std::find(first, last, uid) != last;
  }
};

Strangers& strangers() {
  static auto* const all = new Strangers;
  return *all;
}

}  // namespace

void distrust(uid_t uid) noexcept {
  Strangers& all = strangers();
  const std::lock_guard guard(all.lock);
  if (!all.knows(uid)) all.distrusted[all.distrusted_count++ % kMaxDistrusted] = uid;
}

bool is_distrusted(uid_t uid) noexcept {
  Strangers& all = strangers();
  const std::lock_guard guard(all.lock);
  return all.knows(uid);
}

std::optional<UserCharge> UserCharge::take(uid_t uid, std::uint64_t bytes) {
  if (bytes > kMaxExtraBytes) {
    count_refusal(Refusal::segment_size);
    return std::nullopt;
  }
  if (bytes == 0) return UserCharge(uid, 0);
  Strangers& all = strangers();
  const std::lock_guard guard(all.lock);
  std::uint64_t& total = all.charged[uid];
  if (bytes > kMaxExtraBytesOfUser - total) {
    count_refusal(Refusal::user_budget);
    return std::nullopt;
  }
  total += bytes;
  return UserCharge(uid, bytes);
}

UserCharge::UserCharge(UserCharge&& other) noexcept : uid_(other.uid_), bytes_(std::exchange(other.bytes_, 0)) {}

UserCharge::~UserCharge() {
  if (bytes_ == 0) return;
  Strangers& all = strangers();
  const std::lock_guard guard(all.lock);
  const auto place = all.charged.find(uid_);
  place->second -= bytes_;
  if (place->second == 0) all.charged.erase(place);
}

}  // namespace ringsock::soft
