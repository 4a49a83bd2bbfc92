// Registrations of the application's memory, kept for the next time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/intrusive_list.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/verbs/device.h"
#include "core/verbs/handles.h"

namespace ringsock::verbs {

class RegistrationCache;

namespace detail {

/// One registration. Its users and its place in the cache change under the cache's lock, the rest never.
struct Registration : ListNode<> {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  int access = 0;
  Mr mr;
  std::size_t users = 0;
  bool is_cached = false;  ///< false: goes away with its last user
};

}  // namespace detail

/// A registration in use: it cannot go away before this. Moves only; must not outlive the cache.
class RegisteredRange {
 public:
  RegisteredRange() = default;
  RegisteredRange(RegisteredRange&& other) noexcept
      : cache_(other.cache_), registration_(std::exchange(other.registration_, nullptr)) {}
  RegisteredRange& operator=(RegisteredRange&& other) noexcept {
    std::swap(cache_, other.cache_);
    std::swap(registration_, other.registration_);
    return *this;
  }
  ~RegisteredRange() { reset(); }

  explicit operator bool() const { return registration_ != nullptr; }
  [[nodiscard]] std::uint32_t lkey() const { return registration_->mr->lkey; }
  [[nodiscard]] std::uint32_t rkey() const { return registration_->mr->rkey; }
  [[nodiscard]] ibv_mr& mr() const { return *registration_->mr; }
  void reset();

 private:
  friend class RegistrationCache;
  RegisteredRange(RegistrationCache& cache, detail::Registration& registration)
      : cache_(&cache), registration_(&registration) {}

  RegistrationCache* cache_ = nullptr;
  detail::Registration* registration_ = nullptr;
};

struct RegistrationCacheLimits {
  std::size_t bytes = std::size_t{1} << 30;
  std::size_t entries = 1024;
};

struct RegistrationCacheStatistics {
  std::size_t entries;  ///< kept, in use or not
  std::size_t bytes;
  std::uint64_t hits;
  std::uint64_t misses;
  std::uint64_t evictions;
};

/// Registering memory costs a system call and pins it, so registrations are kept until memory is short or unmapped. The
/// least recently used goes first; what is in use stays, beyond the limits if it must.
///
/// Local access: ranges are widened to pages, and ranges that overlap become one. Remote access (any
/// IBV_ACCESS_REMOTE_*): a registration covers exactly the bytes asked for, because its key is a permission to write
/// them.
///
/// Whoever unmaps or remaps memory calls invalidate() first: the cache cannot notice, and a stale registration names
/// the pages that were there before. Threads: all functions, and the release of ranges, from any thread. No lock is
/// held while the device registers.
class RegistrationCache {
 public:
  /// The device and the protection domain outlive the cache.
  RegistrationCache(Device& device, ibv_pd& pd, RegistrationCacheLimits limits = {});
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  /// A registration of at least [address, address + length) with exactly `access` (enum ibv_access_flags).
  /// Errors: EINVAL for length 0 or a range that wraps; those of ibv_reg_mr(3), after the cache has given up all it
  /// could.
  Result<RegisteredRange> get(void* address, std::size_t length, int access);
  /// Forgets every registration that touches the range. One in use goes with its last user.
  void invalidate(const void* address, std::size_t length);
  [[nodiscard]] RegistrationCacheStatistics statistics();

 private:
  friend class RegisteredRange;
  using Registration = detail::Registration;
  using Owned = std::unique_ptr<Registration>;
  using Key = std::tuple<int, std::uintptr_t, std::uintptr_t>;  ///< access, begin, end
  /// Registrations to destroy once the lock is released: that costs a system call each.
  using Doomed = std::vector<Owned>;

  struct Range {
    std::uintptr_t begin;
    std::uintptr_t end;
    int access;
  };

  void release(Registration& registration);
  // Under lock_:
  Registration* find_covering(const Range& wanted);
  [[nodiscard]] std::vector<Registration*> overlapping(const Range& range) const;
  /// `wanted` and, for local access, all that it overlaps.
  [[nodiscard]] Range widened(const Range& wanted) const;
  /// Takes a new registration over, unless another thread made one meanwhile.
  RegisteredRange keep(Owned made, const Range& wanted, std::uint64_t invalidations, Doomed& doomed);
  RegisteredRange use(Registration& registration);
  void forget(Registration& registration, Doomed& doomed);
  void enforce_limits(Doomed& doomed);
  // Not under lock_:
  Result<Owned> make(const Range& range);
  Result<Owned> make_after_eviction(const Range& range);

  Device& device_;
  ibv_pd& pd_;
  const RegistrationCacheLimits limits_;

  Mutex lock_;
  std::map<Key, Owned> cached_;
  std::unordered_map<const Registration*, Owned> leaving_;  ///< forgotten, still in use
  IntrusiveList<Registration> idle_;                        ///< cached and without users, oldest first
  std::size_t cached_bytes_ = 0;
  std::uint64_t invalidations_ = 0;
  std::uint64_t hits_ = 0;
  std::uint64_t misses_ = 0;
  std::uint64_t evictions_ = 0;
};

}  // namespace ringsock::verbs
