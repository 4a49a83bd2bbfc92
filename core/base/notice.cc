#include "core/base/notice.h"

#include <atomic>

#include "core/base/process_state.h"

namespace ringsock {

namespace {

struct Notices {
  static constexpr ProcessPart kPart = ProcessPart::notices;
  std::atomic<std::uint32_t> given{0};  ///< a bit for each
};

[[gnu::constructor]] void start() { process_state<Notices>(); }

}  // namespace

bool is_first(Notice notice) noexcept {
  const std::uint32_t bit = std::uint32_t{1} << static_cast<unsigned>(notice);
  return (process_state<Notices>().given.fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
}

}  // namespace ringsock
