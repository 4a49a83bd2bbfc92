// Profiles of rings: vma_api_t::vma_add_ring_profile().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"

namespace ringsock::vma {

/// The profiles that the application has made. A key is the place of a profile, from 1 on. Threads: any.
class RingProfiles {
 public:
  /// struct vma_ring_type_attr: what is said to be there, the type, and what is said of the type.
  using Profile = std::array<std::uint32_t, 3>;

  /// Returns the key of a profile; equal ones have one key. Errors: ENOMEM too many profiles.
  Result<int> add(const Profile& profile);
  [[nodiscard]] bool has(std::uint32_t key);
  /// A leaf lock, which is held across fork(2).
  Mutex& lock() { return lock_; }

 private:
  static constexpr std::size_t kMostProfiles = 1024;
  Mutex lock_;
  std::vector<Profile> profiles_;
};

}  // namespace ringsock::vma
