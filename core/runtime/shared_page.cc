#include "core/runtime/shared_page.h"

#include <sys/mman.h>

#include <array>
#include <new>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/process_state.h"

namespace ringsock::runtime {

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kAlignment = 8;

/// A page, or several for pieces of which a page would hold few, so that a process with many connections has few
/// mappings.
class SharedPage {
 public:
  explicit SharedPage(std::size_t bytes)
      : bytes_(bytes),
        memory_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        generation_(fork_generation()) {}
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  ~SharedPage() {
    if (memory_ != MAP_FAILED) ::munmap(memory_, bytes_);
  }

  [[nodiscard]] bool has_room(std::size_t bytes) const {
    return memory_ != MAP_FAILED && bytes <= bytes_ - used_ && generation_ == fork_generation();
  }
  /// @param bytes a multiple of kAlignment, for which there is room
  void* next(std::size_t bytes) { return static_cast<std::byte*>(memory_) + std::exchange(used_, used_ + bytes); }

 private:
  std::size_t bytes_;
  void* memory_;
  unsigned generation_;
  std::size_t used_ = 0;
};

/// Weak, because the pieces own the page. Large pieces have pages of their own.
struct CurrentPages {
  static constexpr ProcessPart kPart = ProcessPart::shared_page;
  std::array<std::weak_ptr<SharedPage>, 2> pages;
};

}  // namespace

std::shared_ptr<void> shared_piece(std::size_t bytes) noexcept try {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const bool is_large = rounded > kPageBytes / 8;
  std::weak_ptr<SharedPage>& current = process_state<CurrentPages>().pages[is_large ? 1 : 0];
  std::shared_ptr<SharedPage> page = current.lock();
  if (!page || !page->has_room(rounded)) {
    page = std::make_shared<SharedPage>(is_large ? 16 * kPageBytes : kPageBytes);
    if (!page->has_room(rounded)) return nullptr;
    current = page;
  }
  void* const piece = page->next(rounded);
  return {std::move(page), piece};
} catch (const std::bad_alloc&) {
  return nullptr;
}

}  // namespace ringsock::runtime
