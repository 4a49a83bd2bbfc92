// What VMA's Extra API learns of a stream rsocket.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/extra_api/api_socket.h"
#include "librsocket/stream_callback.h"
#include "librsocket/stream_core.h"
#include "librsocket/stream_events.h"
#include "librsocket/stream_lender.h"

namespace ringsock::rs {

class StreamSocket;

/// Made at the first question. Threads: any.
class StreamApi final : public vma::ApiSocket {
 public:
  StreamApi(StreamSocket& socket, StreamCore& core);

  Status set_callback(vma_recv_callback_t function, void* context) override;
  Result<Received> receive_packets(vma::PacketList& list, msghdr& message, int flags, bool never_copies) override;
  std::uint32_t lender() override { return lender_.number(); }
  void packets_freed() override;
  vma::PolledStream* polled_stream() noexcept override;

  StreamCallback& callback() { return callback_; }
  StreamEvents& events() { return events_; }
  /// The same as packets_freed(), and the program's next poll looks for what had to wait.
  void polled_packets_freed();
  /// Runs the path of a send of `total` bytes, and sends nothing. Errors: as send(2); EAGAIN it would have to wait.
  Result<ssize_t> rehearse(std::size_t total);
  [[nodiscard]] std::uint64_t rehearsals() const { return rehearsals_.load(std::memory_order_relaxed); }

  /// Returns whether the program has pieces of the ring, or has not read what its function has let through: the
  /// connection cannot go to the kernel then.
  [[nodiscard]] bool keeps_connection() noexcept;
  /// The kernel is about to have the connection.
  void leave_to_kernel() noexcept;
  /// The kernel has it.
  void has_left_to_kernel() noexcept { events_.has_left_to_kernel(); }
  /// The socket is closed: what is lent is lent no more.
  void end() noexcept;

 private:
  Result<Received> receive_copy(msghdr& message, int flags, bool never_copies);
  std::size_t lend_accepted(vma::PacketList& list) noexcept;
  Result<std::size_t> lend_pieces(vma::PacketList& list) noexcept;
  Result<Received> lend(vma::PacketList& list, int flags);

  StreamSocket& socket_;
  StreamCore& core_;
  StreamLender lender_;
  StreamCallback callback_;
  StreamEvents events_;
  std::atomic<std::uint64_t> rehearsals_{0};
};

}  // namespace ringsock::rs
