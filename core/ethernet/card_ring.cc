#include "core/ethernet/card_ring.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/device/packet/packet_queue_pair.h"
#include "core/ethernet/interface.h"
#include "core/ethernet/told.h"
#include "core/verbs/buffer_pool.h"
#include "core/wire/frame_parse.h"

namespace ringsock::ethernet {

namespace {
using Count = RingCount;
}  // namespace

CardRing::~CardRing() {
  stop();
  collect_flushed();
}

/// Posts the first receives.
Status CardRing::start() {
  timed_cq_ = interface_->device().with_wallclock(*receive_cq_);
  for (unsigned posted = 0; posted < settings_.receive_entries;) {
    std::array<verbs::BufferRef, kBatch> buffers;
    const std::size_t wanted = std::min<std::size_t>(kBatch, settings_.receive_entries - posted);
    const std::size_t got = interface_->pool().take(std::span(buffers).first(wanted));
    if (got == 0) return posted > 0 ? ok() : Error{ENOMEM, "ring: buffers"};
    post_receives(std::span(buffers).first(got));
    posted += static_cast<unsigned>(got);
  }
  return ok();
}

/// Posts receives for `buffers`, which then belong to the device.
void CardRing::post_receives(std::span<verbs::BufferRef> buffers) {
  std::array<ibv_recv_wr, kBatch> requests;
  std::array<ibv_sge, kBatch> pieces;
  const std::size_t count = buffers.size();
  if (count == 0) return;
  for (std::size_t i = 0; i < count; ++i) {
    const std::span<std::byte> bytes = buffers[i].bytes();
    pieces[i] = {reinterpret_cast<std::uintptr_t>(bytes.data()), static_cast<std::uint32_t>(bytes.size()),
                 buffers[i].lkey()};
    requests[i] = {.wr_id = reinterpret_cast<std::uintptr_t>(buffers[i].release()),
                   .next = i + 1 < count ? &requests[i + 1] : nullptr,
                   .sg_list = &pieces[i],
                   .num_sge = 1};
  }
  posted_ += count;
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(qp_.get(), requests.data(), &bad); error != 0) {
    log_debug("ring: ibv_post_recv: error %d", error);
    for (; bad != nullptr; bad = bad->next, --posted_)
      verbs::BufferRef(*reinterpret_cast<verbs::BufferHeader*>(bad->wr_id));
  }
}

/// The completions that one poll of the queue has found.
struct CardRing::Batch {
  Batch() {}  // does not initialise the arrays, because most polls find nothing
  ibv_wc completions[kBatch];
  Nanos times[kBatch];
  int count = 0;
};

void CardRing::poll_with_times(Batch& batch) {
  ibv_poll_cq_attr attr{};
  if (ibv_start_poll(timed_cq_, &attr) != 0) return;
  do {
    ibv_wc& completion = batch.completions[batch.count];
    completion.wr_id = timed_cq_->wr_id;
    completion.status = timed_cq_->status;
    completion.byte_len = ibv_wc_read_byte_len(timed_cq_);
    completion.wc_flags = ibv_wc_read_wc_flags(timed_cq_);
    batch.times[batch.count++] = Nanos(ibv_wc_read_completion_wallclock_ns(timed_cq_));
  } while (batch.count < static_cast<int>(settings_.batch) && ibv_next_poll(timed_cq_) == 0);
  ibv_end_poll(timed_cq_);
}

/// Queues a buffer for posting. Buffers are posted in batches, which are smaller when few receives are posted, so that
/// the ring does not run out of them.
void CardRing::replace(verbs::BufferRef buffer) {
  due_[due_count_++] = std::move(buffer);
  if (due_count_ < std::clamp<std::size_t>(posted_ / 4, 1, kBatch)) return;
  post_receives(std::span(due_).first(due_count_));
  due_count_ = 0;
}

/// Returns false when the packet is invalid, or there is no buffer to post in its place.
bool CardRing::take_one(const ibv_wc& completion, verbs::BufferRef& buffer, Nanos time, Told& told,
                        WaitingCall* waiting) {
  const auto bytes = buffer.bytes();
  const auto frame = bytes.first(std::min<std::size_t>(completion.byte_len, bytes.size()));
  wire::FrameLayout layout;
  if (!wire::parsing::find_packet(frame, layout)) return false;
  if (!has_right_checksums(completion, frame, layout)) return false;
  verbs::BufferRef next = spares_.take();
  if (!next) return false;
  const Packet packet{.headers = bytes,
                      .payload = bytes.subspan(layout.payload, layout.payload_bytes),
                      .layout = layout,
                      .ifindex = interface_->ifindex(),
                      .time = time};
  if (capture_ != nullptr) [[unlikely]]
    capture_->note_received(packet);
  Incoming incoming(packet, std::move(buffer), waiting, spares_);
  if (!sinks_.deliver(incoming, told)) counters_->count(Count::rx_dropped);
  replace(std::move(next));
  return true;
}

unsigned CardRing::take(Told& told, WaitingCall* waiting) {
  Batch batch;
  const bool with_times = timed_cq_ != nullptr && wants_times_.load(std::memory_order_relaxed);
  if (with_times) {
    poll_with_times(batch);
  } else {
    batch.count = ibv_poll_cq(receive_cq_.get(), static_cast<int>(settings_.batch), batch.completions);
  }
  if (batch.count <= 0) return 0;
  posted_ -= static_cast<std::size_t>(batch.count);
  for (int i = 0; i < batch.count; ++i) {
    const ibv_wc& completion = batch.completions[i];
    verbs::BufferRef buffer(*reinterpret_cast<verbs::BufferHeader*>(completion.wr_id));
    if (completion.status == IBV_WC_WR_FLUSH_ERR) continue;  // the interface is gone
    if (completion.status == IBV_WC_SUCCESS &&
        take_one(completion, buffer, with_times ? batch.times[i] : Nanos::zero(), told, waiting))
      continue;
    counters_->count(Count::rx_dropped);
    post_receives(std::span(&buffer, 1));
  }
  return static_cast<unsigned>(batch.count);
}

/// Waits until all receives have come back, for 100 ms at most.
void CardRing::collect_flushed() {
  constexpr Nanos kPatience = std::chrono::milliseconds(100);
  ibv_wc completions[kBatch];
  const Nanos end = monotonic_now() + kPatience;
  while (posted_ != 0) {
    const int count = ibv_poll_cq(receive_cq_.get(), kBatch, completions);
    if (count < 0 || (count == 0 && monotonic_now() > end)) break;
    for (int i = 0; i < count; ++i, --posted_)
      verbs::BufferRef(*reinterpret_cast<verbs::BufferHeader*>(completions[i].wr_id));
  }
}

bool CardRing::has_right_checksums(const ibv_wc& completion, std::span<const std::byte> frame,
                                   const wire::FrameLayout& layout) const {
  if (interface_->does_checksums() && (completion.wc_flags & IBV_WC_IP_CSUM_OK) != 0) return true;
  return wire::has_valid_network_checksum(frame, layout) && wire::has_valid_checksum(frame, layout);
}

Ring::Look CardRing::poll(WaitingCall* waiting) {
  return poll_by([&](Told& told) { return take(told, waiting); });
}

int CardRing::send(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) {
  DatagramPieces pieces(room.headers().first(header_bytes), payload);
  ibv_send_wr request = frame_request(pieces.all(), IBV_SEND_INLINE | IBV_SEND_IP_CSUM);
  return post(request);
}

int CardRing::rehearse(soft::DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) {
  DatagramPieces pieces(room.headers().first(header_bytes), payload);
  ibv_send_wr request = frame_request(pieces.all(), IBV_SEND_INLINE | IBV_SEND_IP_CSUM);
  verbs::BufferRef copy;
  ibv_sge whole;
  return adapt(request, copy, whole);
}

int CardRing::post_to_device(ibv_send_wr& request) {
  verbs::BufferRef copy;
  ibv_sge whole;
  if (const int error = adapt(request, copy, whole); error != 0) return error;
  if (const int error = Ring::post_to_device(request); error != 0) return error;
  if (capture_ != nullptr) [[unlikely]]
    capture_->note_request(request);
  copies_.push_back(std::move(copy));
  return 0;
}

void CardRing::note_sent(unsigned count) {
  copies_.erase(copies_.begin(), copies_.begin() + std::min<std::ptrdiff_t>(count, std::ssize(copies_)));
}

int CardRing::adapt(ibv_send_wr& request, verbs::BufferRef& copy, ibv_sge& whole) const {
  const std::span pieces(request.sg_list, static_cast<std::size_t>(request.num_sge));
  std::size_t bytes = 0;
  for (const ibv_sge& piece : pieces) bytes += piece.length;
  if (interface_->does_checksums() && bytes <= inline_bytes_ && pieces.size() <= most_pieces_) return 0;
  if (interface_->pool().take(std::span(&copy, 1)) == 0) return ENOMEM;
  const std::span<std::byte> room = copy.bytes();
  if (bytes > room.size()) return EMSGSIZE;
  std::byte* to = room.data();
  for (const ibv_sge& piece : pieces) {
    if (piece.length != 0) std::memcpy(to, reinterpret_cast<const void*>(piece.addr), piece.length);
    to += piece.length;
  }
  if (!interface_->does_checksums()) {
    wire::fill_checksums(room.first(bytes));
    request.send_flags &= ~static_cast<unsigned>(IBV_SEND_IP_CSUM);
  }
  request.send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
  whole = {reinterpret_cast<std::uintptr_t>(room.data()), static_cast<std::uint32_t>(bytes), copy.lkey()};
  request.sg_list = &whole;
  request.num_sge = 1;
  return 0;
}

}  // namespace ringsock::ethernet
