// The application's function that sees the bytes of a TCP connection before they can be read: register_recv_callback().
#pragma once

#include <mellanox/vma_extra.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/extra_api/callback_runner.h"
#include "core/runtime/due_calls.h"
#include "core/runtime/endpoint.h"
#include "libvmacompat/tcp/carried_connection.h"
#include "libvmacompat/tcp/tcp_lender.h"

namespace ringsock::vma {

/// Bytes that a ring brings while the program has read all others wait in the engine's queue, hidden, until a call on
/// the socket, or one that waits for it, finds them. That call ends early, and the function runs where nothing of the
/// library is on the stack (core/runtime/due_calls.h), as for datagrams (udp/receive_callback.h); then the call is made
/// again. What the function lets through can be read, and what comes until that has been read is not shown: the stream
/// keeps its order. Bytes that the kernel brings are not shown. Threads: any.
class TcpCallback final : public DueCall {
 public:
  /// @param fd       the kernel's socket
  /// @param moving   held while the connection moves
  TcpCallback(runtime::Endpoint& endpoint, const std::atomic<int>& fd, Mutex& moving, CarriedConnection& connection,
              TcpLender& lender)
      : endpoint_(endpoint), fd_(fd), moving_(moving), connection_(connection), lender_(lender) {}
  TcpCallback(const TcpCallback&) = delete;
  TcpCallback& operator=(const TcpCallback&) = delete;

  /// Sets the function; null: none. One that is running goes on.
  void set(vma_recv_callback_t function, void* context);
  [[nodiscard]] bool is_set() const noexcept { return is_set_.load(std::memory_order_relaxed); }

  // -- of a connection on a ring with a function; inside with_engine():
  /// Returns whether what can be read is hidden from the program.
  [[nodiscard]] bool hides(const engine::tcp::TcpConnection& engine) const noexcept {
    return is_set() && !is_accepted_ && !is_leaving_ && engine.readable() != 0;
  }
  /// The program has read.
  void note_read(const engine::tcp::TcpConnection& engine) noexcept {
    if (engine.readable() == 0) is_accepted_ = false;
  }

  // -- the same, outside of it:
  /// Has the function run where the calling thread's call ends, if there are bytes for it. Returns whether it will.
  [[nodiscard]] bool look() noexcept { return has_hidden() && note(); }
  /// Returns `events` without what hidden bytes have added, and has the function run for these.
  std::uint32_t without_hidden(std::uint32_t events) noexcept;
  /// Before a receive with these flags. Returns 0, or what it fails with: ERESTART it has to be made again after the
  /// function; EAGAIN there are hidden bytes only.
  int comes_first(int flags) noexcept;

  /// The connection is about to go to the kernel while the function may be running: the bytes that it has not decided
  /// on go with it, and nothing more is hidden.
  void begin_leaving() noexcept;
  /// It stays.
  void stay() noexcept;
  /// Called in a forked child.
  void forget_after_fork() noexcept;
  /// Held across fork(2) with the locks of the socket.
  Mutex& lock() { return lock_; }

  void run() override;
  runtime::Endpoint& endpoint() noexcept override { return endpoint_; }

 private:
  struct Function {
    vma_recv_callback_t call = nullptr;
    void* context = nullptr;
  };
  /// Bytes on which the function has not decided yet.
  struct Undecided {
    std::shared_ptr<const TcpLender::Piece> piece{};
    std::uint64_t thread = 0;
    const void* frame = nullptr;  ///< on the stack of that thread, where the function is called
    bool is_back = false;         ///< the queue has a copy of them at its front
  };
  class Shown;

  [[nodiscard]] bool has_hidden() noexcept;
  bool note() noexcept;
  Function function();
  struct Taken {
    TcpLender::Lent lent{};
    std::shared_ptr<Undecided> state{};  ///< null: nothing was taken
  };
  Taken take_hidden(const void* frame);
  void show(Taken taken);
  vma_recv_callback_retval_t call(const Function& function, const TcpLender::Lent& lent);
  void accept(const TcpLender::Piece& piece) noexcept;
  static bool put_front(const TcpLender::Piece& piece, engine::tcp::TcpConnection& engine) noexcept;
  void discard(std::size_t bytes);
  void forget_left_frames(const void* frame);

  runtime::Endpoint& endpoint_;
  const std::atomic<int>& fd_;
  Mutex& moving_;
  CarriedConnection& connection_;
  TcpLender& lender_;
  std::atomic<bool> is_set_{false};
  // Only inside with_engine():
  bool is_accepted_ = false;  ///< what can be read is the program's
  bool is_leaving_ = false;   ///< the connection is about to go to the kernel

  Mutex lock_;  ///< guards these; taken before the connection's
  Function function_;
  std::vector<std::shared_ptr<Undecided>> undecided_;  ///< those of calls inside others at the end
  CallbackRunner runner_;
};

}  // namespace ringsock::vma
