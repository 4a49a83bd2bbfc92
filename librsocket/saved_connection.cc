#include "librsocket/saved_connection.h"

#include <cerrno>
#include <mutex>

#include "librsocket/connection.h"

namespace ringsock::rs {

std::uint64_t StateOf::waiting_bytes() const { return connection_.overflow().waiting(); }

bool StateOf::save_and_suspend(SavedConnection& saved) {
  ConnectionCore& core = connection_.core();
  const std::lock_guard guard(core.poll_lock);
  if (core.is_suspended() || !save_locked(saved)) return false;
  connection_.suspend();
  return true;
}

bool StateOf::save(SavedConnection& saved) {
  const std::lock_guard guard(connection_.core().poll_lock);
  return save_locked(saved);
}

bool StateOf::save_locked(SavedConnection& saved) const {
  ConnectionCore& core = connection_.core();
  const SendRequests& requests = connection_.requests();
  const bool is_fixed = requests.ring() || requests.has_words_by_send() || connection_.tables_.has_iomap();
  if (is_fixed || requests.is_busy()) return false;
  const auto queue_pair = core.device.rc().save(*core.qp);
  if (!queue_pair) return false;
  saved.queue_pair = *queue_pair;
  saved.overflow = core.overflow.save();
  core.ends.save(saved);
  connection_.sending_.save(saved);
  connection_.receives_.save(saved);
  connection_.tables_.save(saved);
  connection_.receiving_.save(saved);
  return true;
}

bool StateOf::is_untouched_since(const SavedConnection& saved) const {
  ConnectionCore& core = connection_.core();
  return core.device.rc().is_untouched_since(*core.qp, saved.queue_pair) &&
         core.overflow.is_untouched_since(saved.overflow);
}

bool StateOf::is_possible(const SavedConnection& saved) const {
  return ConnectionEnds::is_possible(saved) && connection_.requests().is_possible(saved) &&
         ReceiveRequests::is_possible(saved) && connection_.tables_.is_possible(saved);
}

Status StateOf::restore(const SavedConnection& saved) {
  ConnectionCore& core = connection_.core();
  const std::lock_guard guard(core.poll_lock);
  if (!is_possible(saved)) return Error{EPROTO, "rsocket: an impossible connection"};
  if (Status windows = restore_windows(saved); !windows) return windows;
  if (Status queue = core.device.rc().restore(*core.qp, saved.queue_pair); !queue) return queue;
  core.ends.restore(saved);
  connection_.sending_.restore(saved);
  connection_.receives_.restore(saved);
  connection_.tables_.restore(saved);
  return ok();
}

Status StateOf::restore_windows(const SavedConnection& saved) {
  if (Status sends = connection_.sending_.restore_window(saved); !sends) return sends;
  if (Status receives = connection_.receiving_.restore_window(saved); !receives) return receives;
  return connection_.overflow().restore(saved.overflow);
}

}  // namespace ringsock::rs
