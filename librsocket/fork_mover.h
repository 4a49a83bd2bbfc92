// In fork mode: the move of a connection from the kernel to a ring.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/transports/chosen_socket.h"
#include "core/transports/mover.h"
#include "librsocket/fork_mode.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

/// A connection through a device whose connections do not survive fork(2) stays with the kernel until one of its
/// processes uses it.
class ForkMover final : public transports::Mover {
 public:
  /// @param stream  the way of `socket`
  ForkMover(transports::ChosenSocket& socket, StreamSocket& stream) : socket_(socket), stream_(stream) {}

  bool concerns(const SocketAddress& local_or_peer) override;
  bool may_listen() override { return stream_.connector().leave_unshareable_devices(); }
  void begin(End end, const SocketAddress& where) override;
  Status use() override;
  std::uint32_t events(std::uint32_t events) noexcept override;
  runtime::WaitFds arm() noexcept override;
  void woken() noexcept override;
  Nanos deadline() noexcept override { return next_look_.load(std::memory_order_relaxed); }
  [[nodiscard]] int edges() const noexcept override { return kernel_edges_.get(); }
  void end() noexcept override;
  void add_fork_locks(runtime::ForkLocks& locks) override;
  void after_fork(runtime::ProcessLife::ForkSide side) noexcept override;

 private:
  [[nodiscard]] int descriptor() const { return stream_.descriptor(); }
  template <class Before>
  Status move(Before before);

  // These need lock_.
  Status move_locked();
  Status wait_for_zeros();
  Status wait_for_server();
  Status connect_ring();
  Status take_turn();
  Status listen_for_client();
  Status take_client();
  void arrive();
  Status stay(std::optional<Error> error);

  transports::ChosenSocket& socket_;
  StreamSocket& stream_;
  Mutex lock_;  ///< taken before the locks of the stream
  std::unique_ptr<Migration> migration_;
  UniqueFd kernel_edges_;  ///< an epoll descriptor, readable when something happens to the kernel's connection
  std::atomic<Nanos> next_look_{Nanos::max()};
};

}  // namespace ringsock::rs
