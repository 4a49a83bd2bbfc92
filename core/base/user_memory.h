// Tells whether addresses that the application names can be read or written, as the kernel does before it answers
// EFAULT.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ringsock {

/// The pages of this process that were found readable, or writable, when they were last looked at. Each page of 4 KiB
/// has one place in the table. A known page costs six instructions. Another one is looked at by a system call, as long
/// as these looks take less than half a percent of the time; otherwise it is trusted. A page that was known and has
/// been unmapped or protected since is still trusted.
class KnownPages {
 public:
  static constexpr std::uintptr_t kPageMask = 4095;

  constexpr explicit KnownPages(bool (*is_there)(std::uintptr_t page)) : is_there_(is_there) {}

  /// Returns whether all of [address, address + length) is known, or was found now.
  [[nodiscard]] bool has(const void* address, std::size_t length) noexcept {
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    const std::uintptr_t end = first | kPageMask;
    if (length - 1 <= end - first && place(first).load(std::memory_order_relaxed) == end) [[likely]]
      return true;
    return find(address, length) == length;
  }
  /// Returns how many of these bytes, counted from the first one, can be accessed. Pages beyond the first sixteen are
  /// trusted. errno is kept. Threads: any.
  [[nodiscard]] std::size_t find(const void* address, std::size_t length) noexcept;

 private:
  static constexpr std::size_t kPlaces = 8192;

  std::atomic<std::uintptr_t>& place(std::uintptr_t address) { return known_[address / (kPageMask + 1) % kPlaces]; }
  bool look(std::uintptr_t end) noexcept;

  bool (*const is_there_)(std::uintptr_t page);
  std::array<std::atomic<std::uintptr_t>, kPlaces> known_{};  ///< last bytes of pages; 0: none
};

/// What each call checks the application's pointers with.
struct KnownMemory {
  KnownPages readable;
  KnownPages writable;
};
extern KnownMemory known_memory;

/// Returns whether [address, address + length) is above the caller's frame and so near that it surely exists: above the
/// frames of every thread are its arguments and environment, or the C library's descriptor of the thread. Costs a few
/// instructions.
[[gnu::always_inline]] inline bool is_near_on_stack(const void* address, std::size_t length = 0) noexcept {
  constexpr std::uintptr_t kNear = 1024;
  std::uintptr_t here;
#if defined(__x86_64__)
  asm("mov %%rsp, %0" : "=r"(here));  // __builtin_frame_address() would make a frame
#else
  here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
#endif
  return reinterpret_cast<std::uintptr_t>(address) - here < kNear && length <= kNear;
}

inline bool is_readable(const void* address, std::size_t length) noexcept {
  return known_memory.readable.has(address, length);
}
inline bool is_writable(const void* address, std::size_t length) noexcept {
  return known_memory.writable.has(address, length);
}
/// The same for arrays and structures.
template <class Value>
bool are_readable(const Value* values, std::size_t count = 1) noexcept {
  return is_readable(values, count * sizeof(Value));
}
template <class Value>
bool are_writable(const Value* values, std::size_t count = 1) noexcept {
  return is_writable(values, count * sizeof(Value));
}

/// Returns whether the word at `application`, and with it the whole aligned 8-byte word around it, can be written now.
/// The value does not change, not even for a moment. errno is kept. Threads: any.
[[nodiscard]] bool is_word_writable(std::byte* application) noexcept;

}  // namespace ringsock
