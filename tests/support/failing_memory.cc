#include "tests/support/failing_memory.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

#include "tests/support/sanitizers.h"

namespace ringsock::support {

namespace {
constexpr bool kIsPossible = !kHasAddressSanitizer && !kHasThreadSanitizer;

std::atomic<bool> is_counting{false};
std::atomic<bool> all_fail{false};
std::atomic<unsigned> left{0};  ///< allocations up to the first that fails, which is one of them
std::atomic<unsigned> failures{0};

[[maybe_unused]] bool is_to_fail() {
  if (!is_counting.load()) return false;
  unsigned before = left.load();
  while (!left.compare_exchange_weak(before, before - (before == 0 ? 0 : 1))) {
  }
  const bool fails = before == 1 || (before == 0 && all_fail.load());
  if (!fails) return false;
  ++failures;
  errno = ENOMEM;
  return true;
}
}  // namespace

bool can_fail_allocations() { return kIsPossible; }

void fail_allocation(unsigned number, Failing which) {
  failures = 0;
  left = number;
  all_fail = which == Failing::all_from_then_on;
  is_counting = true;
}

unsigned end_failures() {
  is_counting = false;
  return failures.load();
}

}  // namespace ringsock::support

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if !defined(__has_feature)
#define RINGSOCK_OWN_MALLOC
#elif !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#define RINGSOCK_OWN_MALLOC
#endif
#endif

#ifdef RINGSOCK_OWN_MALLOC
extern "C" {
void* __libc_malloc(std::size_t bytes);                           // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(std::size_t count, std::size_t bytes);        // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* old, std::size_t bytes);               // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(std::size_t alignment, std::size_t bytes);  // NOLINT(bugprone-reserved-identifier)

void* malloc(std::size_t bytes) noexcept { return ringsock::support::is_to_fail() ? nullptr : __libc_malloc(bytes); }
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  return ringsock::support::is_to_fail() ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* old, std::size_t bytes) noexcept {
  return ringsock::support::is_to_fail() ? nullptr : __libc_realloc(old, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  return ringsock::support::is_to_fail() ? nullptr : __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  return ringsock::support::is_to_fail() ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) noexcept {
  if (ringsock::support::is_to_fail()) return ENOMEM;
  void* const made = __libc_memalign(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *out = made;
  return 0;
}
}
#endif
