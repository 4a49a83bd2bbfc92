// A cache of registrations of the application's memory.
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

/// One registration. Its users and its place in the cache change under the cache's lock; the rest never changes.
struct Registration : ListNode<> {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  int access = 0;
  Mr mr;
  std::size_t users = 0;
  bool is_cached = false;  ///< false: its last user destroys it
};

}  // namespace detail

/// A registration in use, which is not destroyed before this object. Moves only; must not outlive the cache.
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
/// least recently used is evicted first. Registrations in use stay, even beyond the limits.
///
/// Local access: ranges are widened to pages, and ranges that overlap become one. Remote access (any
/// IBV_ACCESS_REMOTE_*): a registration covers exactly the bytes asked for, because its key is a permission to write
/// them.
///
/// Code that unmaps or remaps memory must call invalidate() first: the cache cannot notice it, and a stale registration
/// refers to the previous pages. Threads: all functions, and the release of ranges, from any thread. No lock is held
/// while the device registers.
class RegistrationCache {
 public:
  /// The device and the protection domain outlive the cache.
  RegistrationCache(Device& device, ibv_pd& pd, RegistrationCacheLimits limits = {});
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  /// Returns a registration of at least [address, address + length) with exactly `access` (enum ibv_access_flags).
  /// Errors: EINVAL for length 0 or a range that wraps; those of ibv_reg_mr(3), after the cache has evicted all that is
  /// unused.
  Result<RegisteredRange> get(void* address, std::size_t length, int access);
  /// Forgets every registration that overlaps the range. A registration in use is destroyed with its last user.
  void invalidate(const void* address, std::size_t length);
  [[nodiscard]] RegistrationCacheStatistics statistics();

 private:
  friend class RegisteredRange;
  using Registration = detail::Registration;
  using Owned = std::unique_ptr<Registration>;
  using Key = std::tuple<int, std::uintptr_t, std::uintptr_t>;  ///< access, begin, end
  /// Registrations to destroy after the lock is released, because each costs a system call.
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
  /// Returns `wanted`, for local access joined with all ranges that it overlaps.
  [[nodiscard]] Range widened(const Range& wanted) const;
  /// Adds a new registration, unless another thread made one meanwhile.
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
  std::unordered_map<const Registration*, Owned> leaving_;  ///< no longer cached, still in use
  IntrusiveList<Registration> idle_;                        ///< cached and without users, oldest first
  std::size_t cached_bytes_ = 0;
  std::uint64_t invalidations_ = 0;
  std::uint64_t hits_ = 0;
  std::uint64_t misses_ = 0;
  std::uint64_t evictions_ = 0;
};

}  // namespace ringsock::verbs
