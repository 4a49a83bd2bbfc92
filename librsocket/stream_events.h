// SocketXtreme: what a program that polls a ring learns of a stream rsocket.
#pragma once

#include <mellanox/vma_extra.h>

#include <atomic>
#include <cstdint>

#include "core/extra_api/polled_streams.h"
#include "core/extra_api/ring_alloc_logic.h"
#include "core/extra_api/shared_ring.h"
#include "core/extra_api/user_data.h"
#include "librsocket/stream_core.h"
#include "librsocket/stream_lender.h"

namespace ringsock::rs {

class StreamSocket;

/// The program's poll accepts the connections of a listener, finds that a connect(2) has ended, and hands out what a
/// connection brings as packets, which lie in its receive ring. Nothing here acts without
/// VMA_SOCKETXTREME.
/// Threads: any. Locks: none are held, unless stated otherwise.
class StreamEvents final : public vma::PolledStream {
 public:
  StreamEvents(StreamSocket& socket, StreamCore& core, StreamLender& lender)
      : socket_(socket), core_(core), lender_(lender) {}
  ~StreamEvents() { forget(), unlist(); }
  StreamEvents(const StreamEvents&) = delete;
  StreamEvents& operator=(const StreamEvents&) = delete;

  // -- the ways of the socket
  /// It has been closed. Harmless when called twice.
  void leave() noexcept;
  /// The kernel is about to have it. Harmless when called twice.
  void leave_to_kernel() noexcept;
  /// The kernel has it now: the program is told, once, that the ring does not bring it any more.
  void has_left_to_kernel() noexcept;
  /// Called in a forked child: the ring is the parent's.
  void forget_after_fork() noexcept;

  // -- of a connection
  /// A send has left bytes: the program is told of the next room.
  void expect_room() noexcept;
  /// Packets have come back, for which others had to wait.
  void packets_freed() noexcept;

  vma::UserData user_data;  ///< SO_VMA_USER_DATA
  vma::RingWish ring_wish;  ///< SO_VMA_RING_ALLOC_LOGIC

  // -- PolledStream
  bool take_event(vma_completion_t& out) override;
  runtime::Endpoint& endpoint() noexcept override { return core_.endpoint; }
  [[nodiscard]] std::uint32_t wished_events() const noexcept override;
  [[nodiscard]] runtime::RingKey ring_key(runtime::RingLogic by_default) override;
  [[nodiscard]] vma::SharedRing* shared_ring() noexcept override;
  bool join(vma::SharedRing& ring, bool has_called_connect) noexcept override;

 private:
  bool accept_one(vma_completion_t& out);
  bool take_connect(vma_completion_t& out);
  bool take_from_connection(vma_completion_t& out);
  bool lend(vma_packet_desc_t& out);
  std::uint32_t news(std::uint32_t ready) noexcept;
  void tell_wishes() noexcept;
  void forget() noexcept;

  StreamSocket& socket_;
  StreamCore& core_;
  StreamLender& lender_;
  std::atomic<vma::SharedRing*> ring_{nullptr};
  /// The ring that it had, and the number under which the kernel is about to have it.
  std::atomic<vma::SharedRing*> left_ring_{nullptr};
  std::atomic<int> left_fd_{-1};
  std::atomic<bool> awaits_connect_{false};  ///< EPOLLOUT once the connection is made
  std::atomic<bool> awaits_room_{false};     ///< EPOLLOUT once there is room
  std::atomic<bool> must_wait_{false};       ///< for packets that the program has
  std::uint32_t told_ = 0;                   ///< of the conditions that do not end; with receive_lock
};

}  // namespace ringsock::rs
