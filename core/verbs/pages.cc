#include "core/verbs/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

// Linux 5.14 has it; headers of libc may not.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace ringsock::verbs {

namespace {

/// 2 MiB on x86-64 and, with 4 KiB pages, on aarch64. Elsewhere the kernel refuses, and small pages are used.
constexpr std::size_t kHugePageBytes = 2 << 20;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t small_page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

std::span<std::byte> map(std::size_t bytes, int extra_flags) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | extra_flags, -1, 0);
  if (memory == MAP_FAILED) return {};
  return {static_cast<std::byte*>(memory), bytes};
}

/// Returns whether at least seven eighths of the huge pages would be used: the rest of the last one is wasted.
bool worth_huge_pages(std::size_t bytes) {
  return bytes >= kHugePageBytes && (rounded_up(bytes, kHugePageBytes) - bytes) * 8 <= bytes;
}

}  // namespace

Pages::~Pages() {
  if (memory_.empty()) return;
  if (release_ != nullptr) {
    release_(users_);
  } else {
    ::munmap(memory_.data(), memory_.size());
  }
}

Result<Pages> Pages::from_user(std::size_t bytes, const UserMemory& user) {
  constexpr std::size_t kAlignment = 64;
  void* const memory = user.allocate(bytes + kAlignment);
  if (memory == nullptr) return Error{ENOMEM, "the application's allocator"};
  const std::size_t skipped = -reinterpret_cast<std::uintptr_t>(memory) % kAlignment;
  Pages pages({static_cast<std::byte*>(memory) + skipped, bytes}, PageBacking::users);
  pages.release_ = user.release;
  pages.users_ = memory;
  return pages;
}

Result<Pages> Pages::on_reserved_huge_pages(std::size_t bytes) {
  const auto memory = map(rounded_up(bytes, kHugePageBytes), MAP_HUGETLB);
  if (memory.empty()) return Error::last("mmap MAP_HUGETLB");
  Pages pages(memory, PageBacking::hugetlb);
  // A control group may refuse the pages by SIGBUS when they are touched. Populating them now turns that into an error.
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    return Error::last("madvise MADV_POPULATE_WRITE");
  }
  return pages;
}

Result<Pages> Pages::on_joinable_pages(std::size_t bytes) {
  // The kernel joins only aligned pages, so more is mapped and both ends are given back.
  const std::size_t wanted = rounded_up(bytes, kHugePageBytes);
  const auto memory = map(wanted + kHugePageBytes, 0);
  if (memory.empty()) return Error::last("mmap");
  const auto misalignment = reinterpret_cast<std::uintptr_t>(memory.data()) % kHugePageBytes;
  const std::size_t head = misalignment == 0 ? 0 : kHugePageBytes - misalignment;
  if (head > 0) ::munmap(memory.data(), head);
  ::munmap(memory.data() + head + wanted, kHugePageBytes - head);
  const auto kept = memory.subspan(head, wanted);
  const bool joinable = ::madvise(kept.data(), kept.size(), MADV_HUGEPAGE) == 0;
  return Pages(kept, joinable ? PageBacking::transparent_huge : PageBacking::small);
}

Result<Pages> Pages::on_small_pages(std::size_t bytes) {
  const auto memory = map(rounded_up(bytes, small_page_bytes()), 0);
  if (memory.empty()) return Error::last("mmap");
  return Pages(memory, PageBacking::small);
}

Result<Pages> Pages::allocate(std::size_t bytes) {
  if (worth_huge_pages(bytes)) {
    if (auto pages = on_reserved_huge_pages(bytes)) return pages;
    if (auto pages = on_joinable_pages(bytes)) return pages;
  }
  return on_small_pages(bytes);
}

}  // namespace ringsock::verbs
