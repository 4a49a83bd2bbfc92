// What this room keeps for each thread.
#pragma once

#include <array>

#include "core/base/of_thread.h"
#include "core/base/unique_fd.h"
#include "core/poll/spin_policy.h"
#include "core/poll/turn_sleeper.h"
#include "core/poll/wait_tally.h"

namespace ringsock::runtime {

class EpollMember;
class EpollSet;

struct ThreadBell {
  UniqueFd fd;
  unsigned generation = 0;  ///< a child shares its parent's eventfds; each would wake the other
  bool rung_by_itself = false;
};

struct ThreadWaits {
  std::array<SpinHistory, 2> spins;  ///< of operations, and of pollers
  unsigned hits = 0;                 ///< calls of poll(2) since the last one that asked the kernel
  PollingShare polling;              ///< where the process measures it
  WaitTally tally;                   ///< of the current poll(2), select(2) or epoll_wait(2)
  /// The member that the thread is asking: what its endpoint reports meanwhile is no news.
  const EpollMember* being_asked = nullptr;
  const EpollSet* sleeping_in = nullptr;  ///< the set in which the thread counts as sleeping
  int error_after_a_part = 0;             ///< why the last call moved only a part; 0: it moved all
  OfThread<ThreadBell> bell;
  OfThread<TurnSleeper> turn_sleeper;
};
extern thread_local constinit ThreadWaits thread_waits __attribute__((tls_model("initial-exec")));

}  // namespace ringsock::runtime
