#include "libvmacompat/ring.h"

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "core/base/log.h"
#include "core/verbs/buffer_pool.h"
#include "libvmacompat/interface.h"

namespace ringsock::vma {

namespace {
using Count = runtime::VmaRingCount;
/// What a device's ring holds at least.
constexpr unsigned kDeviceFrames = 256;
constexpr int kMostPieces = 16;

std::uint32_t most_pieces_of(verbs::Device& device) {
  const auto attr = device.query_device();
  return static_cast<std::uint32_t>(attr && attr->max_sge > 0 ? std::min(attr->max_sge, kMostPieces) : kMostPieces);
}
}  // namespace

/// Those who must hear that something came for them. They are told without the ring's lock, so each is held until then.
class Ring::Told {
 public:
  Told() = default;  // the places are not initialised: most polls tell nobody
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;
  ~Told() {
    for (std::size_t i = 0; i < count_; ++i) endpoints_[i]->drop_ref();
  }

  void add(runtime::Endpoint& endpoint) {
    // Looked at under the ring's lock, which arm() takes too: who is not watched by now looks again before he sleeps.
    if (!endpoint.is_watched() || count_ == endpoints_.size()) return;
    const auto end = endpoints_.begin() + static_cast<std::ptrdiff_t>(count_);
    if (std::find(endpoints_.begin(), end, &endpoint) != end) return;
    // A socket leaves the ring before it is destroyed, so it is there; but it may be about to go.
    if (endpoint.try_add_ref()) endpoints_[count_++] = &endpoint;
  }
  void tell() const {
    for (std::size_t i = 0; i < count_; ++i) endpoints_[i]->notify_watchers(EPOLLIN);
  }

 private:
  // A datagram to a group may be for more; those then hear of the next one, or see it when they look.
  std::array<runtime::Endpoint*, 64> endpoints_;
  std::size_t count_ = 0;
};

Result<std::shared_ptr<Ring>> Ring::create(std::shared_ptr<Interface> interface, const RingSettings& settings) {
  std::shared_ptr<Ring> ring(new Ring(std::move(interface), settings));
  if (Status made = ring->make_queues(); !made) return made.error();
  if (Status posted = ring->post_first_receives(); !posted) return posted.error();
  return ring;
}

Ring::Ring(std::shared_ptr<Interface> interface, const RingSettings& settings)
    : interface_(std::move(interface)), settings_(settings), statistics_(interface_->ifindex()) {}

Ring::~Ring() {
  // Flushes the posted receives, whose buffers are ours again.
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  if (!qp_ || !interface_->device().modify_qp(*qp_, attr, IBV_QP_STATE)) return;
  collect_flushed();
}

Status Ring::make_queues() {
  verbs::Device& device = interface_->device();
  auto channel = device.create_comp_channel();
  if (!channel) return channel.error();
  channel_ = *std::move(channel);
  auto receive_cq = device.create_cq(static_cast<int>(settings_.receive_entries), this, channel_.get(), 0);
  if (!receive_cq) return receive_cq.error();
  receive_cq_ = *std::move(receive_cq);
  timed_cq_ = device.with_wallclock(*receive_cq_);
  auto send_cq = device.create_cq(static_cast<int>(settings_.send_entries), this, nullptr, 0);
  if (!send_cq) return send_cq.error();
  send_cq_ = *std::move(send_cq);

  ibv_qp_init_attr attr{};
  attr.send_cq = send_cq_.get();
  attr.recv_cq = receive_cq_.get();
  attr.qp_type = IBV_QPT_RAW_PACKET;
  attr.cap.max_send_wr = settings_.send_entries;
  attr.cap.max_recv_wr = settings_.receive_entries;
  attr.cap.max_send_sge = most_pieces_ = most_pieces_of(device);
  attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = device.max_inline_data();
  auto qp = device.create_qp(interface_->pd(), attr);
  if (!qp) return qp.error();
  qp_ = *std::move(qp);
  inline_bytes_ = attr.cap.max_inline_data;
  return verbs::start_raw_packet_qp(device, *qp_);
}

Status Ring::post_first_receives() {
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

// -- receiving
// ---------------------------------------------------------------------------------------------------------

Status Ring::attach(const verbs::FlowTuple& tuple, DatagramSink& sink) {
  const std::lock_guard guard(receive_lock_);
  return flows_.attach(tuple, sink, [&] {
    verbs::FlowTuple known = tuple;
    if (!known.destination_mac) known.destination_mac = interface_->steering_mac();
    verbs::FlowRule rule(known);
    return verbs::create_flow(interface_->device(), *qp_, rule.attr());
  });
}

void Ring::detach(const verbs::FlowTuple& tuple, DatagramSink& sink) {
  const std::lock_guard guard(receive_lock_);
  flows_.detach(tuple, sink);
}

void Ring::post_receives(std::span<verbs::BufferRef> buffers) {
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

/// What one look at the completion queue has found.
struct Ring::Batch {
  Batch() : has_times(false) {}  // the places are not initialised: most looks find nothing
  ibv_wc completions[kBatch];
  Nanos times[kBatch];
  bool has_times;
  int count = 0;
};

/// Posts those that are due. False: there are no more buffers.
bool Ring::refill_spares() {
  post_receives(std::span(spares_).first(due_));
  due_ = 0;
  // Of a small ring no more may be away.
  const std::size_t most = std::clamp<std::size_t>(settings_.receive_entries / 4, 1, kBatch);
  spare_count_ = interface_->pool().take(std::span(spares_).first(most));
  return spare_count_ != 0;
}

/// Gives it to a socket, and has a spare posted in its place. False: it is for nobody, or there is no spare.
[[gnu::always_inline]] inline bool Ring::take(verbs::BufferRef& buffer, std::uint32_t byte_len, Nanos time,
                                              Told& told) {
  const auto bytes = buffer.bytes();
  const auto frame = parse_udp_frame(bytes.first(std::min<std::size_t>(byte_len, bytes.size())));
  if (!frame) return false;
  if (due_ == spare_count_ && !refill_spares()) return false;
  Arrival arrival{.buffer = std::move(buffer), .frame = *frame, .ifindex = interface_->ifindex(), .time = time};
  ++due_;
  if (!flows_.deliver(std::move(arrival), [&](DatagramSink& sink) { told.add(sink.endpoint()); })) [[unlikely]]
    statistics_.count(Count::rx_dropped);
  return true;
}

[[gnu::always_inline]] inline void Ring::take(Batch& batch, Told& told) {
  posted_ -= static_cast<std::size_t>(batch.count);
  for (int i = 0; i < batch.count; ++i) {
    const ibv_wc& completion = batch.completions[i];
    verbs::BufferRef buffer(*reinterpret_cast<verbs::BufferHeader*>(completion.wr_id));
    if (completion.status != IBV_WC_SUCCESS) [[unlikely]]
      continue;  // flushed: the interface is gone
    const bool is_wrong = !interface_->is_embedded() && !has_right_checksums(completion, buffer.bytes());
    if (is_wrong || !take(buffer, completion.byte_len, batch.has_times ? batch.times[i] : Nanos::zero(), told))
        [[unlikely]] {
      statistics_.count(Count::rx_dropped);
      post_receives(std::span(&buffer, 1));
    }
  }
}

void Ring::poll_with_times(Batch& batch) {
  batch.has_times = true;
  ibv_poll_cq_attr attr{};
  if (ibv_start_poll(timed_cq_, &attr) != 0) return;
  do {
    ibv_wc& completion = batch.completions[batch.count];
    completion.wr_id = timed_cq_->wr_id;
    completion.status = timed_cq_->status;
    completion.byte_len = ibv_wc_read_byte_len(timed_cq_);
    if (!interface_->is_embedded()) completion.wc_flags = ibv_wc_read_wc_flags(timed_cq_);
    batch.times[batch.count++] = Nanos(ibv_wc_read_completion_wallclock_ns(timed_cq_));
  } while (batch.count < static_cast<int>(settings_.batch) && ibv_next_poll(timed_cq_) == 0);
  ibv_end_poll(timed_cq_);
}

bool Ring::take_batch(Told& told) {
  Batch batch;
  if (timed_cq_ != nullptr && wants_times_.load(std::memory_order_relaxed)) {
    poll_with_times(batch);
  } else {
    batch.count = ibv_poll_cq(receive_cq_.get(), static_cast<int>(settings_.batch), batch.completions);
  }
  if (batch.count <= 0) return false;
  statistics_.raise(runtime::VmaRingLevel::drained_max, static_cast<std::uint64_t>(batch.count));
  take(batch, told);
  return true;
}

bool Ring::poll() {
  Told told;
  bool any = false;
  {
    const std::unique_lock guard(receive_lock_, std::try_to_lock);
    if (!guard) return false;
    any = take_batch(told);
  }
  if (any) told.tell();
  return any;
}

void Ring::leave(const verbs::FlowTuple& tuple, DatagramSink& sink) {
  Told told;
  {
    const std::lock_guard guard(receive_lock_);
    flows_.stop(tuple, sink);
    // Others' flows may fill it as fast as we empty it: twice what it holds is enough.
    const unsigned most = 2 * (settings_.receive_entries + kDeviceFrames);
    for (unsigned i = 0; i < most && take_batch(told); ++i) {
    }
    flows_.detach(tuple, sink);
  }
  told.tell();
}

void Ring::arm() {
  const std::lock_guard guard(receive_lock_);
  ibv_req_notify_cq(receive_cq_.get(), 0);
  statistics_.count(Count::interrupts_requested);
}

void Ring::woken() {
  verbs::Device& device = interface_->device();
  Told told;
  {
    const std::lock_guard guard(receive_lock_);
    while (auto cq = device.get_cq_event(*channel_)) {
      device.ack_cq_events(**cq, 1);
      statistics_.count(Count::interrupts_received);
    }
    // Others may be asleep: the next event is theirs. Armed before the last look, or it would be missed.
    ibv_req_notify_cq(receive_cq_.get(), 0);
    for (unsigned i = 0; i < kBatchesPerWakeUp && take_batch(told); ++i) {
    }
  }
  told.tell();
}

void Ring::refresh_statistics() {
  const auto now = interface_->device().packet_counters(*qp_);
  if (!now) return;
  statistics_.set(Count::rx_packets, now->rx_packets);
  statistics_.set(Count::rx_bytes, now->rx_bytes);
  statistics_.set(Count::device_drops,
                  now->rx_ring_full + now->rx_bad_length + now->rx_bad_checksum + now->rx_too_long);
  statistics_.set(Count::tx_packets, now->tx_packets);
  statistics_.set(Count::tx_bytes, now->tx_bytes);
  const std::lock_guard guard(receive_lock_);
  statistics_.set(runtime::VmaRingLevel::buffers, settings_.receive_entries - due_ + spare_count_);
}

// -- sending
// -----------------------------------------------------------------------------------------------------------

[[gnu::always_inline]] inline int Ring::post(ibv_send_wr& request) {
  const std::lock_guard guard(send_lock_);
  if (under_way_ == settings_.send_entries) {
    reap_sends();
    if (under_way_ == settings_.send_entries) return ENOMEM;
  }
  verbs::BufferRef copy;
  ibv_sge whole;
  if (!interface_->is_embedded()) {
    if (const int error = adapt(request, copy, whole); error != 0) return error;
  }
  if (++unsignalled_ >= std::min(settings_.sends_per_completion, settings_.send_entries / 2)) {
    request.send_flags |= IBV_SEND_SIGNALED;
    request.wr_id = unsignalled_;
  }
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(qp_.get(), &request, &bad); error != 0) {
    --unsignalled_;
    return error;
  }
  ++under_way_;
  if (!interface_->is_embedded()) copies_.push_back(std::move(copy));
  if (request.wr_id != 0) {
    unsignalled_ = 0;
    reap_sends();
  }
  return 0;
}

int Ring::send(std::span<ibv_sge> pieces, unsigned send_flags) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;
  request.sg_list = pieces.data();
  request.num_sge = static_cast<int>(pieces.size());
  request.send_flags = send_flags;
  return post(request);
}

int Ring::send_segments(std::span<std::byte> header, std::span<ibv_sge> pieces, std::uint16_t segment_bytes) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_TSO;
  request.sg_list = pieces.data();
  request.num_sge = static_cast<int>(pieces.size());
  request.send_flags = IBV_SEND_INLINE | IBV_SEND_IP_CSUM;
  request.tso.hdr = header.data();
  request.tso.hdr_sz = static_cast<std::uint16_t>(header.size());
  request.tso.mss = segment_bytes;
  return post(request);
}

bool Ring::segments_udp() const { return interface_->device().segments_udp(); }

void Ring::reap_sends() {
  ibv_wc completions[kBatch];
  for (int count = kBatch; count == kBatch;) {
    count = ibv_poll_cq(send_cq_.get(), kBatch, completions);
    for (int i = 0; i < count; ++i) {
      const auto done = static_cast<unsigned>(completions[i].wr_id);
      under_way_ -= done;
      if (!copies_.empty()) copies_.erase(copies_.begin(), copies_.begin() + done);
    }
  }
}

}  // namespace ringsock::vma
