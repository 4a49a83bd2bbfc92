// Lends pieces of a stream to the program.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/engine/stream/receive_window.h"
#include "core/extra_api/lent_packets.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

class Progress;

/// Pieces are lent where they lie in the receive ring. The peer gets their segment back once all of the segment's
/// pieces are. What lies in the overflow area is copied into memory of its own, which is lent. Threads: any.
class StreamLender {
 public:
  StreamLender(StreamCore& core, Progress& progress) : core_(core), progress_(progress) {}

  struct Piece {
    const vma::LentPacket* packet = nullptr;  ///< null: nothing, or no memory
    std::span<const std::byte> bytes{};
  };
  /// Lends the next piece. The place for it is taken before its bytes, so nothing is lost without memory. With
  /// receive_lock.
  Piece lend() noexcept;
  /// Lends the next piece, at most `most` bytes, to a program that polls the shared ring: by LentPackets::kNobody. It
  /// comes back by itself, and the socket's StreamApi is told. Returns null when there is nothing, or no memory. With
  /// receive_lock.
  vma::LentPacket* lend_to_poll(std::size_t most) noexcept;
  /// Returns whether the next piece would be a copy while the program has many: the sender is to wait. With
  /// receive_lock.
  [[nodiscard]] bool must_wait() const noexcept;
  /// Takes a piece back that the program has not, or not any more. Without locks.
  void take_back(const vma::LentPacket* packet) noexcept;
  /// Called after packets have come back: tells the peer of the room. Without locks.
  void packets_freed() noexcept;

  /// The number under which pieces are lent.
  [[nodiscard]] std::uint32_t number() noexcept { return lender_.number(); }
  /// The socket is closed: takes all pieces back.
  void end() noexcept { lender_.end(); }
  /// The kernel has the connection now. No piece lies in the ring.
  void leave_to_kernel() noexcept { lender_.leave_to_kernel(); }

 private:
  class Memory;
  /// What has come back and the window does not know of yet. Pieces may outlive the socket.
  struct Returned {
    std::array<std::atomic<std::uint32_t>, engine::ReceiveWindow::kMaxSegments> pieces{};
  };

  /// What fill() has put into the memory of a piece.
  std::span<const std::byte> fill(Memory& memory, std::size_t most);
  [[nodiscard]] std::shared_ptr<Returned> returned();
  bool announce_freed();

  StreamCore& core_;
  Progress& progress_;
  vma::Lender lender_;
  // With receive_lock:
  std::shared_ptr<Returned> returned_;
  /// Bytes of copies that are lent.
  const std::shared_ptr<std::atomic<std::size_t>> copied_ = std::make_shared<std::atomic<std::size_t>>(0);
  std::uint32_t holding_ = 0;  ///< the period of holding (ReceiveWindow) of `returned_`
};

}  // namespace ringsock::rs
