#include "librsocket/accept_turns.h"

#include <utility>

namespace ringsock::rs {

namespace {
thread_local char own_thread_mark;  ///< its address is the thread's
}  // namespace

bool AcceptTurns::look_after_half_made() {
  const char* nobody = nullptr;
  return looks_after_half_made_.compare_exchange_strong(nobody, &own_thread_mark) || nobody == &own_thread_mark;
}

void AcceptTurns::take_over_half_made() { looks_after_half_made_.store(&own_thread_mark); }

bool AcceptTurns::leave_half_made() {
  const char* self = &own_thread_mark;
  return looks_after_half_made_.compare_exchange_strong(self, nullptr);
}

void AcceptTurns::note_vain_accept() {
  constexpr int kSeveral = 3;
  if (std::exchange(last_in_vain_, &own_thread_mark) == &own_thread_mark) return;
  if (++changes_in_vain_ >= kSeveral) several_.store(true, std::memory_order_relaxed);
}

}  // namespace ringsock::rs
