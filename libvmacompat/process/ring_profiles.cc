#include "libvmacompat/process/ring_profiles.h"

#include <mellanox/vma_extra.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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

std::optional<RingProfiles::Profile> RingProfiles::find(std::uint32_t key) {
  const std::lock_guard guard(lock_);
  return key != 0 && key <= profiles_.size() ? std::optional(profiles_[key - 1]) : std::nullopt;
}

Result<std::optional<CyclicLayout>> cyclic_layout_of(const RingProfiles::Profile& profile) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  constexpr Error kBad{EINVAL, "vma_add_ring_profile: cyclic buffer"};
  enum Word : std::size_t { kMask, kType, kWish };
  static_assert(sizeof profile == sizeof(vma_ring_type_attr));
  if (profile[kType] != VMA_RING_CYCLIC_BUFFER) return std::optional<CyclicLayout>();
  struct {
    std::uint32_t comp_mask, num;
    std::uint16_t stride_bytes, hdr_bytes;
    std::uint32_t mode;  // an enumeration, of which the program may have set any value
  } wish;
  static_assert(sizeof wish == sizeof(vma_cyclic_buffer_ring_attr));
  std::memcpy(&wish, &profile[kWish], sizeof wish);
  const std::uint32_t mode = wish.mode;
  if ((wish.comp_mask & ~static_cast<std::uint32_t>(VMA_CB_HDR_BYTE | VMA_CB_EXTERNAL_MEM)) != 0) return kBad;
  if (mode > PADDED_PACKET || wish.num == 0 || wish.stride_bytes == 0) return kBad;
  const CyclicLayout out{.packets = wish.num,
                         .stride_bytes = wish.stride_bytes,
                         .user_header_bytes = (wish.comp_mask & VMA_CB_HDR_BYTE) != 0 ? wish.hdr_bytes : std::size_t{0},
                         .mode = static_cast<CyclicLayout::Mode>(mode),
                         .is_external = (wish.comp_mask & VMA_CB_EXTERNAL_MEM) != 0};
  const bool separates = mode == STRIP_NETWORK_HDRS || mode == SEPERATE_NETWORK_HDRS;
  if (out.user_header_bytes != 0 && !separates) return kBad;
  if (out.bytes() > kMostBytes) return Error{ENOMEM, "vma_add_ring_profile: cyclic buffer"};
  return std::optional(out);
}

}  // namespace ringsock::vma
