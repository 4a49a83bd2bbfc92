#include "core/device/shm/memory/space_mark.h"

#include <sys/mman.h>
#include <sys/random.h>

#include <atomic>
#include <cerrno>

#include "core/base/process_state.h"
#include "core/device/shm/memory/segment.h"

namespace ringsock::soft {

namespace {

struct MarkPage {
  std::atomic<std::uint64_t> token;
  std::uint64_t scratch;
};
static_assert(offsetof(MarkPage, scratch) == SpaceMark::kBytes);

struct OwnMark {
  static constexpr ProcessPart kPart = ProcessPart::space_mark;
  std::atomic<MarkPage*> page{nullptr};
};

[[gnu::constructor]] void start() { process_state<OwnMark>(); }

/// Returns a random number, 0 when the kernel has none.
std::uint64_t random_number() {
  std::uint64_t number = 0;
  return ::getrandom(&number, sizeof number, GRND_NONBLOCK) == sizeof number ? number : 0;
}

/// Maps the page at a random address: the same program, started anew without address space randomization, must not have
/// it at the same place.
MarkPage* map_page() {
  constexpr std::uint64_t kLowest = std::uint64_t{1} << 40, kRange = std::uint64_t{1} << 46;
  const std::uint64_t place = kLowest + random_number() % kRange / kPageBytes * kPageBytes;
  void* page =
      ::mmap(reinterpret_cast<void*>(place), kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, kPageBytes, MADV_WIPEONFORK) == 0) return static_cast<MarkPage*>(page);
  ::munmap(page, kPageBytes);
  return nullptr;
}

MarkPage* find_or_map_page() {
  std::atomic<MarkPage*>& own_page = process_state<OwnMark>().page;
  if (MarkPage* page = own_page.load(std::memory_order_acquire)) return page;
  MarkPage* fresh = map_page();
  MarkPage* found = nullptr;
  if (fresh == nullptr || own_page.compare_exchange_strong(found, fresh)) return fresh;
  ::munmap(fresh, kPageBytes);
  return found;
}

SpaceMark mark_of(const MarkPage* page) {
  const std::uint64_t token = page != nullptr ? page->token.load(std::memory_order_acquire) : 0;
  return token != 0 ? SpaceMark{token, reinterpret_cast<std::uint64_t>(page)} : SpaceMark{};
}

}  // namespace

SpaceMark known_space_mark() { return mark_of(process_state<OwnMark>().page.load(std::memory_order_acquire)); }

SpaceMark own_space_mark() {
  const int saved_errno = errno;
  MarkPage* page = find_or_map_page();
  if (page != nullptr) {
    std::uint64_t none = 0;
    if (page->token.load(std::memory_order_acquire) == none) page->token.compare_exchange_strong(none, random_number());
  }
  errno = saved_errno;
  return mark_of(page);
}

}  // namespace ringsock::soft
