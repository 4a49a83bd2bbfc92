#include "core/extra_api/ring_alloc_logic.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/base/user_memory.h"
#include "core/extra_api/extra_api.h"

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
  if ((mask & kKnown) == 0 || !runtime::is_ring_logic(words[kLogic])) return Error{EINVAL, "SO_VMA_RING_ALLOC_LOGIC"};
  return RingAllocLogic{.logic = static_cast<runtime::RingLogic>(words[kLogic]),
                        .user_id = (mask & kHasUser) != 0 ? words[kUser] : 0,
                        .profile_key = (mask & kHasProfile) != 0 ? words[kProfile] : 0,
                        .for_receiving = (mask & kHasIngress) != 0 && (words[kDirections] & 1) != 0,
                        .for_sending = (mask & kHasEgress) != 0 && (words[kDirections] & 2) != 0};
}

Status RingWish::set_option(const void* value, socklen_t length) {
  if (value != nullptr && !is_readable(value, length)) return Error{EFAULT, "SO_VMA_RING_ALLOC_LOGIC"};
  const auto wish = parse_ring_alloc_logic(value, length);
  if (!wish) return wish.error();
  const ApiLibrary* const library = known_library_of_extra_api();
  if (wish->profile_key != 0 && (library == nullptr || !library->has_ring_profile(wish->profile_key)))
    return Error{EINVAL, "SO_VMA_RING_ALLOC_LOGIC: profile"};
  const auto logic = static_cast<std::uint64_t>(wish->logic);
  if (wish->for_receiving) wish_.store((logic + 1) << 32 | wish->user_id, std::memory_order_relaxed);
  return ok();
}

runtime::RingKey RingWish::key(runtime::RingLogic by_default, std::uint64_t socket, const SocketAddress& local) const {
  const std::uint64_t wish = wish_.load(std::memory_order_relaxed);
  runtime::RingChoice choice(by_default, 0, socket);
  if (wish != 0) choice.set(static_cast<runtime::RingLogic>((wish >> 32) - 1), static_cast<std::uint32_t>(wish));
  return choice.key(local);
}

}  // namespace ringsock::vma
