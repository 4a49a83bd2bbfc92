#include "librsocket/stream_callback.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>

#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {
SocketAddress name_or_none(const Result<SocketAddress>& name) { return name ? *name : SocketAddress(); }
}  // namespace

/// A piece that the function sees. It is dropped unless the function decides otherwise, also when it throws.
class StreamCallback::Shown {
 public:
  Shown(StreamCallback& callback, const vma::LentPacket* packet) : callback_(callback), packet_(packet) {}
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;
  ~Shown() {
    {
      const std::lock_guard reading(callback_.core_.receive_lock);
      --callback_.shown_;
    }
    if (packet_ != nullptr) callback_.lender_.take_back(packet_);
  }
  void hold() { packet_ = nullptr; }

 private:
  StreamCallback& callback_;
  const vma::LentPacket* packet_;
};

void StreamCallback::set(vma_recv_callback_t function, void* context) {
  {
    const std::lock_guard setup(core_.setup_lock);
    {
      const std::lock_guard reading(core_.receive_lock);
      function_ = {function, context};
    }
    if (function != nullptr) core_.show_first(true);
  }
  stop_if_unused();
  core_.endpoint.notify_watchers(EPOLLIN);
}

bool StreamCallback::is_unused() const noexcept {
  return function_.call == nullptr && accepted_.empty() && shown_ == 0;
}

/// Nothing is shown any more once the function is gone and what it has let through has been read.
void StreamCallback::stop_if_unused() noexcept {
  const std::lock_guard setup(core_.setup_lock);
  const std::lock_guard reading(core_.receive_lock);
  if (is_unused()) core_.show_first(false);
}

StreamCallback::Function StreamCallback::function() {
  const std::lock_guard reading(core_.receive_lock);
  return function_;
}

bool StreamCallback::has_hidden() noexcept {
  const std::lock_guard reading(core_.receive_lock);
  return core_.is_connected() && function_.call != nullptr && accepted_.empty() &&
         core_.connection->receiving().readable() > 0;
}

bool StreamCallback::note() noexcept { return runner_.may_run() && runtime::note_due(*this); }

int StreamCallback::comes_first(int flags) noexcept {
  if (!has_hidden()) return 0;
  const bool may_wait = !core_.endpoint.is_nonblocking() && (flags & MSG_DONTWAIT) == 0;
  return note() && (may_wait || runtime::goes_on_after_due_calls()) ? ERESTART : EAGAIN;
}

// -- what the function has let through

std::size_t StreamCallback::accepted_bytes() noexcept {
  const std::lock_guard reading(core_.receive_lock);
  std::size_t out = 0;
  for (const auto& piece : accepted_) out += piece.bytes.size();
  return out;
}

std::size_t StreamCallback::read(IoCursor& out, bool peek) {
  std::size_t copied = 0;
  std::vector<const vma::LentPacket*> done;
  bool is_over = false;
  {
    const std::lock_guard reading(core_.receive_lock);
    done.reserve(accepted_.size());
    for (auto piece = accepted_.rbegin(); piece != accepted_.rend() && !out.done(); ++piece) {
      const std::size_t step = out.fill_from(piece->bytes.data(), piece->bytes.size());
      copied += step;
      if (peek) continue;
      piece->bytes = piece->bytes.subspan(step);
      if (piece->bytes.empty()) done.push_back(piece->packet);
    }
    accepted_.resize(accepted_.size() - done.size());
    if (!peek && copied > 0) core_.statistics.count_received(copied);
    is_over = is_unused();
  }
  for (const auto* const packet : done) lender_.take_back(packet);
  if (is_over) stop_if_unused();
  return copied;
}

StreamLender::Piece StreamCallback::take() noexcept {
  StreamLender::Piece out;
  bool is_over = false;
  {
    const std::lock_guard reading(core_.receive_lock);
    if (accepted_.empty()) return {};
    out = accepted_.back();
    accepted_.pop_back();
    core_.statistics.count_received(out.bytes.size());
    is_over = is_unused();
  }
  if (is_over) stop_if_unused();
  return out;
}

void StreamCallback::end() noexcept {
  const std::lock_guard reading(core_.receive_lock);
  accepted_.clear();
}

// -- running

void StreamCallback::run() {
  show_hidden();
  stop_if_unused();  // the function may have taken itself away
}

void StreamCallback::show_hidden() {
  // Bytes that come after the last look, while the thread still counts as the runner, are found by the next look.
  while (has_hidden() && !core_.endpoint.is_closed()) {
    const vma::CallbackRunner::Running running(runner_);
    if (!running) return;
    bool is_any = false;
    for (;;) {
      const StreamLender::Piece piece = take_hidden();
      if (piece.packet == nullptr) break;
      is_any = true;
      show(piece);
      if (core_.endpoint.is_closed()) return;
    }
    if (!is_any) return;  // no memory, or another process uses the connection
  }
  core_.endpoint.notify_watchers(EPOLLIN);
}

StreamLender::Piece StreamCallback::take_hidden() noexcept {
  const Inheritance::Turn turn(socket_.inheritance());
  if (!socket_.inheritance().claim() || !has_hidden()) return {};
  const std::lock_guard reading(core_.receive_lock);
  try {
    accepted_.reserve(accepted_.size() + shown_ + 1);
  } catch (const std::bad_alloc&) {
    return {};
  }
  const StreamLender::Piece piece = lender_.lend();
  if (piece.packet != nullptr) ++shown_;
  return piece;
}

void StreamCallback::show(const StreamLender::Piece& piece) {
  const Function function = this->function();
  Shown shown(*this, piece.packet);
  const auto decision = function.call != nullptr ? call(function, piece) : VMA_PACKET_RECV;
  if (decision == VMA_PACKET_HOLD) shown.hold();
  if (decision != VMA_PACKET_RECV) return;
  if (core_.closed.load(std::memory_order_acquire)) return;
  const std::lock_guard reading(core_.receive_lock);
  accepted_.push_back(piece);  // what a call inside the function has let through came later
  shown.hold();
  core_.endpoint.note_activity(EPOLLIN);
}

vma_recv_callback_retval_t StreamCallback::call(const Function& function, const StreamLender::Piece& piece) {
  SocketAddress source = name_or_none(socket_.last_peer()), destination = name_or_none(socket_.local_name());
  iovec part{const_cast<std::byte*>(piece.bytes.data()), piece.bytes.size()};
  vma_info_t info{};
  info.struct_sz = sizeof info;
  info.packet_id = const_cast<vma::LentPacket*>(piece.packet);
  // NOLINTBEGIN(cppcoreguidelines-pro-type-const-cast): the program may write to the copies
  info.src = reinterpret_cast<sockaddr_in*>(const_cast<sockaddr*>(source.get()));
  info.dst = reinterpret_cast<sockaddr_in*>(const_cast<sockaddr*>(destination.get()));
  // NOLINTEND(cppcoreguidelines-pro-type-const-cast)
  info.payload_sz = piece.bytes.size();
  return function.call(socket_.descriptor(), 1, &part, &info, function.context);
}

}  // namespace ringsock::rs
