// Lends pieces of a connection's stream to the program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/engine/tcp/lending.h"
#include "core/extra_api/lent_packets.h"
#include "libvmacompat/tcp/carried_connection.h"

namespace ringsock::vma {

/// Pieces are lent in the memory of the engine's receive queue. They count as unread for the window until they come
/// back. Those that the program has when the connection goes to the kernel stay lent by LentPackets::kLeft. Threads:
/// any.
class TcpLender {
 public:
  using Piece = engine::tcp::ByteQueue::Piece;
  explicit TcpLender(CarriedConnection& connection) : connection_(connection) {}

  /// What has been lent.
  struct Lent {
    LentPacket* packet = nullptr;          ///< null: nothing, or no memory
    std::shared_ptr<const Piece> piece{};  ///< may be kept longer than the packet is lent
  };
  /// Lends the next piece. Its place is taken before its bytes, so nothing is lost without memory. Only inside
  /// with_engine().
  Lent lend(engine::tcp::TcpConnection& engine, Nanos now) noexcept;
  /// Lends the next piece, at most `most` bytes, up to 65,535, to a program that polls the ring: by
  /// LentPackets::kNobody. Returns null when there is none, or no memory. Only inside with_engine().
  /// @param fd  a descriptor of the socket, whose window opens at once when the packet comes back; otherwise that of
  ///            what is there then, and the clock opens it
  LentPacket* lend_to_poll(engine::tcp::TcpConnection& engine, Nanos now, std::size_t most, int fd) noexcept;
  /// Takes a packet back. Not inside with_engine().
  void take_back(const LentPacket* packet);
  /// The number under which pieces are lent.
  [[nodiscard]] std::uint32_t number() noexcept { return lender_.number(); }
  /// Called after packets have come back: opens the window. Not inside with_engine().
  void packets_freed();

  /// The kernel has the connection now. Called without locks.
  void leave_to_kernel() noexcept { lender_.leave_to_kernel(); }
  /// The socket is closed.
  void end() noexcept { lender_.end(); }

 private:
  class Memory;
  class PolledMemory;

  CarriedConnection& connection_;
  Lender lender_;
  /// Bytes that have come back and that the engine does not know of yet.
  const std::shared_ptr<std::atomic<std::size_t>> returned_ = std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace ringsock::vma
