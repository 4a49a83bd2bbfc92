#include "core/runtime/due_calls.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/runtime/endpoint.h"
#include "core/runtime/library_call.h"

namespace ringsock::runtime {

namespace {

/// The calls that are due, taken over from the thread, so that calls which these make have a list of their own.
class TakenOver {
 public:
  TakenOver() : due_(this_thread.due) { this_thread.due = {}; }
  TakenOver(const TakenOver&) = delete;
  TakenOver& operator=(const TakenOver&) = delete;
  /// Also while an exception of the application passes: the calls that have not run are found due again.
  ~TakenOver() {
    for (DueCall* const one : all()) one->endpoint().drop_ref();
  }
  [[nodiscard]] std::span<DueCall* const> all() const { return std::span(due_.calls).first(due_.count); }

 private:
  const DueCalls due_;
};

}  // namespace

bool note_due(DueCall& call) {
  if (!is_inside_library()) return false;
  DueCalls& due = this_thread.due;
  const auto end = due.calls.begin() + static_cast<std::ptrdiff_t>(due.count);
  if (due.count == due.calls.size() || std::find(due.calls.begin(), end, &call) != end) return true;
  call.endpoint().add_ref();
  due.calls[due.count++] = &call;
  this_thread.handlers.is_due = true;
  return true;
}

bool run_due_calls() {
  const int saved_errno = errno;
  const TakenOver due;
  bool has_left = false;
  for (DueCall* const one : due.all()) {
    one->run();
    has_left |= std::exchange(this_thread.due.has_left, false);
  }
  errno = saved_errno;
  return has_left;
}

}  // namespace ringsock::runtime
