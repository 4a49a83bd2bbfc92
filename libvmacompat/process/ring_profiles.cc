#include "libvmacompat/process/ring_profiles.h"

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace ringsock::vma {

Result<int> RingProfiles::add(const Profile& profile) {
  const std::lock_guard guard(lock_);
  const auto known = std::find(profiles_.begin(), profiles_.end(), profile);
  const auto place = known - profiles_.begin();
  if (known == profiles_.end()) {
    if (profiles_.size() == kMostProfiles) return Error{ENOMEM, "vma_add_ring_profile: profiles"};
    profiles_.push_back(profile);
  }
  return static_cast<int>(place) + 1;
}

bool RingProfiles::has(std::uint32_t key) {
  const std::lock_guard guard(lock_);
  return key != 0 && key <= profiles_.size();
}

}  // namespace ringsock::vma
