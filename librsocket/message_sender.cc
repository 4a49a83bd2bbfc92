#include "librsocket/message_sender.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "librsocket/saved_connection.h"

namespace ringsock::rs {

namespace {

/// From the send ring: the first piece of a call is small, so that the device begins early; the next ones are twice as
/// long.
constexpr std::uint32_t kFirstRingPieceBytes = 8 * 1024;
constexpr std::uint32_t kMaxRingPieceBytes = 64 * 1024;

}  // namespace

MessageSender::MessageSender(verbs::Device& device, const QueueSettings& settings)
    : core_(device, settings), requests_(core_.ends, settings.send_queue, !device.traits().has_write_with_immediate) {}

void MessageSender::begin(const ibv_qp_cap& capacity, bool control_inline, SendRing ring) {
  requests_.begin(*core_.qp, control_inline, std::move(ring));
  max_inline_ = core_.settings.inline_bytes;
  max_pieces_ = std::max(2u, capacity.max_send_sge);
}

Status MessageSender::start(const wire::PeerSge& first_buffer, std::uint16_t credits) {
  held_credits_ = credits;
  using engine::SendWindow;
  const auto part = core_.device.traits().is_embedded ? SendWindow::FirstBuffer::whole : SendWindow::FirstBuffer::half;
  if (Status usable = window_.reset(first_buffer, requests_.is_held() ? std::uint16_t{0} : credits, part); !usable)
    return usable;
  return ok();
}

/// Makes a request with a gather list the next data message.
inline void MessageSender::address(ibv_send_wr& request, std::uint32_t length) {
  const auto placement = window_.take(length);
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = word_in_network_order({wire::RsOpcode::data, length});
  request.wr.rdma.remote_addr = placement.addr;
  request.wr.rdma.rkey = placement.key;
}

bool MessageSender::send_at_once(const void* data, std::size_t length) {
  if (core_.holds_back_sends() || core_.overflow.in_use()) [[unlikely]]
    return false;
  if (length - 1 >= std::min({window_.room(), kPieceBytes, max_inline_}) || !requests_.has_room()) return false;
  const auto bytes = static_cast<std::uint32_t>(length);
  const auto to = window_.take(bytes);
  const auto word = word_in_network_order({wire::RsOpcode::data, bytes});
  if (requests_.post_inline(core_.device.rc(), {data, bytes, to.key, to.addr, word})) [[likely]]
    return true;
  note_not_posted(length);
  return false;
}

std::size_t MessageSender::assured_room() {
  constexpr std::uint32_t kMessages = 2;
  if (core_.is_suspended() || core_.overflow.in_use() || requests_.is_unheard() || !requests_.has_room_for(kMessages))
    return 0;
  if (!requests_.ring()) return window_.room_of_two(std::min(kPieceBytes, max_inline_));
  return requests_.ring().free_bytes() < kFirstRingPieceBytes ? 0 : std::min(window_.room(), kFirstRingPieceBytes);
}

void MessageSender::note_not_posted(std::size_t length) {
  if (requests_.is_unheard()) unheard_bytes_.fetch_add(length, std::memory_order_relaxed);
}

std::size_t MessageSender::count_heard_after_all() noexcept {
  if (!core_.overflow.has_peer_got_next(sent_to_ring())) return 0;
  return unheard_bytes_.exchange(0, std::memory_order_relaxed);
}

/// Makes the next message of so many bytes.
verbs::WritePair::Part MessageSender::next_part(std::uint32_t length) {
  const auto to = window_.take(length);
  return {length, to.key, to.addr, word_in_network_order({wire::RsOpcode::data, length})};
}

/// Sends all of `data`, if it is short but longer than the rest of the peer's buffer, in two messages that the peer
/// gets together: many programs expect to receive a short send in one piece. Returns the bytes sent, 0 when it is sent
/// as any other.
std::size_t MessageSender::send_around_end(IoCursor& data) {
  const std::uint32_t most = std::min(kPieceBytes, max_inline_);
  const std::uint32_t rest = window_.room();
  if (requests_.ring() || rest == 0 || rest >= most || data.fits(rest, gather_.size())) [[likely]]
    return 0;
  const std::uint32_t both = window_.room_of_two(most);
  if (both == rest || !data.fits(both, gather_.size()) || !requests_.has_room_for(2)) return 0;
  int pieces = 0;
  const std::uint32_t length = gather_inline(data, both, pieces);
  const auto first = next_part(rest);
  const auto second = next_part(length - rest);
  if (requests_.post_pair(core_.device.rc(), {{gather_.data(), static_cast<std::size_t>(pieces)}, first, second}))
    return length;
  note_not_posted(length);
  return 0;
}

std::size_t MessageSender::send(IoCursor& data) {
  if (core_.is_suspended() || !sends_on_ring() || requests_.is_unheard()) [[unlikely]]
    return 0;
  if (gather_.empty()) [[unlikely]]
    gather_.resize(max_pieces_);
  std::size_t sent = send_around_end(data);
  std::uint32_t ring_piece = kFirstRingPieceBytes;
  while (!data.done() && requests_.has_room()) {
    const std::uint32_t room = window_.room();
    if (room == 0) break;
    const std::uint32_t inline_limit = std::min({room, kPieceBytes, max_inline_});
    ibv_send_wr request{};
    request.sg_list = gather_.data();
    std::uint32_t length = 0;
    std::uint32_t ring_bytes = 0;
    if (!requests_.ring() || data.fits(inline_limit, gather_.size())) {
      length = gather_inline(data, inline_limit, request.num_sge);
      request.send_flags = IBV_SEND_INLINE;
    } else {
      length = ring_bytes = gather_from_ring(data, std::min(room, ring_piece), request.num_sge);
      ring_piece = std::min(2 * ring_piece, kMaxRingPieceBytes);
    }
    address(request, length);
    if (!requests_.post_data(request, ring_bytes, false)) {
      note_not_posted(length);
      break;
    }
    sent += length;
  }
  return sent;
}

inline bool MessageSender::sends_on_ring() {
  if (!core_.overflow.in_use()) [[likely]]
    return true;
  const auto left = core_.overflow.leave();
  if (!left) core_.ends.fail(ECONNRESET);
  return left && *left;
}

std::size_t MessageSender::send_ahead(IoCursor& data) {
  if (core_.is_suspended()) return 0;
  // A message or a direct write that waits in the queue comes before these bytes.
  if (!core_.device.rc().has_sent_all(*core_.qp)) return 0;
  const auto appended = core_.overflow.append(data, window_.sequence());
  if (!appended) core_.ends.fail(ECONNRESET);
  if (!appended) return 0;
  if (appended->must_tell) requests_.send_look();
  return appended->bytes;
}

inline std::uint32_t MessageSender::gather_inline(IoCursor& data, std::uint32_t limit, int& pieces) {
  std::uint32_t length = 0;
  std::size_t parts = 0;
  do {
    const auto piece = data.take(limit - length);
    const auto bytes = static_cast<std::uint32_t>(piece.size());
    gather_[parts++] = {address_of(piece.data()), bytes, 0};
    length += bytes;
  } while (!data.done() && length < limit && parts < gather_.size());
  pieces = static_cast<int>(parts);
  return length;
}

std::uint32_t MessageSender::gather_from_ring(IoCursor& data, std::uint32_t limit, int& pieces) {
  const auto copied = requests_.ring().copy_in(data, limit);
  std::copy_n(copied.list.begin(), copied.count, gather_.begin());
  pieces = copied.count;
  return copied.length;
}

std::size_t MessageSender::write_direct(const std::byte* data, std::size_t size, std::uint64_t remote_address,
                                        std::uint32_t key) {
  IoCursor cursor(const_cast<std::byte*>(data), size);
  std::size_t written = 0;
  if (core_.is_suspended()) return 0;
  while (written < size && requests_.has_room()) {
    ibv_send_wr request{};
    request.opcode = IBV_WR_RDMA_WRITE;
    ibv_sge piece{};
    SendRing::Pieces pieces{};
    std::uint32_t length = 0;
    if (requests_.ring() && size - written > max_inline_) {
      pieces = requests_.ring().copy_in(cursor, kMaxRingPieceBytes);
      length = pieces.length;
      request.sg_list = pieces.list.data();
      request.num_sge = pieces.count;
    } else {
      length = static_cast<std::uint32_t>(std::min<std::size_t>(size - written, max_inline_));
      piece = {address_of(cursor.piece().data()), length, 0};
      cursor.advance(length);
      request.sg_list = &piece;
      request.num_sge = 1;
      request.send_flags = IBV_SEND_INLINE;
    }
    request.wr.rdma.remote_addr = remote_address + written;
    request.wr.rdma.rkey = key;
    // Each is signalled, because a refused write must be noticed although no message follows.
    if (!requests_.post_data(request, pieces.length, true)) break;
    written += length;
  }
  direct_end_.store(requests_.posted(), std::memory_order_release);
  return written;
}

void MessageSender::save(SavedConnection& saved) const {
  saved.send_window = window_.save();
  saved.held_credits = held_credits_;
  requests_.save(saved);
}

Status MessageSender::restore_window(const SavedConnection& saved) { return window_.restore(saved.send_window); }

void MessageSender::restore(const SavedConnection& saved) {
  requests_.restore(saved);
  direct_end_.store(saved.posted - saved.unsignalled, std::memory_order_relaxed);
  held_credits_ = saved.held_credits;
}

}  // namespace ringsock::rs
