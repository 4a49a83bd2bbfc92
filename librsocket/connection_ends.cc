#include "librsocket/connection_ends.h"

#include <cerrno>

#include "librsocket/saved_connection.h"

namespace ringsock::rs {

void ConnectionEnds::fail(int error) {
  int none = 0;
  failure_.compare_exchange_strong(none, error, std::memory_order_acq_rel);
}

void ConnectionEnds::note_flush(bool will_be_told) {
  if (will_be_told) {
    flushed_.store(true, std::memory_order_release);
  } else {
    fail(ECONNRESET);
  }
}

void ConnectionEnds::save(SavedConnection& saved) const {
  saved.peer_shut_down = peer_shut_down();
  saved.shut_down = shut_down_.load(std::memory_order_relaxed);
  saved.peer_disconnected = peer_disconnected();
  saved.closing = closing_.load(std::memory_order_relaxed);
  saved.flushed = flushed_.load(std::memory_order_relaxed);
  saved.failure = failure();
}

bool ConnectionEnds::is_possible(const SavedConnection& saved) { return saved.failure >= 0; }

void ConnectionEnds::restore(const SavedConnection& saved) {
  const auto join = [](std::atomic<bool>& flag, std::uint8_t other) { flag.store(flag.load() || other != 0); };
  join(peer_shut_down_, saved.peer_shut_down);
  join(shut_down_, saved.shut_down);
  join(peer_disconnected_, saved.peer_disconnected);
  join(closing_, saved.closing);
  join(flushed_, saved.flushed);
  if (saved.failure != 0) fail(saved.failure);
}

}  // namespace ringsock::rs
