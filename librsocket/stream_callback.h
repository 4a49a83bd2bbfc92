// The application's function that sees the bytes of a stream before they can be read: register_recv_callback().
#pragma once

#include <mellanox/vma_extra.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/extra_api/callback_runner.h"
#include "core/runtime/due_calls.h"
#include "librsocket/io_vector.h"
#include "librsocket/stream_core.h"
#include "librsocket/stream_lender.h"

namespace ringsock::rs {

class StreamSocket;

/// Bytes of a connection on a ring are hidden from the program until a call on the socket, or one that waits for it,
/// finds them. That call ends early, and the function runs where nothing of the library is on the stack
/// (core/runtime/due_calls.h); then the call is made again. What the function lets through is read before all else, and
/// what comes until then is shown only afterwards: the stream keeps its order. Bytes that the kernel brings are not
/// shown. Threads: any.
class StreamCallback final : public DueCall {
 public:
  StreamCallback(StreamSocket& socket, StreamCore& core, StreamLender& lender)
      : socket_(socket), core_(core), lender_(lender) {}
  StreamCallback(const StreamCallback&) = delete;
  StreamCallback& operator=(const StreamCallback&) = delete;

  /// Sets the function; null: none. One that is running goes on.
  void set(vma_recv_callback_t function, void* context);

  // -- of a connection that shows its bytes first (ConnectionCore::shows_first)
  /// Before a receive with these flags that nothing was accepted for. Returns 0, or what it fails with: ERESTART it has
  /// to be made again after the function; EAGAIN there are hidden bytes only.
  int comes_first(int flags) noexcept;
  /// Has the function run where the calling thread's call ends, if there are bytes for it. Returns whether it will.
  [[nodiscard]] bool look() noexcept { return has_hidden() && note(); }
  /// Returns the number of bytes that the function has let through, and that nobody has read.
  [[nodiscard]] std::size_t accepted_bytes() noexcept;
  /// Copies these to `out` and advances it; with `peek` they also stay. Returns the bytes copied.
  std::size_t read(IoCursor& out, bool peek);
  /// Gives the oldest piece of them to the caller, to which it stays lent. Null: there is none.
  StreamLender::Piece take() noexcept;

  /// The socket is closed.
  void end() noexcept;
  /// Called in a forked child.
  void forget_threads() noexcept { runner_.forget(); }

  void run() override;
  runtime::Endpoint& endpoint() noexcept override { return core_.endpoint; }

 private:
  struct Function {
    vma_recv_callback_t call = nullptr;
    void* context = nullptr;
  };
  class Shown;

  [[nodiscard]] bool has_hidden() noexcept;
  bool note() noexcept;
  Function function();
  StreamLender::Piece take_hidden() noexcept;
  void show_hidden();
  void show(const StreamLender::Piece& piece);
  vma_recv_callback_retval_t call(const Function& function, const StreamLender::Piece& piece);
  [[nodiscard]] bool is_unused() const noexcept;
  void stop_if_unused() noexcept;

  StreamSocket& socket_;
  StreamCore& core_;
  StreamLender& lender_;
  vma::CallbackRunner runner_;
  // With receive_lock:
  Function function_;
  std::vector<StreamLender::Piece> accepted_;  ///< the oldest last
  std::size_t shown_ = 0;                      ///< pieces that the function sees
};

}  // namespace ringsock::rs
