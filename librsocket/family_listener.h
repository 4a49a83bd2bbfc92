// The listener of a socket that was bound, and did not listen, when the process forked.
#pragma once

#include <memory>

#include "core/verbs/connection_manager.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// All processes of the family have it, so each of them can listen, and each can end it for all: one that uses the
/// kernel's socket may take clients there, and must leave none waiting at the ring of a process that does not accept.
/// setup_lock must be held.
class FamilyListener final : public StreamPart {
 public:
  FamilyListener(StreamSocket& socket, StreamCore& core) : StreamPart(socket, core) {}

  /// Takes the name of the port's listener, before a fork(2), if the socket has a port and the embedded device serves
  /// it. Otherwise the family listens by the kernel only.
  void prepare() noexcept;
  [[nodiscard]] bool is_prepared() const noexcept { return id_ != nullptr; }
  /// Returns the id, on which the caller calls listen().
  [[nodiscard]] std::unique_ptr<verbs::ConnectionId> take() noexcept { return std::move(id_); }
  /// Ends the listener in all processes, whether or not one of them listens yet. Clients that wait are refused.
  void end() noexcept;
  /// Called when no other process has the socket any more: it can have more devices than the family could.
  void family_has_ended() noexcept {
    if (!has_all_devices_) drop();
  }
  /// Frees the name.
  void drop() noexcept { id_.reset(); }

 private:
  std::unique_ptr<verbs::ConnectionId> id_;
  bool has_all_devices_ = false;
};

}  // namespace ringsock::rs
