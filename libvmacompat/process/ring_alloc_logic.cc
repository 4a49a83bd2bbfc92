#include "libvmacompat/process/ring_alloc_logic.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace ringsock::vma {

Result<RingAllocLogic> parse_ring_alloc_logic(const void* value, socklen_t length) {
  // The fields of the structure; each is a word, and the last one has two bits.
  enum Word : std::size_t { kMask, kLogic, kProfile, kUser, kDirections, kWords };
  enum MaskBit : std::uint32_t { kHasProfile = 1, kHasUser = 2, kHasIngress = 4, kHasEgress = 8 };
  constexpr std::uint32_t kKnown = kHasProfile | kHasUser | kHasIngress | kHasEgress;
  std::array<std::uint32_t, kWords> words{};
  if (value == nullptr || length != sizeof words) return Error{EINVAL, "SO_VMA_RING_ALLOC_LOGIC: length"};
  std::memcpy(words.data(), value, sizeof words);
  const std::uint32_t mask = words[kMask];
  if ((mask & kKnown) == 0 || !ethernet::is_ring_logic(words[kLogic])) return Error{EINVAL, "SO_VMA_RING_ALLOC_LOGIC"};
  return RingAllocLogic{.logic = static_cast<ethernet::RingLogic>(words[kLogic]),
                        .user_id = (mask & kHasUser) != 0 ? words[kUser] : 0,
                        .profile_key = (mask & kHasProfile) != 0 ? words[kProfile] : 0,
                        .for_receiving = (mask & kHasIngress) != 0 && (words[kDirections] & 1) != 0,
                        .for_sending = (mask & kHasEgress) != 0 && (words[kDirections] & 2) != 0};
}

}  // namespace ringsock::vma
