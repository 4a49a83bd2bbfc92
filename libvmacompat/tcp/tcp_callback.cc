#include "libvmacompat/tcp/tcp_callback.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/thread_id.h"

namespace ringsock::vma {

namespace tcp = engine::tcp;

/// Bytes that the function sees. They are dropped unless it decides otherwise, also when it throws.
class TcpCallback::Shown {
 public:
  Shown(TcpCallback& callback, Taken taken) : callback_(callback), taken_(std::move(taken)) {}
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;
  ~Shown() {
    {
      const std::lock_guard guard(callback_.lock_);
      std::erase(callback_.undecided_, taken_.state);
      if (is_accepted_ && !taken_.state->is_back) callback_.accept(*taken_.lent.piece);
    }
    if (!is_accepted_ && taken_.state->is_back) callback_.discard(taken_.lent.piece->bytes.size());
    if (!is_held_) callback_.lender_.take_back(taken_.lent.packet);
  }
  void hold() { is_held_ = true; }
  void accept() { is_accepted_ = true; }

 private:
  TcpCallback& callback_;
  const Taken taken_;
  bool is_held_ = false;
  bool is_accepted_ = false;
};

void TcpCallback::set(vma_recv_callback_t function, void* context) {
  {
    const std::lock_guard guard(lock_);
    function_ = {function, context};
  }
  // What waits already was to be read.
  const auto waits = connection_.with_engine([&](tcp::TcpConnection& engine, Nanos) {
    const bool was_hidden = hides(engine);
    is_set_.store(function != nullptr, std::memory_order_relaxed);
    if (!was_hidden) is_accepted_ = engine.readable() != 0;
    return engine.readable() != 0;
  });
  is_set_.store(function != nullptr, std::memory_order_relaxed);
  if (function == nullptr && waits.value_or(false)) endpoint_.notify_watchers(EPOLLIN);
}

TcpCallback::Function TcpCallback::function() {
  const std::lock_guard guard(lock_);
  return function_;
}

bool TcpCallback::has_hidden() noexcept {
  return connection_.with_engine([&](tcp::TcpConnection& engine, Nanos) { return hides(engine); }).value_or(false);
}

bool TcpCallback::note() noexcept { return runner_.may_run() && runtime::note_due(*this); }

std::uint32_t TcpCallback::without_hidden(std::uint32_t events) noexcept {
  if (!has_hidden()) return events;
  static_cast<void>(note());
  // The end of the stream, and errors, are told in any case: the call that reads them runs the function first.
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) return events;
  return events & ~static_cast<std::uint32_t>(EPOLLIN | EPOLLRDNORM);
}

int TcpCallback::comes_first(int flags) noexcept {
  if ((flags & (MSG_OOB | MSG_ERRQUEUE)) != 0) return 0;
  connection_.progress();
  if (!has_hidden()) return 0;
  const bool may_wait = !endpoint_.is_nonblocking() && (flags & MSG_DONTWAIT) == 0;
  return note() && (may_wait || runtime::goes_on_after_due_calls()) ? ERESTART : EAGAIN;
}

// -- running ---------------------------------------------------------------------------------------

void TcpCallback::run() {
  // Bytes that come after the last look, while the thread still counts as the runner, are found by the next look.
  while (has_hidden() && !endpoint_.is_closed()) {
    const CallbackRunner::Running running(runner_);
    if (!running) return;
    bool is_any = false;
    for (;;) {
      Taken taken = take_hidden(__builtin_frame_address(0));
      if (taken.state == nullptr) break;
      is_any = true;
      show(std::move(taken));
      if (endpoint_.is_closed()) return;
    }
    if (!is_any) return;  // no memory
  }
  endpoint_.notify_watchers(EPOLLIN);
}

/// Takes the next bytes that are hidden. `frame` is that of the caller.
TcpCallback::Taken TcpCallback::take_hidden(const void* frame) {
  auto state = std::make_shared<Undecided>(Undecided{.thread = this_thread_id(), .frame = frame});
  const std::lock_guard guard(lock_);
  forget_left_frames(frame);
  undecided_.reserve(undecided_.size() + 1);
  auto lent = connection_.with_engine([&](tcp::TcpConnection& engine, Nanos now) {
    return hides(engine) ? lender_.lend(engine, now) : TcpLender::Lent();
  });
  if (!lent || lent->packet == nullptr) return {};
  state->piece = lent->piece;
  undecided_.push_back(state);
  return {*std::move(lent), std::move(state)};
}

void TcpCallback::show(Taken taken) {
  const Function function = this->function();
  const TcpLender::Lent lent = taken.lent;
  Shown shown(*this, std::move(taken));
  const auto decision = function.call != nullptr ? call(function, lent) : VMA_PACKET_RECV;
  if (decision == VMA_PACKET_HOLD) shown.hold();
  if (decision == VMA_PACKET_RECV) shown.accept();
}

vma_recv_callback_retval_t TcpCallback::call(const Function& function, const TcpLender::Lent& lent) {
  const auto bytes = lent.piece->bytes;
  SocketAddress source = connection_.peer(), destination = connection_.local();
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  vma_info_t info{};
  info.struct_sz = sizeof info;
  info.packet_id = lent.packet;
  // NOLINTBEGIN(cppcoreguidelines-pro-type-const-cast): the program may write to the copies
  info.src = reinterpret_cast<sockaddr_in*>(const_cast<sockaddr*>(source.get()));
  info.dst = reinterpret_cast<sockaddr_in*>(const_cast<sockaddr*>(destination.get()));
  // NOLINTEND(cppcoreguidelines-pro-type-const-cast)
  info.payload_sz = bytes.size();
  return function.call(fd_.load(std::memory_order_relaxed), 1, &part, &info, function.context);
}

/// Puts bytes back in front of all others. Returns false without memory for that. Only inside with_engine().
bool TcpCallback::put_front(const TcpLender::Piece& piece, tcp::TcpConnection& engine) noexcept {
  try {
    tcp::Lending(engine).put_front(piece.bytes);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

/// Has the program read the bytes next. Without memory for that the connection is reset: its bytes would not be whole.
void TcpCallback::accept(const TcpLender::Piece& piece) noexcept {
  connection_.with_engine([&](tcp::TcpConnection& engine, Nanos now) {
    is_accepted_ = put_front(piece, engine);
    if (!is_accepted_) engine.abort(now);
    return true;
  });
  endpoint_.note_activity(EPOLLIN);
}

// -- the way to the kernel -------------------------------------------------------------------------

void TcpCallback::begin_leaving() noexcept {
  if (!is_set()) return;
  const std::lock_guard guard(lock_);
  forget_left_frames(__builtin_frame_address(0));
  connection_.with_engine([&](tcp::TcpConnection& engine, Nanos now) {
    is_leaving_ = true;
    // Those that came last first.
    for (auto one = undecided_.rbegin(); one != undecided_.rend(); ++one) {
      Undecided& bytes = **one;
      if (!bytes.is_back) bytes.is_back = put_front(*bytes.piece, engine);
      if (!bytes.is_back) engine.abort(now);
    }
    return true;
  });
}

void TcpCallback::stay() noexcept {
  connection_.with_engine([&](tcp::TcpConnection&, Nanos) { return is_leaving_ = false, true; });
}

/// The function has dropped or held bytes that have gone to the kernel, or stayed in the queue.
void TcpCallback::discard(std::size_t bytes) {
  const auto consume = [&](tcp::TcpConnection& engine, Nanos now) { return engine.consume(bytes, now), true; };
  if (connection_.with_engine(consume) || endpoint_.is_closed()) return;
  // The kernel's socket does not have them before the move has ended, and the engine has them again if it has failed.
  const std::lock_guard settled(moving_);
  if (connection_.with_engine(consume)) return;
  while (bytes > 0) {
    const ssize_t dropped = ::recv(fd_.load(std::memory_order_relaxed), nullptr, bytes, MSG_TRUNC | MSG_DONTWAIT);
    if (dropped <= 0) return;
    bytes -= static_cast<std::size_t>(dropped);
  }
}

/// Forgets calls of this thread that were left by longjmp(3): their frames would be below `frame`. With the lock held.
void TcpCallback::forget_left_frames(const void* frame) {
  std::erase_if(undecided_, [&](const auto& one) { return one->thread == this_thread_id() && one->frame <= frame; });
}

void TcpCallback::forget_after_fork() noexcept {
  runner_.forget();
  for (const auto& one : undecided_) one->is_back = false;
}

}  // namespace ringsock::vma
