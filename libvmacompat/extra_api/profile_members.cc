// Members of the Extra API that concern profiles of rings.
#include <cstring>

#include "core/base/user_memory.h"
#include "core/extra_api/api_call.h"
#include "libvmacompat/extra_api/members.h"
#include "libvmacompat/process/vma_process.h"

namespace ringsock::vma::rings {

namespace {

constexpr std::uint32_t kOlderCyclicBuffer = 1, kOlderExternalMemory = 2;
/// What a profile has without the part of a cyclic buffer.
constexpr std::size_t kShortProfile = 12;

/// @param type_of  translates the type's number
template <class TypeOf>
int add_profile(const vma_ring_type_attr* profile, int* key, TypeOf type_of) {
  return extra::api_call([&]() -> Result<int> {
    if (profile == nullptr || key == nullptr) return Error{EINVAL, "vma_add_ring_profile"};
    if (!is_readable(profile, kShortProfile) || !are_writable(key)) return Error{EFAULT, "vma_add_ring_profile"};
    RingProfiles::Profile words{};
    std::memcpy(words.data(), profile, kShortProfile);
    words[1] = type_of(words[1]);
    if (words[1] == VMA_RING_EXTERNAL_MEM) return Error{EOPNOTSUPP, "vma_add_ring_profile: memory of a card"};
    if (words[1] == VMA_RING_CYCLIC_BUFFER) {
      if (!are_readable(profile)) return Error{EFAULT, "vma_add_ring_profile"};
      std::memcpy(&words[2], &profile->ring_cyclicb, sizeof profile->ring_cyclicb);
    } else if (words[1] != VMA_RING_PACKET) {
      return Error{EINVAL, "vma_add_ring_profile: type"};
    }
    if (const auto layout = cyclic_layout_of(words); !layout) return layout.error();
    const auto known = process().profiles.add(words);
    if (!known) return known.error();
    *key = *known;
    return 0;
  });
}

}  // namespace

int vma_add_ring_profile(vma_ring_type_attr* profile, int* key) {
  return add_profile(profile, key, [](std::uint32_t type) { return type; });
}

int add_older_ring_profile(vma_ring_type_attr* profile, int* key) {
  return add_profile(profile, key, [](std::uint32_t type) -> std::uint32_t {
    if (type == kOlderCyclicBuffer) return VMA_RING_CYCLIC_BUFFER;
    return type == kOlderExternalMemory ? std::uint32_t{VMA_RING_EXTERNAL_MEM} : type;
  });
}

}  // namespace ringsock::vma::rings
