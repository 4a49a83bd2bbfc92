// Sends and receives of a stream socket.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "core/runtime/roles.h"
#include "librsocket/corking.h"
#include "librsocket/io_vector.h"
#include "librsocket/progress.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// Moves bytes over the connection, and says why it cannot. A sender holds send_lock while it posts, a reader holds
/// receive_lock while it copies; neither is held while the connection is polled.
///
/// The StreamCore is in here, because the other parts may afford the further load by which they find it.
class StreamTransfer final : public runtime::Transfer {
 public:
  template <class... Arguments>
  StreamTransfer(StreamSocket& socket, Progress& progress, Arguments&&... of_core)
      : core_(std::forward<Arguments>(of_core)...), socket_(socket), progress_(progress), corking_(socket, core_) {}
  StreamTransfer(const StreamTransfer&) = delete;
  StreamTransfer& operator=(const StreamTransfer&) = delete;
  ~StreamTransfer() = default;

  [[nodiscard]] StreamCore& core() { return core_; }
  [[nodiscard]] Corking& corking() { return corking_; }

  Result<ssize_t> receive(msghdr& message, int flags) override;
  Result<ssize_t> send(const msghdr& message, int flags) override;
  Result<ssize_t> receive_bytes(void* data, std::size_t length, int flags) override;
  Result<ssize_t> send_bytes(const void* data, std::size_t length, int flags) override;
  Result<ssize_t> receive_by(runtime::BytesTaker& taker, std::span<std::byte> room, int flags) override;
  void keep_error(int code) noexcept override;
  Result<int> unread_bytes() override;
  Result<int> unsent_bytes() override;
  vma::ApiSocket* as_api_socket() noexcept override;
  /// Returns the same as its type; null: no memory.
  StreamApi* make_api() noexcept;
  /// Returns the end of the stream, its error, or EAGAIN, where no bytes were there for a receive with these flags.
  Result<ssize_t> why_nothing(int flags);

 private:
  template <class Get>
  std::size_t attempt(std::size_t total, Get get);
  template <class Receive>
  std::size_t take(Receive receive);
  [[gnu::noinline]] void announce_again();
  Result<ssize_t> receive_into(IoCursor& out, std::size_t total, int flags);
  Result<ssize_t> receive_nothing();
  Result<ssize_t> discard(std::size_t length, int flags);
  std::size_t peek(IoCursor& out, std::size_t total, int flags);
  [[nodiscard]] bool waits_for_all(int flags) const;
  void tell_of_further_window();
  Result<ssize_t> receive_shown(IoCursor& out, int flags);

  template <class Post>
  std::size_t post_first(Post post);
  Result<ssize_t> send_from(IoCursor& data, std::size_t total);
  std::size_t send_in_pieces(std::byte* data, std::size_t length);
  std::size_t post(IoCursor& data);
  bool hold(IoCursor data, std::size_t total);
  Result<ssize_t> send_rest(IoCursor& rest, std::size_t total, std::size_t sent);
  std::size_t post_rest(IoCursor& rest);
  Result<ssize_t> send_nothing();
  bool send_into_the_void();
  Result<ssize_t> why_not_sent(std::size_t total);
  [[nodiscard]] std::optional<Error> why_not(int flags) const;
  std::optional<Result<ssize_t>> unusual_send(std::size_t total, int flags);

  void poll() {
    if (core_.connection->poll()) progress_.note_changes();
  }
  /// Returns whether a send must look for the peer's end. A socket that is also read learns of it by reading, so it
  /// need not look, which takes a system call. send_lock must be held. The clock costs 10 ns.
  bool is_time_to_look() {
    constexpr unsigned kSendsPerLook = 8, kSendsPerClock = 4;
    if (++sends_ % kSendsPerClock != 0) return false;
    if (const std::uint64_t received = core_.statistics.messages_received(); received != received_when_asked_) {
      received_when_asked_ = received;
      return false;
    }
    return sends_ % kSendsPerLook == 0 || progress_.has_not_looked_for_long();
  }

  using State = StreamCore::State;

  StreamCore core_;
  StreamSocket& socket_;
  Progress& progress_;
  /// Counts sends: a sender that never reads would notice the peer's end only once the queue is full. Under send_lock.
  unsigned sends_ = 0;
  std::atomic<bool> has_rest_{false};      ///< the last receive has left bytes
  std::uint64_t received_when_asked_ = 0;  ///< the messages received when is_time_to_look() last asked; under send_lock
  Corking corking_;
};

}  // namespace ringsock::rs
