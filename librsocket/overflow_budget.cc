#include "librsocket/overflow_budget.h"

#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/mutex.h"
#include "core/base/process_state.h"

namespace ringsock::rs {

namespace {

/// What the users have been charged.
class OverflowBudgets {
 public:
  static constexpr ProcessPart kPart = ProcessPart::overflow_budgets;

  bool take(uid_t user, std::uint64_t bytes, Nanos now) {
    const std::lock_guard guard(lock_);
    return_late(now);
    std::uint64_t& charged = charged_[user];
    if (bytes > kMaxOverflowOfUser - charged) return false;
    charged += bytes;
    return true;
  }
  void give_back(uid_t user, std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    give_back_locked(user, bytes);
  }
  void give_back_later(uid_t user, std::uint64_t bytes, Nanos when) {
    const std::lock_guard guard(lock_);
    late_.push_back({user, bytes, when});
  }
  void survive_fork() { hold_across_fork(lock_); }

 private:
  struct Late {
    uid_t user;
    std::uint64_t bytes;
    Nanos when;
  };
  void give_back_locked(uid_t user, std::uint64_t bytes) {
    const auto place = charged_.find(user);
    place->second -= bytes;
    if (place->second == 0) charged_.erase(place);
  }
  void return_late(Nanos now) {
    while (!late_.empty() && late_.front().when <= now) {
      give_back_locked(late_.front().user, late_.front().bytes);
      late_.pop_front();
    }
  }
  Mutex lock_;
  std::map<uid_t, std::uint64_t> charged_;
  std::list<Late> late_;  ///< at most kMaxOverflowOfUser / kStep of each user
};

[[gnu::constructor]] void start() { process_state<OverflowBudgets>().survive_fork(); }

}  // namespace

std::uint64_t OverflowCharge::cover(std::uint64_t bytes, Nanos now) {
  if (!user_ || bytes <= covered_) return covered_;
  const std::uint64_t more = (bytes - covered_ + kStep - 1) / kStep * kStep;
  OverflowBudgets& budgets = process_state<OverflowBudgets>();
  if (budgets.take(*user_, more, now)) {
    covered_ += more;
  } else if (more != kStep && budgets.take(*user_, kStep, now)) {
    covered_ += kStep;
  }
  return covered_;
}

void OverflowCharge::give_back() {
  if (const std::uint64_t bytes = std::exchange(covered_, 0); bytes != 0)
    process_state<OverflowBudgets>().give_back(*user_, bytes);
}

void OverflowCharge::give_back_later(Nanos now) {
  if (const std::uint64_t bytes = std::exchange(covered_, 0); bytes != 0)
    process_state<OverflowBudgets>().give_back_later(*user_, bytes, now + kUnreadCounts);
}

}  // namespace ringsock::rs
