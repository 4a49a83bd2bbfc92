// Profiles of rings: vma_api_t::vma_add_ring_profile().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "libvmacompat/process/cyclic_layout.h"

namespace ringsock::vma {

/// The profiles that the application has made. A key is the place of a profile, from 1 on. Threads: any.
class RingProfiles {
 public:
  /// struct vma_ring_type_attr: what is said to be there, the type, and what is said of the type. Words that the type
  /// does not have are 0.
  using Profile = std::array<std::uint32_t, 6>;

  /// Returns the key of a profile; equal ones have one key. Errors: ENOMEM too many profiles.
  Result<int> add(const Profile& profile);
  /// Returns nothing when there is no such key.
  [[nodiscard]] std::optional<Profile> find(std::uint32_t key);
  /// A leaf lock, which is held across fork(2).
  Mutex& lock() { return lock_; }

 private:
  static constexpr std::size_t kMostProfiles = 1024;
  Mutex lock_;
  std::vector<Profile> profiles_;
};

/// Returns the cyclic buffer that a profile describes, nothing when it is of another type.
/// Errors: EINVAL unknown bits or mode, no packets, no stride, headers that the mode does not separate; ENOMEM larger
/// than 1 GiB.
Result<std::optional<CyclicLayout>> cyclic_layout_of(const RingProfiles::Profile& profile);

}  // namespace ringsock::vma
