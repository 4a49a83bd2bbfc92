#include "librsocket/family_record.h"

#include <sys/mman.h>

#include <cstddef>
#include <new>

#include "core/runtime/fork_registry.h"
#include "core/runtime/sleeper.h"

namespace ringsock::rs {

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kRecordsPerPage = kPageBytes / sizeof(FamilyRecord);

class RecordPage {
 public:
  RecordPage()
      : memory_(::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        generation_(runtime::fork_generation()) {}
  RecordPage(const RecordPage&) = delete;
  RecordPage& operator=(const RecordPage&) = delete;
  ~RecordPage() {
    if (memory_ != MAP_FAILED) ::munmap(memory_, kPageBytes);
  }

  /// A page that came by a fork is the parent's to hand out.
  [[nodiscard]] bool has_room() const {
    return memory_ != MAP_FAILED && used_ < kRecordsPerPage && generation_ == runtime::fork_generation();
  }
  FamilyRecord* next() {
    return new (static_cast<std::byte*>(memory_) + sizeof(FamilyRecord) * used_++) FamilyRecord{1, 0, false};
  }

 private:
  void* memory_;
  unsigned generation_;
  std::size_t used_ = 0;
};

}  // namespace

std::shared_ptr<FamilyRecord> make_family_record() {
  // Weak: the records own the page.
  static auto& current = *new std::weak_ptr<RecordPage>;
  std::shared_ptr<RecordPage> page = current.lock();
  if (!page || !page->has_room()) {
    page = std::make_shared<RecordPage>();
    if (!page->has_room()) return nullptr;
    current = page;
  }
  FamilyRecord* const record = page->next();
  return {std::move(page), record};
}

void leave_families() noexcept {
  runtime::fork_registry().try_for_each([](runtime::Endpoint& endpoint) { endpoint.process_ends(); });
}

void rejoin_families() noexcept {
  runtime::fork_registry().try_for_each([](runtime::Endpoint& endpoint) { endpoint.process_goes_on(); });
}

namespace {
[[gnu::destructor]] void leave_families_at_exit() { leave_families(); }
}  // namespace

}  // namespace ringsock::rs
