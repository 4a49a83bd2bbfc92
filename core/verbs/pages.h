// Anonymous memory on the largest pages available.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "core/base/result.h"

namespace ringsock::verbs {

/// The kind of pages of a mapping, best first.
enum class PageBacking {
  hugetlb,           ///< reserved huge pages
  transparent_huge,  ///< ordinary pages that the kernel may join
  small,
  users,  ///< the application has allocated the memory
};

/// An application's functions for memory. Both are null when it has none.
struct UserMemory {
  void* (*allocate)(std::size_t bytes) = nullptr;
  void (*release)(void* memory) = nullptr;
  explicit operator bool() const { return allocate != nullptr; }
};

/// A zeroed private mapping with one owner, or memory of the application's. Moves only.
class Pages {
 public:
  Pages() = default;
  /// Gets `bytes` (> 0) from the application's function, which is called once; aligned to 64 bytes. Errors: ENOMEM.
  static Result<Pages> from_user(std::size_t bytes, const UserMemory& user);
  /// Maps at least `bytes` (> 0), rounded up to whole pages. Tries huge pages when they fit without much waste, and
  /// uses ordinary pages when there are none. Errors: ENOMEM.
  static Result<Pages> allocate(std::size_t bytes);
  Pages(Pages&& other) noexcept
      : memory_(std::exchange(other.memory_, {})),
        backing_(other.backing_),
        release_(other.release_),
        users_(other.users_) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(backing_, other.backing_);
    std::swap(release_, other.release_);
    std::swap(users_, other.users_);
    return *this;
  }
  ~Pages();

  [[nodiscard]] std::span<std::byte> bytes() const { return memory_; }
  [[nodiscard]] PageBacking backing() const { return backing_; }

 private:
  Pages(std::span<std::byte> memory, PageBacking backing) : memory_(memory), backing_(backing) {}

  static Result<Pages> on_reserved_huge_pages(std::size_t bytes);
  static Result<Pages> on_joinable_pages(std::size_t bytes);
  static Result<Pages> on_small_pages(std::size_t bytes);

  std::span<std::byte> memory_;
  PageBacking backing_ = PageBacking::small;
  void (*release_)(void*) = nullptr;  ///< the application's; null: it is a mapping
  void* users_ = nullptr;             ///< for release_
};

}  // namespace ringsock::verbs
