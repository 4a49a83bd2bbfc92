// Received bytes that the application reads where they lie.
#pragma once

#include <cstddef>
#include <span>

#include "core/base/clock.h"
#include "core/engine/tcp/byte_queue.h"
#include "core/engine/tcp/connection.h"

namespace ringsock::engine::tcp {

/// Calls of the application on a connection, beside TcpConnection::read(). Threads: as there.
class Lending {
 public:
  explicit Lending(TcpConnection& connection) : core_(*connection.core_) {}

  /// Reads the next 1 to `most` bytes that lie in a row, with their memory. Fewer up to the urgent mark; none where
  /// read() gives none. They count as unread for the window until take_back(). Errors: std::bad_alloc; nothing is lost.
  ByteQueue::Piece lend(std::size_t most, Nanos now);
  /// Has read() give a copy of bytes next that were lent last. Errors: std::bad_alloc; nothing has changed.
  void put_front(std::span<const std::byte> bytes);
  /// So many of the lent bytes have come back: the window opens as by read().
  void take_back(std::size_t bytes, Nanos now);

 private:
  Core& core_;
};

}  // namespace ringsock::engine::tcp
