// SocketXtreme: what a program that polls a ring learns of a TCP socket.
#pragma once

#include <mellanox/vma_extra.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/engine/tcp/connection.h"
#include "core/ethernet/ring.h"
#include "core/extra_api/user_data.h"
#include "libvmacompat/process/watched_streams.h"

namespace ringsock::vma {

class TcpSocket;

/// With VMA_SOCKETXTREME=1 a listener's connections are accepted by the program's poll of its ring, the poll finds that
/// a non-blocking connect(2) has ended, and what a ring brings is handed out as packets. Without it nothing here acts.
/// Threads: any. Locks: none are held, unless stated otherwise.
class TcpEvents final : public PolledStream {
 public:
  explicit TcpEvents(TcpSocket& socket) : socket_(socket) {}
  ~TcpEvents() { forget(-1), unlist(); }
  TcpEvents(const TcpEvents&) = delete;
  TcpEvents& operator=(const TcpEvents&) = delete;

  // -- the ways of the socket; with its setup lock
  /// Before listen(2). Returns false when no ring leads to the listener's address, and the kernel is to have it.
  bool listen();
  /// connect(2) is under way.
  void expect_connection() noexcept;
  /// Before the connection is taken over by its ring. Errors: std::bad_alloc.
  void move();
  /// The ring carries it. `has_connected`: it was made by connect(2).
  void moved(bool has_connected) noexcept;

  // -- the same without locks
  /// The socket has been closed, or the kernel has it now. Harmless when called twice.
  void end() noexcept;
  /// As end(), and the program is told by these EPOLL* bits that the ring does not bring it any more.
  void end_and_tell(std::uint32_t events) noexcept;
  /// Called in a forked child: the rings are the parent's.
  void forget_after_fork() noexcept;
  /// Returns the rings of a listener, of a connection that is being made, or of a new socket that is bound to an
  /// interface.
  std::vector<std::shared_ptr<ethernet::Ring>> rings();

  // -- of a connection on a ring
  /// The engine has news. Only inside with_engine().
  void note_news(std::uint32_t events) noexcept;
  /// A thread that sleeps on the ring's descriptor looks. Not inside with_engine().
  void wake() noexcept;
  /// The program has sent so many of `wanted` bytes.
  void note_sent(const Result<ssize_t>& sent, std::size_t wanted) noexcept;
  /// Returns whether a ring's program may be told of the socket.
  [[nodiscard]] bool is_polled() const noexcept { return streams_.load(std::memory_order_relaxed) != nullptr; }
  /// Returns the number of polls by the ring's program.
  [[nodiscard]] std::uint64_t polls() const noexcept;

  // -- VMA's options, which work without VMA_SOCKETXTREME, too
  static bool is_set_here(int level, int name) noexcept {
    return level == SOL_SOCKET && (name == SO_VMA_USER_DATA || name == SO_VMA_RING_ALLOC_LOGIC);
  }
  static bool is_got_here(int level, int name) noexcept { return level == SOL_SOCKET && name == SO_VMA_USER_DATA; }
  /// Errors: EINVAL wrong length or value; EFAULT.
  Status set_option(int name, const void* value, socklen_t length);
  Status get_option(void* value, socklen_t* length) const;

  // -- PolledStream
  bool take_event(vma_completion_t& out) override;
  runtime::Endpoint& endpoint() noexcept override;

 private:
  [[nodiscard]] std::uint64_t user_data() const noexcept;
  void forget(int fd) noexcept;
  bool watch(std::uint32_t events);
  bool accept_one(vma_completion_t& out);
  bool take_from_engine(engine::tcp::TcpConnection& engine, Nanos now, vma_completion_t& out);
  bool lend(engine::tcp::TcpConnection& engine, Nanos now, vma_packet_desc_t& out);
  Status set_ring_logic(const void* value, socklen_t length);
  std::uint32_t news(const engine::tcp::TcpConnection& engine);

  TcpSocket& socket_;
  std::vector<std::shared_ptr<ethernet::Ring>> rings_;  ///< setup lock; empty once the connection is on its ring
  /// Of the ring by which the socket's events come; null: none. Those of rings_ for a listener.
  std::atomic<WatchedStreams*> streams_{nullptr};
  UserData user_data_;

  // Only inside with_engine():
  std::uint32_t told_ = 0;       ///< of the conditions that do not end
  bool tells_of_room_ = false;   ///< EPOLLOUT once there is room
  bool is_connect_new_ = false;  ///< EPOLLOUT: the connection was made
};

}  // namespace ringsock::vma
