#include "librsocket/stream_events.h"

#include <sys/epoll.h>

#include <cerrno>
#include <mutex>

#include "core/extra_api/shared_rings.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/used_elsewhere.h"
#include "core/transports/kernel_calls.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {
constexpr std::uint32_t kEnds = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
}  // namespace

// -- the ring ------------------------------------------------------------------------------------------

std::uint32_t StreamEvents::wished_events() const noexcept {
  const bool wants_room =
      awaits_connect_.load(std::memory_order_relaxed) || awaits_room_.load(std::memory_order_relaxed);
  return EPOLLIN | EPOLLRDHUP | (wants_room ? std::uint32_t{EPOLLOUT} : 0U);
}

/// A number of its own stands for the socket: that by which it lends packets. Its name is asked only where it matters:
/// in a forked child the socket may be another process's.
runtime::RingKey StreamEvents::ring_key(runtime::RingLogic by_default) {
  const runtime::RingKey key = ring_wish.key(by_default, lender_.number(), SocketAddress());
  if (key.logic != runtime::RingLogic::per_ip) return key;
  const auto local = core_.endpoint.local_name();
  return local ? ring_wish.key(by_default, lender_.number(), *local) : key;
}

vma::SharedRing* StreamEvents::shared_ring() noexcept {
  vma::SharedRing* const ring = ring_.load(std::memory_order_acquire);
  return ring != nullptr && ring->is_ours() ? ring : nullptr;
}

bool StreamEvents::join(vma::SharedRing& ring, bool has_called_connect) noexcept {
  const bool is_under_way = core_.state() == StreamCore::State::connecting;
  vma::SharedRing* none = nullptr;
  if (!ring_.compare_exchange_strong(none, &ring, std::memory_order_acq_rel)) return false;
  if (has_called_connect || is_under_way) awaits_connect_.store(true, std::memory_order_relaxed);
  return true;
}

void StreamEvents::leave() noexcept {
  vma::SharedRing* const ring = ring_.exchange(nullptr, std::memory_order_acq_rel);
  if (ring == nullptr || !ring->is_ours()) return;
  ring->leave(*this);
  vma::shared_rings().leave(*ring);
}

/// The ring must not end before the program is told.
void StreamEvents::leave_to_kernel() noexcept {
  vma::SharedRing* const ring = ring_.exchange(nullptr, std::memory_order_acq_rel);
  if (ring == nullptr || !ring->is_ours()) return;
  left_fd_.store(core_.fd.load(std::memory_order_relaxed), std::memory_order_relaxed);
  left_ring_.store(ring, std::memory_order_release);
  ring->leave(*this);
}

void StreamEvents::has_left_to_kernel() noexcept {
  vma::SharedRing* const ring = left_ring_.exchange(nullptr, std::memory_order_acq_rel);
  if (ring == nullptr || !ring->is_ours()) return;
  const int fd = left_fd_.load(std::memory_order_relaxed);
  ring->tell_and_wake(fd, user_data.of(fd), EPOLLIN);
  vma::shared_rings().leave(*ring);
}

/// The last reference has gone.
void StreamEvents::forget() noexcept {
  for (auto* const place : {&ring_, &left_ring_}) {
    vma::SharedRing* const ring = place->load(std::memory_order_relaxed);
    if (ring == nullptr || !ring->is_ours()) continue;
    ring->forget(*this);
    vma::shared_rings().leave(*ring);
  }
}

void StreamEvents::forget_after_fork() noexcept {
  ring_.store(nullptr, std::memory_order_relaxed);
  left_ring_.store(nullptr, std::memory_order_relaxed);
  forget_list();
}

void StreamEvents::tell_wishes() noexcept {
  if (vma::SharedRing* const ring = shared_ring()) ring->wishes_changed(*this);
}

// -- news ----------------------------------------------------------------------------------------------

void StreamEvents::expect_room() noexcept {
  if (shared_ring() == nullptr || awaits_room_.exchange(true, std::memory_order_relaxed)) return;
  tell_wishes();
}

void StreamEvents::packets_freed() noexcept {
  if (!must_wait_.load(std::memory_order_relaxed) || !must_wait_.exchange(false)) return;
  if (vma::SharedRing* const ring = shared_ring()) ring->list_and_wake(*this);
}

// -- what the program is told --------------------------------------------------------------------------

bool StreamEvents::take_event(vma_completion_t& out) {
  if (shared_ring() == nullptr || core_.endpoint.is_closed()) return false;
  out = {};
  bool is_any = false;
  switch (core_.state()) {
    case StreamCore::State::listening: return accept_one(out);
    case StreamCore::State::connected: is_any = take_from_connection(out); break;
    default: is_any = take_connect(out); break;
  }
  if (is_any) out.user_data = user_data.of(core_.fd.load(std::memory_order_relaxed));
  return is_any;
}

/// Accepts from the listener of the rings or, beside it, the kernel's.
bool StreamEvents::accept_one(vma_completion_t& out) {
  SocketAddress peer;
  const auto accepted = core_.endpoint.accept(peer, 0);
  if (!accepted) return false;
  out.events = VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED;
  out.listen_fd = core_.fd.load(std::memory_order_relaxed);
  out.user_data = static_cast<std::uint64_t>(*accepted);
  vma::tell_source(peer, out.src);
  if (vma::SharedRing* const ring = shared_ring()) vma::join_listeners_ring(*ring, *accepted);
  if (!runtime::fd_table().holds(*accepted))  // the kernel carries it; perhaps it has ended already
    out.events |= EPOLLIN | (transports::kernel_events(*accepted) & kEnds);
  return true;
}

/// The end of a connect(2) is told once. The kernel may have made the connection after a refusal.
bool StreamEvents::take_connect(vma_completion_t& out) {
  const std::uint32_t ready = core_.endpoint.ready();
  if (core_.state() == StreamCore::State::connected) return take_from_connection(out);
  if ((ready & (EPOLLOUT | kEnds)) == 0 || !awaits_connect_.exchange(false, std::memory_order_relaxed)) return false;
  out.events = ready & (EPOLLIN | EPOLLOUT | kEnds);
  if ((ready & kEnds) == 0) out.events |= EPOLLIN;  // the kernel brings it
  leave();
  return true;
}

bool StreamEvents::take_from_connection(vma_completion_t& out) {
  if (awaits_connect_.load(std::memory_order_relaxed) && awaits_connect_.exchange(false, std::memory_order_relaxed)) {
    out.events = EPOLLOUT;
    tell_wishes();
    return true;
  }
  const Inheritance::Turn turn(socket_.inheritance());
  const std::uint32_t ready = socket_.readiness().ready();
  if ((ready & runtime::kUsedElsewhere) != 0) return false;
  const bool awaited_room = awaits_room_.load(std::memory_order_relaxed);
  bool is_short = false;
  {
    const std::lock_guard reading(core_.receive_lock);
    const MessageReceiver& receiving = core_.connection->receiving();
    if (receiving.shows_first() || receiving.readable() == 0) {
      out.events = news(ready);
    } else if (lend(out.packet)) {
      out.events = VMA_SOCKETXTREME_PACKET;
      vma::tell_source(core_.id->peer_address(), out.src);
    } else {
      is_short = true;
    }
  }
  if (core_.connection->receiving().is_announcement_due()) lender_.packets_freed();
  if (awaited_room && !awaits_room_.load(std::memory_order_relaxed)) tell_wishes();
  // Without memory the next poll tries again.
  vma::SharedRing* const ring = is_short && !must_wait_.load(std::memory_order_relaxed) ? shared_ring() : nullptr;
  if (ring != nullptr) ring->list(*this);
  return out.events != 0;
}

/// Returns false when nothing can be lent now. With receive_lock.
bool StreamEvents::lend(vma_packet_desc_t& out) {
  must_wait_.store(lender_.must_wait(), std::memory_order_relaxed);
  const std::size_t bytes = vma::lend_packet(out, [&](std::size_t most) -> vma::LentPacket* {
    return lender_.must_wait() ? nullptr : lender_.lend_to_poll(most);
  });
  if (bytes > 0) core_.statistics.count_received(bytes);
  return bytes > 0;
}

/// Returns what has become true since the last call. The end of the stream, and of the connection, is told behind its
/// bytes, once. With receive_lock.
std::uint32_t StreamEvents::news(std::uint32_t ready) noexcept {
  std::uint32_t out = 0;
  if ((ready & EPOLLOUT) != 0 && awaits_room_.load(std::memory_order_relaxed)) {
    awaits_room_.store(false, std::memory_order_relaxed);
    out = EPOLLOUT;
  }
  if (core_.connection->receiving().readable() != 0) return out;
  std::uint32_t lasting = ready & kEnds;
  if ((lasting & EPOLLRDHUP) != 0) lasting |= EPOLLIN;
  out |= lasting & ~told_;
  told_ = lasting;
  return out;
}

}  // namespace ringsock::rs
