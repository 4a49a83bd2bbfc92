#include "core/device/shm/link/strangers.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/refusals.h"

namespace ringsock::soft {

namespace {

struct Strangers {
  static constexpr ProcessPart kPart = ProcessPart::strangers;
  Mutex lock;
  struct Distrusted {
    uid_t uid;
    Nanos until{0};
  };
  std::array<Distrusted, kMaxDistrusted> distrusted{};
  std::size_t distrusted_count = 0;
  std::map<uid_t, std::uint64_t> charged;  ///< users with connections that have more than our own need

  [[nodiscard]] Distrusted* find(uid_t uid) {
    const auto place = std::find_if(distrusted.begin(), distrusted.end(),
                                    [&](const Distrusted& one) { return one.uid == uid && one.until != Nanos(0); });
    return place == distrusted.end() ? nullptr : &*place;
  }
};

[[gnu::constructor]] void start() { hold_across_fork(process_state<Strangers>().lock); }

}  // namespace

void distrust(uid_t uid, Nanos now) noexcept {
  Strangers& all = process_state<Strangers>();
  const std::lock_guard guard(all.lock);
  auto* place = all.find(uid);
  if (place == nullptr) place = &all.distrusted[all.distrusted_count++ % kMaxDistrusted];
  *place = {uid, now + kDistrusted};
}

bool is_distrusted(uid_t uid, Nanos now) noexcept {
  Strangers& all = process_state<Strangers>();
  const std::lock_guard guard(all.lock);
  const auto* const found = all.find(uid);
  return found != nullptr && now < found->until;
}

std::optional<UserCharge> UserCharge::take(uid_t uid, std::uint64_t bytes) {
  if (bytes > kMaxExtraBytes) {
    count_refusal(Refusal::segment_size);
    return std::nullopt;
  }
  if (bytes == 0) return UserCharge(uid, 0);
  Strangers& all = process_state<Strangers>();
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
  Strangers& all = process_state<Strangers>();
  const std::lock_guard guard(all.lock);
  const auto place = all.charged.find(uid_);
  place->second -= bytes_;
  if (place->second == 0) all.charged.erase(place);
}

}  // namespace ringsock::soft
