#include "librsocket/send_requests.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "librsocket/saved_connection.h"

namespace ringsock::rs {

SendRequests::SendRequests(ConnectionEnds& ends, std::uint16_t entries, bool words_by_send)
    : ends_(ends),
      entries_(entries),
      words_by_send_(words_by_send),
      signal_every_(std::max(1u, (entries - kControlSlots) / 4)) {}

void SendRequests::begin(ibv_qp& qp, bool control_inline, SendRing ring) {
  qp_ = &qp;
  control_inline_ = control_inline;
  ring_ = std::move(ring);
}

Status SendRequests::send_end(wire::RsControl control) {
  if (held_.load(std::memory_order_acquire)) return Error{ENOTCONN, "rsocket: the peer is not ready"};
  ibv_send_wr request{};
  request.wr_id = kEndId;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
  request.imm_data = word_in_network_order(control);
  ends_under_way_.fetch_add(1, std::memory_order_relaxed);
  return post(request) ? ok() : Error{ECONNRESET, "ibv_post_send"};
}

void SendRequests::send_look() {
  ibv_send_wr request{};
  request.wr_id = kLookId;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_INLINE;
  request.imm_data = word_in_network_order(wire::RsControl::look);
  post(request);
}

std::optional<unsigned> SendRequests::take_control_slot() {
  std::uint32_t free = free_control_slots_.load(std::memory_order_relaxed);
  while (free != 0) {
    const auto slot = static_cast<unsigned>(std::countr_zero(free));
    if (free_control_slots_.compare_exchange_weak(free, free & (free - 1), std::memory_order_acquire)) return slot;
  }
  return std::nullopt;
}

Status SendRequests::post_control(ibv_send_wr& request) {
  const auto slot = take_control_slot();
  if (!slot) return Error{EAGAIN, "rsocket: no control slot"};
  return post_in_control_slot(request, *slot);
}

Status SendRequests::post_in_control_slot(ibv_send_wr& request, unsigned slot) {
  request.wr_id = kControlId | slot;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_sge copy{};
  if (control_inline_ || request.num_sge == 0) {
    request.send_flags |= IBV_SEND_INLINE;
  } else {
    const ibv_sge& piece = *request.sg_list;
    std::byte* const scratch = ring_.extra().data() + slot * sizeof(wire::PeerIomap);
    std::memcpy(scratch, reinterpret_cast<const void*>(piece.addr), piece.length);
    copy = {address_of(scratch), piece.length, ring_.key()};
    request.sg_list = &copy;
  }
  const bool posted = post(request);
  request.sg_list = nullptr;  // `copy` ends here
  return posted ? ok() : Error{ECONNRESET, "ibv_post_send"};
}

int SendRequests::post_inline_as_request(const verbs::InlineWrite& write) {
  ibv_sge piece{address_of(write.data), write.length, 0};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_INLINE;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.imm_data = write.immediate;
  request.wr.rdma.remote_addr = write.remote_address;
  request.wr.rdma.rkey = write.rkey;
  ask_for_completion(request, 0, false);
  return post_as_message(request);
}

bool SendRequests::post_pair(verbs::RcExtensions& rc, const verbs::WritePair& pair) {
  const int error = rc.write_pair_at_once(*qp_, pair);
  if (error == EAGAIN) [[unlikely]]
    return post_one_by_one(pair);
  posted_.store(posted() + 2, std::memory_order_relaxed);
  unsignalled_ += 2;
  return was_data_posted(error);
}

[[gnu::noinline]] bool SendRequests::post_one_by_one(const verbs::WritePair& pair) {
  std::array<std::byte, kPieceBytes> bytes;
  std::size_t copied = 0;
  for (const ibv_sge& piece : pair.list) {
    std::memcpy(bytes.data() + copied, reinterpret_cast<const std::byte*>(piece.addr), piece.length);
    copied += piece.length;
  }
  const auto post = [&](const verbs::WritePair::Part& part, std::size_t offset) {
    count_posted();
    return was_data_posted(
        post_inline_as_request({bytes.data() + offset, part.length, part.rkey, part.remote_address, part.immediate}));
  };
  const bool first = post(pair.first, 0);
  return post(pair.second, pair.first.length) && first;
}

/// Fact sheet 2.5: the payload by WRITE, then the word by SEND, in the byte order of this host.
int SendRequests::post_as_write_and_send(ibv_send_wr& request) {
  std::uint32_t word = std::bit_cast<wire::Be32>(request.imm_data).host();
  ibv_sge word_piece{address_of(&word), sizeof word, 0};
  ibv_send_wr send{};
  send.wr_id = request.wr_id;
  send.opcode = IBV_WR_SEND;
  send.sg_list = &word_piece;
  send.num_sge = 1;
  send.send_flags = IBV_SEND_INLINE | (request.send_flags & IBV_SEND_SIGNALED);
  ibv_send_wr write = request;
  write.wr_id = kPartId;
  write.opcode = IBV_WR_RDMA_WRITE;
  write.send_flags = request.send_flags & IBV_SEND_INLINE;
  write.next = &send;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp_, request.num_sge > 0 ? &write : &send, &bad);
}

bool SendRequests::is_busy() const {
  if (has_failed_work_.load(std::memory_order_acquire)) return false;
  const std::uint32_t unfinished = posted() - retired_.load(std::memory_order_acquire);
  return !is_drained() || unfinished != unsignalled_;
}

void SendRequests::save(SavedConnection& saved) const {
  saved.posted = posted();
  saved.unsignalled = unsignalled_;
  saved.held = is_held();
  saved.has_failed_work = has_failed_work();
}

bool SendRequests::is_possible(const SavedConnection& saved) const { return saved.unsignalled <= signal_every_ + 1; }

void SendRequests::restore(const SavedConnection& saved) {
  posted_.store(saved.posted, std::memory_order_relaxed);
  retired_.store(saved.posted - saved.unsignalled, std::memory_order_relaxed);
  unsignalled_ = saved.unsignalled;
  free_control_slots_.store(kAllControlSlots, std::memory_order_relaxed);
  ends_under_way_.store(0, std::memory_order_relaxed);
  held_.store(saved.held != 0, std::memory_order_relaxed);
  if (saved.has_failed_work != 0) has_failed_work_.store(true);
}

}  // namespace ringsock::rs
