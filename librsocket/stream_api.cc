#include "librsocket/stream_api.h"

#include <sys/socket.h>

#include <cerrno>
#include <mutex>

#include "core/extra_api/packet_list.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {
/// What only a copy can do.
constexpr int kByCopy = MSG_PEEK | MSG_OOB | MSG_ERRQUEUE | MSG_TRUNC;
}  // namespace

StreamApi::StreamApi(StreamSocket& socket, StreamCore& core)
    : socket_(socket),
      core_(core),
      lender_(core, socket.progress()),
      callback_(socket, core, lender_),
      events_(socket, core, lender_) {}

Status StreamApi::set_callback(vma_recv_callback_t function, void* context) {
  callback_.set(function, context);
  return ok();
}

Result<vma::ApiSocket::Received> StreamApi::receive_copy(msghdr& message, int flags, bool never_copies) {
  if (never_copies && core_.is_connected()) return Error{EOPNOTSUPP, "recvfrom_zcopy: a copy"};
  const auto copied = core_.endpoint.receive(message, flags);
  if (copied) return Received{.bytes = *copied};
  if (copied.error().code == EIO && core_.endpoint.has_left_to_kernel()) return Received{.as = Received::As::nothing};
  return copied.error();
}

/// Lends what the application's function has let through. Returns how many bytes.
std::size_t StreamApi::lend_accepted(vma::PacketList& list) noexcept {
  std::size_t bytes = 0;
  while (list.has_room()) {
    const auto piece = callback_.take();
    if (piece.packet == nullptr) break;
    list.add(*piece.packet, piece.bytes);
    bytes += piece.bytes.size();
  }
  return bytes;
}

/// Lends what has come, while the list has room. Returns how many bytes; less without memory. Errors: ENOBUFS the list
/// has no room, or the program must first give something back.
Result<std::size_t> StreamApi::lend_pieces(vma::PacketList& list) noexcept {
  std::size_t bytes = 0;
  const std::lock_guard reading(core_.receive_lock);
  while (list.has_room() && !lender_.must_wait()) {
    const auto piece = lender_.lend();
    if (piece.packet == nullptr) break;
    list.add(*piece.packet, piece.bytes);
    bytes += piece.bytes.size();
  }
  const bool is_short = bytes == 0 && (!list.has_room() || lender_.must_wait());
  if (is_short && core_.connection->receiving().readable() > 0) return Error{ENOBUFS, "recvfrom_zcopy"};
  if (bytes > 0) core_.statistics.count_received(bytes);
  return bytes;
}

Result<vma::ApiSocket::Received> StreamApi::lend(vma::PacketList& list, int flags) {
  Result<std::size_t> bytes = std::size_t{0};
  if (core_.connection->receiving().shows_first()) [[unlikely]] {
    bytes = lend_accepted(list);
    if (*bytes == 0 && callback_.accepted_bytes() > 0) return Error{ENOBUFS, "recvfrom_zcopy"};
    const int error = *bytes == 0 ? callback_.comes_first(flags) : 0;
    if (error != 0) return Error{error, "recvfrom_zcopy: the application's callback"};
  } else {
    bytes = lend_pieces(list);
  }
  if (core_.connection->receiving().is_announcement_due()) lender_.packets_freed();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (core_.closed.load(std::memory_order_acquire)) {  // after end(), perhaps
    end();
    return Error{EBADF, "recvfrom_zcopy: closed meanwhile"};
  }
  if (!bytes) return bytes.error();
  if (*bytes > 0) return Received{.bytes = static_cast<ssize_t>(*bytes), .as = Received::As::packets};
  const auto nothing = socket_.transfer().why_nothing(flags);
  return nothing ? Result<Received>(Received{}) : nothing.error();
}

Result<vma::ApiSocket::Received> StreamApi::receive_packets(vma::PacketList& list, msghdr& message, int flags,
                                                            bool never_copies) {
  if (!core_.is_connected() || (flags & kByCopy) != 0) return receive_copy(message, flags, never_copies);
  message.msg_namelen = 0;  // as recvfrom(2)
  const Inheritance::Turn turn(socket_.inheritance());
  if (!socket_.inheritance().claim()) {
    if (core_.endpoint.has_left_to_kernel()) return Received{.as = Received::As::nothing};
    return Error{EIO, "recvfrom_zcopy: another process uses the connection"};
  }
  socket_.progress().poll();
  return lend(list, flags);
}

Result<ssize_t> StreamApi::rehearse(std::size_t total) {
  if (!core_.is_connected()) return Error{EINVAL, "send: a dummy send without a connection"};
  {
    const std::lock_guard sending(core_.send_lock);
    if (core_.at_end_of_sending()) return core_.end_of_sending("send: a dummy send");
    if (!core_.connection->sending().is_writable()) return Error{EAGAIN, "send: a dummy send"};
  }
  rehearsals_.fetch_add(1, std::memory_order_relaxed);
  return static_cast<ssize_t>(total);
}

void StreamApi::packets_freed() {
  const Inheritance::Turn gives_back_what_is_not_held(socket_.inheritance());
  lender_.packets_freed();
}

vma::PolledStream* StreamApi::polled_stream() noexcept {
  using State = StreamCore::State;
  const State state = core_.state();
  const bool has_begun = state == State::listening || state == State::connecting || state == State::connected;
  return has_begun ? &events_ : nullptr;
}

void StreamApi::polled_packets_freed() {
  packets_freed();
  events_.packets_freed();
}

void StreamApi::leave_to_kernel() noexcept {
  events_.leave_to_kernel();
  lender_.leave_to_kernel();
}

bool StreamApi::keeps_connection() noexcept {
  lender_.packets_freed();
  if (callback_.accepted_bytes() > 0) return true;
  const std::lock_guard reading(core_.receive_lock);
  return core_.is_connected() && core_.connection->receiving().window().is_holding();
}

void StreamApi::end() noexcept {
  events_.leave();
  callback_.end();
  lender_.end();
}

}  // namespace ringsock::rs
