// Members of the Extra API that concern the process: rules, threads, statistics, memory.
#include <cstring>
#include <string>

#include "core/base/user_memory.h"
#include "core/extra_api/api_call.h"
#include "core/extra_api/extra_api.h"
#include "core/extra_api/members.h"

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
  verbs::UserMemory memory;
  if (is_for_receiving) memory = {.allocate = wish.memalloc, .release = wish.memfree};
  const Status used = library_of_extra_api().use_memory(memory);
  return used ? Result<int>(0) : Result<int>(used.error());
}

}  // namespace

int add_conf_rule(const char* line) {
  return api_call([&]() -> Result<int> {
    const auto text = text_of(line);
    if (!text) return 1;
    return library_of_extra_api().add_rule(*text) ? 0 : 1;
  });
}

int thread_offload(int offload, pthread_t thread) {
  return api_call([&]() -> Result<int> {
    const Status set = library_of_extra_api().offload_thread(thread, offload != 0);
    return set ? Result<int>(0) : Result<int>(set.error());
  });
}

int dump_fd_stats(int fd, int log_level) {
  return api_call([&]() -> Result<int> {
    const Status dumped = library_of_extra_api().dump_sockets(fd, log_level);
    return dumped ? Result<int>(0) : Result<int>(dumped.error());
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
