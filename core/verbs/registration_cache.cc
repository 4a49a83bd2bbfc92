#include "core/verbs/registration_cache.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <mutex>

namespace ringsock::verbs {

namespace {

constexpr int kRemoteAccess = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

bool is_remote(int access) { return (access & kRemoteAccess) != 0; }

std::uintptr_t page_bytes() { return static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace

void RegisteredRange::reset() {
  if (auto* registration = std::exchange(registration_, nullptr)) cache_->release(*registration);
}

RegistrationCache::RegistrationCache(Device& device, ibv_pd& pd, RegistrationCacheLimits limits)
    : device_(device), pd_(pd), limits_(limits) {}

RegistrationCache::Registration* RegistrationCache::find_covering(const Range& wanted) {
  if (is_remote(wanted.access)) {
    const auto found = cached_.find(Key{wanted.access, wanted.begin, wanted.end});
    return found == cached_.end() ? nullptr : found->second.get();
  }
  // Local registrations of one access do not overlap: only the last one that begins early enough can cover the range.
  auto next = cached_.upper_bound(Key{wanted.access, wanted.begin, std::numeric_limits<std::uintptr_t>::max()});
  if (next == cached_.begin()) return nullptr;
  Registration& before = *std::prev(next)->second;
  return before.access == wanted.access && before.end >= wanted.end ? &before : nullptr;
}

std::vector<RegistrationCache::Registration*> RegistrationCache::overlapping(const Range& range) const {
  std::vector<Registration*> out;
  for (const auto& [key, registration] : cached_) {
    if (registration->access == range.access && registration->begin < range.end && registration->end > range.begin) {
      out.push_back(registration.get());
    }
  }
  return out;
}

RegisteredRange RegistrationCache::use(Registration& registration) {
  registration.unlink();
  ++registration.users;
  return RegisteredRange(*this, registration);
}

void RegistrationCache::forget(Registration& registration, Doomed& doomed) {
  auto node = cached_.extract(Key{registration.access, registration.begin, registration.end});
  Owned owned = std::move(node.mapped());
  cached_bytes_ -= registration.end - registration.begin;
  registration.is_cached = false;
  registration.unlink();
  if (registration.users == 0) {
    doomed.push_back(std::move(owned));
  } else {
    leaving_.emplace(&registration, std::move(owned));
  }
}

void RegistrationCache::enforce_limits(Doomed& doomed) {
  while ((cached_bytes_ > limits_.bytes || cached_.size() > limits_.entries) && !idle_.empty()) {
    forget(*idle_.front(), doomed);
    ++evictions_;
  }
}

void RegistrationCache::release(Registration& registration) {
  Doomed doomed;
  const std::lock_guard guard(lock_);
  if (--registration.users > 0) return;
  if (registration.is_cached) {
    idle_.push_back(registration);
    enforce_limits(doomed);
  } else {
    auto node = leaving_.extract(&registration);
    doomed.push_back(std::move(node.mapped()));
  }
}

Result<RegistrationCache::Owned> RegistrationCache::make(const Range& range) {
  auto mr = device_.reg_mr(pd_, reinterpret_cast<void*>(range.begin), range.end - range.begin, range.access);
  if (!mr) return mr.error();
  auto registration = std::make_unique<Registration>();
  registration->begin = range.begin;
  registration->end = range.end;
  registration->access = range.access;
  registration->mr = std::move(*mr);
  return registration;
}

Result<RegistrationCache::Owned> RegistrationCache::make_after_eviction(const Range& range) {
  auto made = make(range);
  if (made || made.error().code != ENOMEM) return made;
  // Pinned memory is limited, so all unused registrations are given up.
  Doomed doomed;
  {
    const std::lock_guard guard(lock_);
    evictions_ += cached_.size();
    while (!idle_.empty()) forget(*idle_.front(), doomed);
    evictions_ -= cached_.size();
  }
  if (doomed.empty()) return made;
  doomed.clear();
  return make(range);
}

RegistrationCache::Range RegistrationCache::widened(const Range& wanted) const {
  Range range = wanted;
  if (is_remote(wanted.access)) return range;
  for (const Registration* other : overlapping(wanted)) {
    range.begin = std::min(range.begin, other->begin);
    range.end = std::max(range.end, other->end);
  }
  return range;
}

RegisteredRange RegistrationCache::keep(Owned made, const Range& wanted, std::uint64_t invalidations, Doomed& doomed) {
  if (Registration* found = find_covering(wanted)) {
    // Another thread has made the registration meanwhile.
    doomed.push_back(std::move(made));
    return use(*found);
  }
  Registration& registration = *made;
  if (invalidations != invalidations_) {
    // Part of the memory may have been unmapped meanwhile: this caller gets the registration, but it is not cached.
    leaving_.emplace(&registration, std::move(made));
    return use(registration);
  }
  const Range range{registration.begin, registration.end, registration.access};
  if (!is_remote(range.access)) {
    for (Registration* other : overlapping(range)) forget(*other, doomed);
  }
  registration.is_cached = true;
  cached_bytes_ += range.end - range.begin;
  cached_.emplace(Key{range.access, range.begin, range.end}, std::move(made));
  RegisteredRange in_use = use(registration);
  enforce_limits(doomed);
  return in_use;
}

Result<RegisteredRange> RegistrationCache::get(void* address, std::size_t length, int access) {
  Range wanted{reinterpret_cast<std::uintptr_t>(address), 0, access};
  if (length == 0 || length > std::numeric_limits<std::uintptr_t>::max() - page_bytes() - wanted.begin) {
    return Error{EINVAL, "registration cache: range"};
  }
  wanted.end = wanted.begin + length;
  if (!is_remote(access)) {
    wanted.begin -= wanted.begin % page_bytes();
    wanted.end = (wanted.end + page_bytes() - 1) / page_bytes() * page_bytes();
  }

  Range range = wanted;
  std::uint64_t invalidations = 0;
  {
    const std::lock_guard guard(lock_);
    if (Registration* found = find_covering(wanted)) {
      ++hits_;
      return use(*found);
    }
    ++misses_;
    invalidations = invalidations_;
    range = widened(wanted);
  }

  auto made = make_after_eviction(range);
  // Memory that an old registration covered may be unmapped; the range that the caller asks for is mapped.
  if (!made && (range.begin != wanted.begin || range.end != wanted.end)) made = make_after_eviction(wanted);
  if (!made) return made.error();

  Doomed doomed;
  const std::lock_guard guard(lock_);
  return keep(std::move(*made), wanted, invalidations, doomed);
}

void RegistrationCache::invalidate(const void* address, std::size_t length) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t end = length > std::numeric_limits<std::uintptr_t>::max() - begin
                                 ? std::numeric_limits<std::uintptr_t>::max()
                                 : begin + length;
  Doomed doomed;
  const std::lock_guard guard(lock_);
  ++invalidations_;
  std::vector<Registration*> touched;
  for (const auto& [key, registration] : cached_) {
    if (registration->begin < end && registration->end > begin) touched.push_back(registration.get());
  }
  for (Registration* registration : touched) forget(*registration, doomed);
}

RegistrationCacheStatistics RegistrationCache::statistics() {
  const std::lock_guard guard(lock_);
  return {.entries = cached_.size(), .bytes = cached_bytes_, .hits = hits_, .misses = misses_, .evictions = evictions_};
}

}  // namespace ringsock::verbs
