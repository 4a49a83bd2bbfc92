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
};

/// A zeroed private mapping with one owner. Moves only.
class Pages {
 public:
  Pages() = default;
  /// Maps at least `bytes` (> 0), rounded up to whole pages. Tries huge pages when they fit without much waste, and
  /// uses ordinary pages when there are none. Errors: ENOMEM.
  static Result<Pages> allocate(std::size_t bytes);
  Pages(Pages&& other) noexcept : memory_(std::exchange(other.memory_, {})), backing_(other.backing_) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(backing_, other.backing_);
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
};

}  // namespace ringsock::verbs
