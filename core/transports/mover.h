// Moves connections from the kernel to a way when they are used.
#pragma once

#include <cstdint>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/runtime/roles.h"

namespace ringsock::transports {

/// Belongs to a ChosenSocket whose way cannot be inherited over fork(2): the kernel makes the connection, and it moves
/// to the way later, or stays with the kernel for good. The mover sets the state of the socket
/// (ChosenSocket::choice()). Threads: any.
class Mover {
 public:
  enum class End { connecting, accepting };
  virtual ~Mover() = default;
  /// Returns whether connections between this host and that address are made by the kernel first.
  virtual bool concerns(const SocketAddress& local_or_peer) = 0;
  /// Prepares a socket that is bound by its way to listen there. Returns false when only the kernel can listen.
  virtual bool may_listen() = 0;
  /// Begins with a connection that the kernel has, or makes.
  /// @param where  the peer's address for the connecting end, the local address for the accepting one
  virtual void begin(End end, const SocketAddress& where) = 0;
  /// Goes on for a call that moves bytes. Errors: EAGAIN while the move is under way; why the kernel's connection has
  /// ended.
  virtual Status use() = 0;
  /// Goes on, and returns the events of a connection that moves.
  /// @param events  those of the kernel's connection
  virtual std::uint32_t events(std::uint32_t events) noexcept = 0;
  virtual runtime::WaitFds arm() noexcept = 0;
  virtual void woken() noexcept = 0;
  virtual Nanos deadline() noexcept = 0;
  /// Returns a descriptor that is readable when something happens to the kernel's connection that stays, or -1.
  [[nodiscard]] virtual int edges() const noexcept = 0;
  /// Leaves a connection that moves to the kernel.
  virtual void end() noexcept = 0;
  virtual void add_fork_locks(runtime::ForkLocks& locks) = 0;
  virtual void after_fork(runtime::ProcessLife::ForkSide side) noexcept = 0;
};

}  // namespace ringsock::transports
