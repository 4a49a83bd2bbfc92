// The life of an RC queue pair: creation, wiring, states, sleeping, destruction.
#include <sys/socket.h>
#include <time.h>

#include <algorithm>

#include "core/device/common/device_context.h"
#include "core/device/shm/memory/app_memory.h"
#include "core/device/shm/memory/segment_cache.h"
#include "core/device/shm/queue/reliable_queue_pair.h"

namespace ringsock::soft {

namespace {

/// The size of the payload ring: SENDs are cut into pieces of a quarter of it. Unused pages cost nothing.
constexpr std::uint32_t kPayloadRingBytes = 128 << 10;
/// With a shared receive queue the ring itself limits the messages under way.
constexpr std::uint32_t kSrqRingEntries = 256;
constexpr std::uint32_t kRoomForAssists = 16;

/// Returns the size of the ring. The consumer publishes used entries a quarter of the ring at a time, so the ring has
/// that many more entries than receives, and does not hold up a sender.
std::uint32_t ring_entries_for(const ibv_qp_init_attr& attr) {
  if (attr.srq != nullptr) return kSrqRingEntries;
  return attr.cap.max_recv_wr + attr.cap.max_recv_wr / 4 + kRoomForAssists;
}

struct Transition {
  ibv_qp_state from, to;
  int required;
};
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0},
};

Status check_transition(ibv_qp_state from, const ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_CUR_STATE) != 0 && attr.cur_qp_state != from) return Error{EINVAL, "modify_qp: current state"};
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attr.rnr_retry > 7) return Error{EINVAL, "modify_qp: rnr_retry"};
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attr.min_rnr_timer > 31) return Error{EINVAL, "modify_qp: min_rnr_timer"};
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr.qp_state : from;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return ok();
  const auto* allowed =
      std::ranges::find_if(kTransitions, [&](const Transition& t) { return t.from == from && t.to == to; });
  if (allowed == std::end(kTransitions)) return Error{EINVAL, "modify_qp: transition"};
  if ((mask & allowed->required) != allowed->required) return Error{EINVAL, "modify_qp: attributes"};
  return ok();
}

}  // namespace

ReliableQueuePair::ReliableQueuePair(DeviceContext& device, ibv_pd& domain, const ibv_qp_init_attr& attr)
    : QueuePair(device, domain, attr),
      signal_all_(attr.sq_sig_all != 0),
      max_send_sge_(attr.cap.max_send_sge),
      receives_(attr.cap.max_recv_wr, attr.cap.max_recv_sge) {}

Result<std::unique_ptr<ReliableQueuePair>> ReliableQueuePair::create(DeviceContext& device, ibv_pd& pd,
                                                                     ibv_qp_init_attr& attr, ArenaBytes arena,
                                                                     const SpareRoom* room,
                                                                     std::optional<PeerProcess> peer) {
  if (Status granted = grant_capacities(attr); !granted) return granted.error();
  std::unique_ptr<ReliableQueuePair> queue_pair(new ReliableQueuePair(device, pd, attr));
  if (Status made = queue_pair->make_inbox(arena, room, peer); !made) return made.error();
  queue_pair->attach_to_queues();
  return queue_pair;
}

Status ReliableQueuePair::make_inbox(ArenaBytes arena, const SpareRoom* room, std::optional<PeerProcess> peer) {
  if (arena.all > kMaxArenaBytes || arena.quiet > std::min<std::uint64_t>(arena.all, kMaxOfferedQuiet)) {
    return Error{ENOMEM, "create_qp: receive memory"};
  }
  layout_ = plan_inbox(0, ring_entries_for(init_attr_), kPayloadRingBytes, arena.all);
  quiet_bytes_ = arena.quiet / kPageBytes * kPageBytes;
  if (room != nullptr && room->segment && layout_.bytes <= room->inbox.bytes &&
      check_inbox(room->inbox, room->segment->bytes())) {
    layout_.offset = room->inbox.offset;
    segment_ = room->segment;
  } else {
    if (room == nullptr) {
      spare_ = layout_;
      spare_.offset = layout_.bytes;
    }
    auto own = segment_cache().make(layout_.bytes + spare_.bytes, room == nullptr ? peer : std::nullopt);
    if (!own) return own.error();
    segment_ = std::move(own->mapping);
    memfd_ = std::move(own->memfd);
    memory_name_ = own->name;
    if (own->reused) segment_kept_for_ = peer;
  }
  inbox_ = InboxView(*segment_, layout_);
  // Every peer begins with fences (begin_with_fences()), so a sleep before it has attached needs no barrier either.
  inbox_.producer->fences.store(1, std::memory_order_relaxed);
  return ok();
}

ReliableQueuePair::~ReliableQueuePair() {
  if (!segment_) return;  // never made: create() had no memory or descriptors for it
  unplug();
  {
    std::lock_guard guard(send_lock_);
    inbox_.consumer->destroyed.store(1, std::memory_order_release);
    const bool is_dead = wired_ && link_->peer_gone() && peer_.consumer->destroyed.load(std::memory_order_acquire) == 0;
    // Without a connection the expected peer may have died, too.
    if (is_dead || !wired_) {
      segment_->forget_peer();
      if (peer_segment_) peer_segment_->forget_peer();
    }
    while (!queued_.empty()) pop_queued();
  }
  detach_from_queues();
}

/// When this returns no thread calls this object on behalf of the peer any more.
void ReliableQueuePair::unplug() {
  std::shared_ptr<Link> plugged = link();
  if (!plugged) return;
  plugged->set_queue_pair(nullptr);
  domain().remove_peer(*this);
  CompletionChannel* channel = receive_queue().completion_channel();
  if (receive_watch_ != 0) channel->unwatch(std::exchange(receive_watch_, 0), plugged->fd());
  channel = send_queue().completion_channel();
  if (send_watch_ != 0) channel->unwatch(std::exchange(send_watch_, 0), plugged->fd());
}

QueuePairOffer ReliableQueuePair::offer() {
  QueuePairOffer out{};
  out.inbox = layout_;
  out.spare = spare_;
  out.qp_num = qp_num;
  if (memfd_) {
    out.flags |= kOfferHasMemfd;
    out.memory = memory_name_;
  }
  if (segment_kept_for_) {
    out.flags |= kOfferKeptSegment;
    out.memory.kept_for_uid = segment_kept_for_->pid == kAnyProcess ? segment_kept_for_->uid : kOneProcessOnly;
  }
  if (!AsymmetricBarrier::register_process()) out.flags |= kOfferNeedsFullFence;
  if (srq != nullptr) out.flags |= kOfferUsesSrq;
  out.flags |= static_cast<std::uint32_t>(quiet_bytes_ / kPageBytes) << kOfferQuietShift;
  return out;
}

Status ReliableQueuePair::check_peer_inbox(const QueuePairOffer& peer, const MappedSegment* peer_segment) const {
  if (quiet_bytes_of(peer) > peer.inbox.arena_bytes) return Error{EPROTO, "peer's inbox: quiet memory"};
  if (peer_segment != nullptr) return check_inbox(peer.inbox, peer_segment->bytes());
  // The peer's inbox is in the spare room of our segment.
  if (Status sane = check_inbox(peer.inbox, segment_->bytes()); !sane) return sane;
  const bool inside = spare_.bytes >= peer.inbox.bytes && peer.inbox.offset >= spare_.offset &&
                      peer.inbox.offset - spare_.offset <= spare_.bytes - peer.inbox.bytes;
  if (!inside) return Error{EPROTO, "peer's inbox: outside the room it was given"};
  return ok();
}

/// A connection of few messages never pays for a barrier; whoever stays awake for many withdraws the wish.
void ReliableQueuePair::begin_with_fences() {
  full_fence_ = true;
  follows_fence_wish_ = true;
  peer_.producer->fences.store(1, std::memory_order_relaxed);
  frequent_armings_ = kManyArmings;
  inbox_.doorbell->wants_fences.store(1, std::memory_order_relaxed);
}

Status ReliableQueuePair::attach(const QueuePairOffer& offer, std::shared_ptr<MappedSegment> peer_segment,
                                 std::shared_ptr<Link> link, Peer peer, std::uint8_t rnr_retry_count) {
  if (Status fits = check_peer_inbox(offer, peer_segment.get()); !fits) return fits;
  {
    std::lock_guard guard(send_lock_);
    if (state != IBV_QPS_INIT || wired_) return Error{EINVAL, "attach: state"};
    peer_segment_ = std::move(peer_segment);
    peer_ = InboxView(peer_segment_ ? *peer_segment_ : *segment_, offer.inbox);
    peer_quiet_bytes_ = quiet_bytes_of(offer);
    peer_.arena_bytes -= peer_quiet_bytes_;
    peer_qp_num_ = offer.qp_num;
    attr_.dest_qp_num = offer.qp_num;
    peer_uses_srq_ = (offer.flags & kOfferUsesSrq) != 0;
    needs_full_fence_ = (offer.flags & kOfferNeedsFullFence) != 0 || !AsymmetricBarrier::register_process();
    begin_with_fences();
    rnr_retry_ = rnr_retry_count;
    peer_space_.set_process(peer.memory_of);
    peer_process_ = peer.process;
    if (peer.process.pid > 0) {
      peer_group_.store(std::uint64_t{static_cast<std::uint32_t>(peer.process.pid)} << 32 | peer.process.uid,
                        std::memory_order_relaxed);
    }
    link_ = std::move(link);
    ringing_.store(link_.get(), std::memory_order_release);
    // The peer has a copy of the descriptor, or does not need one.
    memfd_.reset();
    wired_ = true;
    set_state(IBV_QPS_RTS);
    direct_ = queued_.empty();
  }
  domain().add_peer(*this);
  if (Status watched = watch_link(); !watched) {
    std::lock_guard guard(send_lock_);
    enter_error(IBV_WC_WR_FLUSH_ERR);
    return watched;
  }
  link_->set_queue_pair(this);
  // A wake packet may have been read and dropped before the sink was set.
  on_wake();
  return ok();
}

void ReliableQueuePair::abandon() {
  withdraw_memory();
  segment_->abandon();
  if (peer_segment_) peer_segment_->abandon();
}

Status ReliableQueuePair::watch_link() {
  const auto watch = [this](CompletionChannel* channel) -> Result<std::uint64_t> {
    if (channel == nullptr) return std::uint64_t{0};
    return channel->watch(link_->fd(), [link = link_] { link->drain(); });
  };
  auto receive_watch = watch(receive_queue().completion_channel());
  if (!receive_watch) return receive_watch.error();
  receive_watch_ = *receive_watch;
  if (send_queue().completion_channel() == receive_queue().completion_channel()) return ok();
  auto send_watch = watch(send_queue().completion_channel());
  if (!send_watch) return send_watch.error();
  send_watch_ = *send_watch;
  return ok();
}

std::shared_ptr<Link> ReliableQueuePair::link() {
  std::lock_guard guard(send_lock_);
  return link_;
}

PeerProcess ReliableQueuePair::peer_process() {
  std::lock_guard guard(send_lock_);
  return peer_process_;
}

Status ReliableQueuePair::modify(ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_STATE) != 0 && attr.qp_state == IBV_QPS_RESET) {
    unplug();
    reset();
    return ok();
  }
  std::lock_guard guard(send_lock_);
  if (Status allowed = check_transition(state, attr, mask); !allowed) return allowed;
  store_attributes(attr, mask);
  if ((mask & IBV_QP_STATE) == 0) return ok();
  if (attr.qp_state == IBV_QPS_ERR) {
    enter_error(IBV_WC_WR_FLUSH_ERR);
    return ok();
  }
  set_state(attr.qp_state);
  direct_ = state == IBV_QPS_RTS && wired_ && queued_.empty();
  if (state == IBV_QPS_RTS && !queued_.empty()) progress_sends();
  return ok();
}

void ReliableQueuePair::reset() {
  // No thread polls a detached queue pair, so this thread owns the receive side.
  detach_from_queues();
  {
    std::lock_guard guard(receive_lock_);
    while (!receives_.empty()) receives_.pop();
  }
  in_message_ = false;
  inbox_broken_ = true;
  attach_to_queues();
  std::lock_guard guard(send_lock_);
  direct_ = false;
  started_ = 0;
  while (!queued_.empty()) pop_queued();
  set_state(IBV_QPS_RESET);
  direct_ = wired_ = false;
  flushing_.store(false, std::memory_order_release);
}

void ReliableQueuePair::store_attributes(const ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) attr_.qp_access_flags = attr.qp_access_flags;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) attr_.pkey_index = attr.pkey_index;
  if ((mask & IBV_QP_PORT) != 0) attr_.port_num = attr.port_num;
  if ((mask & IBV_QP_AV) != 0) attr_.ah_attr = attr.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) attr_.path_mtu = attr.path_mtu;
  if ((mask & IBV_QP_TIMEOUT) != 0) attr_.timeout = attr.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) attr_.retry_cnt = attr.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) rnr_retry_ = attr.rnr_retry;
  if ((mask & IBV_QP_RQ_PSN) != 0) attr_.rq_psn = attr.rq_psn;
  if ((mask & IBV_QP_SQ_PSN) != 0) attr_.sq_psn = attr.sq_psn;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) attr_.max_rd_atomic = attr.max_rd_atomic;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) attr_.max_dest_rd_atomic = attr.max_dest_rd_atomic;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) min_rnr_timer_ = attr.min_rnr_timer;
  if ((mask & IBV_QP_DEST_QPN) != 0) attr_.dest_qp_num = attr.dest_qp_num;
}

void ReliableQueuePair::query(ibv_qp_attr& attr) {
  std::lock_guard guard(send_lock_);
  attr = attr_;
  attr.qp_state = attr.cur_qp_state = state;
  attr.rnr_retry = rnr_retry_;
  attr.min_rnr_timer = min_rnr_timer_;
  attr.cap = init_attr_.cap;
}

bool ReliableQueuePair::arm(CompletionQueue& queue, ArmKind kind) {
  bool needs_barrier = false;
  if (&queue == &receive_queue()) {
    note_arming();
    std::lock_guard guard(arm_lock_);
    // A full fence; the peer's state is loaded behind it (follow_fence_wish()).
    const std::uint32_t before = inbox_.doorbell->armed.exchange(static_cast<std::uint32_t>(kind));
    needs_barrier = inbox_.producer->fences.load() == 0;
    if (armed_here_ && before == 0 && queue.take_arming()) owed_ = true;
    armed_here_ = true;
  }
  if (!has_queued_.load(std::memory_order_relaxed)) return needs_barrier;
  std::lock_guard guard(send_lock_);
  if (!wired_ || queued_.empty()) return needs_barrier;
  peer_.producer->waiting.store(1, std::memory_order_relaxed);
  return true;
}

void ReliableQueuePair::on_wake() {
  push_sends();
  if (has_queued_.load(std::memory_order_relaxed)) {
    // The doorbell was for the sends, of which some still cannot continue: asks to be woken again.
    {
      std::lock_guard guard(send_lock_);
      if (wired_) peer_.producer->waiting.store(1, std::memory_order_relaxed);
    }
    AsymmetricBarrier::heavy_now();
    push_sends();
  }
  std::lock_guard guard(arm_lock_);
  if (std::exchange(owed_, false)) receive_queue().raise_owed();
  // If it is still set, the packet was for an earlier arming or for the connection manager.
  if (armed_here_ && inbox_.doorbell->armed.load(std::memory_order_relaxed) == 0) {
    armed_here_ = false;
    receive_queue().fire();
  }
}

void ReliableQueuePair::on_peer_gone() {
  std::lock_guard guard(send_lock_);
  if (state == IBV_QPS_ERR || state == IBV_QPS_RESET) return;
  // A peer whose queue pair failed or was reset has set `closed`.
  peer_ended_.store(!peer_closed(), std::memory_order_relaxed);
  if (wired_) retire_acked();
  if (state == IBV_QPS_ERR) return;
  gone_untold_ = queued_.empty();
  enter_error(IBV_WC_RETRY_EXC_ERR);
}

Result<MemoryRegion*> ReliableQueuePair::register_arena(std::size_t bytes) {
  auto region =
      domain().add_region(device_.keys(), inbox_.arena, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, this);
  if (region) arena_registered_.store(true, std::memory_order_relaxed);
  return region;
}

bool ReliableQueuePair::may_share() {
  std::lock_guard guard(send_lock_);
  return peer_space_.has_process();
}

void ReliableQueuePair::publish(const MemoryRegion& region) {
  const std::size_t row = region.only_for == this ? 0 : row_of(region.rkey);
  if (row_keys_[row] != 0) return;
  row_keys_[row] = region.rkey;
  const auto start = reinterpret_cast<std::uint64_t>(region.addr);
  const auto arena = reinterpret_cast<std::uint64_t>(inbox_.arena);
  const bool in_arena =
      start >= arena && start - arena <= inbox_.arena_bytes && region.length <= inbox_.arena_bytes - (start - arena);
  MrRow& shared = inbox_.rows[row];
  shared.address.store(start, std::memory_order_relaxed);
  shared.length.store(region.length, std::memory_order_relaxed);
  shared.arena_offset.store(in_arena ? start - arena : 0, std::memory_order_relaxed);
  shared.access.store(static_cast<std::uint32_t>(region.access) | (in_arena ? kRowInArena : 0),
                      std::memory_order_relaxed);
  const SharedPlace place =
      region.memory && may_share() ? static_cast<const AppMemory&>(*region.memory).place() : SharedPlace{};
  shared.shared_start.store(place.start, std::memory_order_relaxed);
  shared.shared_bytes.store(place.bytes, std::memory_order_relaxed);
  shared.shared_fd.store(place.fd, std::memory_order_relaxed);
  shared.shared_inode.store(place.inode, std::memory_order_relaxed);
  if (!in_arena) publish_mark();
  shared.rkey.store(region.rkey, std::memory_order_release);
}

void ReliableQueuePair::publish_mark() {
  ConsumerLine& line = *inbox_.consumer;
  const SpaceMark mark = own_space_mark();
  if (line.mark_token.load(std::memory_order_relaxed) == mark.token) return;
  line.mark_token.store(0, std::memory_order_relaxed);
  line.mark_address.store(mark.address, std::memory_order_release);
  line.mark_token.store(mark.token, std::memory_order_release);
}

/// Clears all rows except the arena's. @return whether there were any.
bool ReliableQueuePair::retract_all() {
  bool found = false;
  inbox_.consumer->mark_token.store(0, std::memory_order_release);
  for (std::size_t row = 1; row < kMrRows; ++row) {
    if (std::exchange(row_keys_[row], 0) == 0) continue;
    inbox_.rows[row].rkey.store(0, std::memory_order_release);
    found = true;
  }
  if (found) wait_for_lease();
  return found;
}

void ReliableQueuePair::take_over() {
  if (inbox_.consumer->mark_token.load(std::memory_order_relaxed) != known_space_mark().token) domain().renew(*this);
}

/// Clears rows that this process published before a fork and that are still in the shared memory because the process
/// that uses the connection has not published its own.
void ReliableQueuePair::withdraw_memory() {
  std::uint64_t own = known_space_mark().token;
  if (own == 0 || !inbox_.consumer->mark_token.compare_exchange_strong(own, 0)) return;
  wait_for_lease();
}

void ReliableQueuePair::retract(const MemoryRegion& region) {
  const std::size_t row = region.only_for == this ? 0 : row_of(region.rkey);
  if (row_keys_[row] != region.rkey) return;
  row_keys_[row] = 0;
  inbox_.rows[row].rkey.store(0, std::memory_order_release);
  if (region.only_for == this) {
    arena_registered_.store(false, std::memory_order_relaxed);
  } else {
    wait_for_lease();
  }
}

/// Waits until the peer has left an access that began before the key was cleared. A peer that does not leave is
/// disconnected.
void ReliableQueuePair::wait_for_lease() {
  constexpr Nanos kPatience{1'000'000'000};
  constexpr timespec kPause{0, 20'000};
  AsymmetricBarrier::heavy_now();
  const std::uint32_t lease = inbox_.producer->lease.load(std::memory_order_acquire);
  if ((lease & 1) == 0) return;
  const Nanos deadline = monotonic_now() + kPatience;
  while (inbox_.producer->lease.load(std::memory_order_acquire) == lease) {
    std::shared_ptr<Link> plugged = link();
    if (!plugged || plugged->peer_gone()) return;
    if (monotonic_now() >= deadline) {
      plugged->hang_up();
      std::lock_guard guard(send_lock_);
      return enter_error(IBV_WC_RETRY_EXC_ERR);
    }
    ::nanosleep(&kPause, nullptr);
  }
}

std::uint64_t own_segment_bytes(const ibv_qp_init_attr& attr, ArenaBytes arena) {
  if (arena.all > kMaxArenaBytes || arena.quiet > arena.all) return 0;
  return 2 * plan_inbox(0, ring_entries_for(attr), kPayloadRingBytes, arena.all - arena.quiet).bytes;
}

RcWiring& wiring_of(ibv_qp& qp) { return static_cast<ReliableQueuePair&>(static_cast<QueuePair&>(qp)); }

Result<RcQueuePair> create_rc_queue_pair(DeviceContext& device, ibv_pd& pd, ibv_qp_init_attr& attr, ArenaBytes arena,
                                         const SpareRoom* from_peer, std::optional<PeerProcess> peer) {
  auto made = ReliableQueuePair::create(device, pd, attr, arena, from_peer, peer);
  if (!made) return made.error();
  ReliableQueuePair& queue_pair = **made;
  RcQueuePair out{&queue_pair, nullptr, nullptr};
  queue_pair.start_in_init();
  if (arena.all != 0) {
    auto region = queue_pair.register_arena(arena.all);
    if (!region) return region.error();
    out.arena = queue_pair.arena();
    out.arena_mr = *region;
  }
  static_cast<void>(std::move(*made).release());
  return out;
}

}  // namespace ringsock::soft
