// The state of a connection, for another process that has a copy of it by fork(2).
#pragma once

#include <cstdint>

#include "core/base/result.h"
#include "core/engine/stream/receive_window.h"
#include "core/engine/stream/send_window.h"
#include "core/verbs/saved_queue_pair.h"
#include "librsocket/overflow_areas.h"

namespace ringsock::rs {

class Connection;

/// It lies in memory that the processes share, so the process that takes the connection over checks it. Each part of
/// the connection saves and restores what it knows.
struct SavedConnection {
  engine::SendWindow::Saved send_window;
  engine::ReceiveWindow::Saved receive_window;
  OverflowAreas::Saved overflow;
  verbs::SavedQueuePair queue_pair;
  std::uint32_t peer_sgl_next;
  std::uint32_t own_sgl_next;
  std::uint32_t posted;
  std::uint32_t unsignalled;
  std::uint32_t owed_receives;
  std::int32_t failure;
  std::uint16_t held_credits;
  std::uint8_t held;
  std::uint8_t has_failed_work;
  std::uint8_t peer_shut_down;
  std::uint8_t shut_down;
  std::uint8_t peer_disconnected;
  std::uint8_t closing;
  std::uint8_t flushed;
};

/// The state of a connection in this process.
class StateOf {
 public:
  explicit StateOf(Connection& connection) : connection_(connection) {}

  /// Returns the bytes in the peer's overflow area that the peer has not read. Threads: any; the answer may be
  /// outdated.
  [[nodiscard]] std::uint64_t waiting_bytes() const;

  /// Saves the state, and suspends the connection so that another process can go on with it. Returns false, and does
  /// neither, when it is suspended already, when work is under way in this process, where there is direct placement, or
  /// on a device that cannot save. The sender's and the reader's lock must be held, and the connection has been polled.
  bool save_and_suspend(SavedConnection& saved);
  /// Saves the state, too. Returns false, without effect, under the conditions of save_and_suspend() but the first one.
  bool save(SavedConnection& saved);
  /// save() for a thread that has all locks of the connection.
  bool save_locked(SavedConnection& saved) const;
  /// Returns whether no process has gone further than `saved`, as far as the peer can see. Threads: as restore().
  [[nodiscard]] bool is_untouched_since(const SavedConnection& saved) const;
  /// Makes a suspended connection go on from what another process has saved. The sender's and the reader's lock must be
  /// held. Error: EPROTO for impossible values, after which the connection must not be used.
  Status restore(const SavedConnection& saved);

 private:
  [[nodiscard]] bool is_possible(const SavedConnection& saved) const;
  Status restore_windows(const SavedConnection& saved);

  Connection& connection_;
};

}  // namespace ringsock::rs
