// Memory that the kernel answers EFAULT for.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/support/sanitizers.h"

namespace ringsock {

/// Two pages that can be written, and behind them one that cannot be touched; a page that can only be read; one of
/// which nothing is known.
class BadMemory {
 public:
  static constexpr std::size_t kPage = 4096;

  BadMemory() : base_(map(3 * kPage, PROT_READ | PROT_WRITE)), constant_(map(kPage, PROT_READ)) {
    EXPECT_EQ(::mprotect(base_ + 2 * kPage, kPage, PROT_NONE), 0);
  }
  BadMemory(const BadMemory&) = delete;
  BadMemory& operator=(const BadMemory&) = delete;
  ~BadMemory() {
    ::munmap(base_, 3 * kPage);
    ::munmap(constant_, kPage);
  }

  /// What lies there can neither be read nor written: nothing, no address of a process, the end of the address space,
  /// a page without permissions.
  [[nodiscard]] std::vector<char*> unreadable() const {
    const auto at = [](std::uintptr_t address) { return reinterpret_cast<char*>(address); };
    return {at(0),
            at(8),
            at(UINTPTR_MAX),
            at(UINTPTR_MAX - 63),
            at(std::uintptr_t{1} << 63),
            base_ + 2 * kPage,
            base_ + 2 * kPage + 8};
  }
  [[nodiscard]] std::vector<char*> unwritable() const {
    std::vector<char*> all = unreadable();
    all.push_back(constant_);
    return all;
  }
  /// The last so many bytes that can be used.
  [[nodiscard]] char* last(std::size_t bytes) const { return base_ + 2 * kPage - bytes; }
  /// What can only be read: zeros.
  [[nodiscard]] char* constant() const { return constant_; }

 private:
  /// Maps pages where none was before: the library trusts a page that it knew, though it was unmapped since. Sanitizers
  /// decide by themselves where the program may have memory.
  static char* map(std::size_t bytes, int protection) {
    static std::uintptr_t next = std::uintptr_t{1} << 44;
    void* const hint =
        support::kHasAddressSanitizer || support::kHasThreadSanitizer ? nullptr : reinterpret_cast<void*>(next);
    next += bytes;
    void* const memory = ::mmap(hint, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    return static_cast<char*>(memory);
  }
  char* const base_;
  char* const constant_;
};

template <class To>
To* at(const char* place) {
  return reinterpret_cast<To*>(const_cast<char*>(place));
}

#define EXPECT_EFAULT(call)            \
  do {                                 \
    errno = 0;                         \
    EXPECT_EQ((call), -1);             \
    EXPECT_EQ(errno, EFAULT) << #call; \
  } while (false)

}  // namespace ringsock
