// Members of the Extra API that concern the process: rules, threads, statistics, profiles, memory.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "core/base/user_memory.h"
#include "libvmacompat/extra_api/api_call.h"
#include "libvmacompat/extra_api/members.h"
#include "libvmacompat/process/statistics_requests.h"
#include "libvmacompat/process/vma_process.h"

namespace ringsock::vma::extra {

namespace {

/// Copies a text of the application up to its zero. Errors: EFAULT, E2BIG.
Result<std::string> text_of(const char* text) {
  constexpr std::size_t kMostBytes = 65536;
  constexpr std::size_t kPiece = 64;  // does not cross a page when it is aligned
  std::string out;
  while (out.size() < kMostBytes) {
    const char* const begin = text + out.size();
    const std::size_t bytes = kPiece - reinterpret_cast<std::uintptr_t>(begin) % kPiece;
    if (!is_readable(begin, bytes)) return Error{EFAULT, "text"};
    const auto* const end = static_cast<const char*>(std::memchr(begin, 0, bytes));
    out.append(begin, end != nullptr ? static_cast<std::size_t>(end - begin) : bytes);
    if (end != nullptr) return out;
  }
  return Error{E2BIG, "text"};
}

Result<int> use_allocator(const cmsghdr& header) {
  vma_cmsg_ioctl_user_alloc_t wish;
  if (header.cmsg_len != CMSG_LEN(sizeof wish)) return Error{EINVAL, "CMSG_VMA_IOCTL_USER_ALLOC: length"};
  std::memcpy(&wish, CMSG_DATA(&header), sizeof wish);
  constexpr int kDirections = VMA_IOCTL_USER_ALLOC_FLAG_TX | VMA_IOCTL_USER_ALLOC_FLAG_RX;
  if ((wish.flags & kDirections) == 0 || wish.memalloc == nullptr || wish.memfree == nullptr)
    return Error{EINVAL, "CMSG_VMA_IOCTL_USER_ALLOC"};
  // Nothing is allocated for sending: headers and payload are in the caller's memory.
  const bool is_for_receiving = (wish.flags & VMA_IOCTL_USER_ALLOC_FLAG_RX) != 0;
  verbs::UserMemory memory = process().memory();
  if (is_for_receiving) memory = {.allocate = wish.memalloc, .release = wish.memfree};
  const Status used = process().use_memory(memory);
  return used ? Result<int>(0) : Result<int>(used.error());
}

constexpr std::uint32_t kOlderCyclicBuffer = 1, kOlderExternalMemory = 2;
/// What a profile has without the part of a cyclic buffer.
constexpr std::size_t kShortProfile = 12;

/// @param type_of  translates the type's number
template <class TypeOf>
int add_profile(const vma_ring_type_attr* profile, int* key, TypeOf type_of) {
  return api_call([&]() -> Result<int> {
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

int add_conf_rule(const char* line) {
  const auto report = [](const std::string& text) { process().log.write(config::VmaLogLevel::error, text); };
  return api_call([&]() -> Result<int> {
    const auto text = text_of(line);
    if (!text) return 1;
    return process().rules().add(*text, report) ? 0 : 1;
  });
}

int thread_offload(int offload, pthread_t thread) {
  return api_call([&]() -> Result<int> {
    const Status set = process().threads.set(thread, offload != 0);
    return set ? Result<int>(0) : Result<int>(set.error());
  });
}

int dump_fd_stats(int fd, int log_level) {
  return api_call([&]() -> Result<int> {
    using config::VmaLogLevel;
    const int level = std::clamp(log_level, static_cast<int>(VmaLogLevel::none), static_cast<int>(VmaLogLevel::all));
    return dump_sockets(fd, static_cast<VmaLogLevel>(level)) ? Result<int>(0)
                                                             : Error{EINVAL, "dump_fd_stats: there are no sockets yet"};
  });
}

int vma_add_ring_profile(vma_ring_type_attr* profile, int* key) {
  return add_profile(profile, key, [](std::uint32_t type) { return type; });
}

int add_older_ring_profile(vma_ring_type_attr* profile, int* key) {
  return add_profile(profile, key, [](std::uint32_t type) -> std::uint32_t {
    if (type == kOlderCyclicBuffer) return VMA_RING_CYCLIC_BUFFER;
    return type == kOlderExternalMemory ? std::uint32_t{VMA_RING_EXTERNAL_MEM} : type;
  });
}

int ioctl(void* control, std::size_t length) {
  return api_call([&]() -> Result<int> {
    if (control == nullptr) return 0;
    constexpr std::size_t kMostBytes = 65536;  // more than that is not looked at below
    if (length > kMostBytes) return Error{EINVAL, "ioctl: length"};
    if (!is_readable(control, length)) return Error{EFAULT, "ioctl"};
    msghdr items{};
    items.msg_control = control;
    items.msg_controllen = length;
    for (cmsghdr* item = CMSG_FIRSTHDR(&items); item != nullptr; item = CMSG_NXTHDR(&items, item)) {
      const auto left =
          static_cast<std::size_t>(static_cast<std::byte*>(control) + length - reinterpret_cast<std::byte*>(item));
      if (item->cmsg_len < CMSG_LEN(0) || item->cmsg_len > left) return Error{EINVAL, "ioctl: item"};
      if (item->cmsg_type != CMSG_VMA_IOCTL_USER_ALLOC) continue;
      if (const auto used = use_allocator(*item); !used) return used;
    }
    return 0;
  });
}

}  // namespace ringsock::vma::extra
