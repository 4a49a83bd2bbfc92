// The life of an RC queue pair: creation, wiring, states, sleeping, destruction.
#include <mutex>
#include <utility>

#include "core/base/barrier.h"
#include "core/device/common/device_context.h"
#include "core/device/shm/queue/reliable_queue_pair.h"

namespace ringsock::soft {

ReliableQueuePair::ReliableQueuePair(DeviceContext& device, ibv_pd& domain, const ibv_qp_init_attr& attr,
                                     ConnectionMemory memory)
    : QueuePair(device, domain, attr),
      receiver_(*this, *this, attributes_, memory.own_inbox(), stalled_peer_, receive_end_),
      receive_end_(memory.own_inbox().consumer(), stalled_peer_, receive_queue()),
      sends_(*this, attributes_, receive_end_),
      attributes_(*this),
      stalled_peer_(memory.own_inbox().producer(), sends_.outbox().fences()),
      arming_(memory.own_inbox(), receive_queue()),
      memory_(std::move(memory)),
      inbox_(memory_.own_inbox()),
      own_regions_(inbox_, *this),
      watches_(receive_queue().completion_channel(), send_queue().completion_channel()) {
  // Every peer begins with fences (Fences::begin()), so a sleep before it has attached needs no barrier either.
  inbox_.producer().fences.store(1, std::memory_order_relaxed);
  attach_to_queues();
}

Result<std::unique_ptr<ReliableQueuePair>> ReliableQueuePair::create(DeviceContext& device, ibv_pd& pd,
                                                                     ibv_qp_init_attr& attr, ArenaBytes arena,
                                                                     const SpareRoom* room,
                                                                     std::optional<SegmentPeer> peer) {
  if (Status granted = grant_capacities(attr); !granted) return granted.error();
  auto memory = ConnectionMemory::make(attr, arena, room, peer);
  if (!memory) return memory.error();
  return std::unique_ptr<ReliableQueuePair>(new ReliableQueuePair(device, pd, attr, *std::move(memory)));
}

ReliableQueuePair::~ReliableQueuePair() {
  unplug();
  {
    const std::lock_guard guard(send_lock_);
    inbox_.doorbell().armed.store(kArmedForAny);  // as in modify()
    inbox_.consumer().destroyed.store(1, std::memory_order_release);
    const bool is_dead = sends_.is_wired() && link_->peer_gone() && !sends_.outbox().is_destroyed();
    // Without a connection the expected peer may have died, too.
    if (is_dead || !sends_.is_wired()) memory_.forget_peers();
    sends_.clear();
  }
  detach_from_queues();
}

/// When this returns no thread calls this object on behalf of the peer any more.
void ReliableQueuePair::unplug() {
  const std::shared_ptr<Link> plugged = link();
  if (!plugged) return;
  plugged->set_queue_pair(nullptr);
  domain().remove_peer(own_regions_);
  watches_.unwatch(*plugged);
}

QueuePairOffer ReliableQueuePair::offer() {
  QueuePairOffer out{};
  out.qp_num = qp_num;
  memory_.describe(out);
  if (!AsymmetricBarrier::register_process()) out.flags |= kOfferNeedsFullFence;
  if (srq != nullptr) out.flags |= kOfferUsesSrq;
  return out;
}

Status ReliableQueuePair::attach(const QueuePairOffer& offer, std::shared_ptr<MappedSegment> peer_segment,
                                 std::shared_ptr<Link> link, Peer peer, std::uint8_t rnr_retry_count) {
  if (quiet_bytes_of(offer) > offer.inbox.arena_bytes) return Error{EPROTO, "peer's inbox: quiet memory"};
  if (Status fits = memory_.check_peers(offer.inbox, peer_segment.get()); !fits) return fits;
  if (Status joined = join(offer, std::move(peer_segment), std::move(link), peer, rnr_retry_count); !joined)
    return joined;
  domain().add_peer(own_regions_);
  if (Status watched = watches_.watch(link_); !watched) {
    fail(IBV_WC_WR_FLUSH_ERR);
    return watched;
  }
  link_->set_queue_pair(this);
  // A wake packet may have been read and dropped before the sink was set.
  on_wake();
  return ok();
}

Status ReliableQueuePair::join(const QueuePairOffer& offer, std::shared_ptr<MappedSegment> peer_segment,
                               std::shared_ptr<Link> link, Peer peer, std::uint8_t rnr_retry_count) {
  const std::lock_guard guard(send_lock_);
  if (state != IBV_QPS_INIT || sends_.is_wired()) return Error{EINVAL, "attach: state"};
  link_ = std::move(link);
  const InboxView peers = memory_.take_peers(offer.inbox, std::move(peer_segment));
  attributes_.store_connection(offer.qp_num, rnr_retry_count);
  Outbox& outbox = sends_.outbox();
  outbox.attach(peers, (offer.flags & kOfferUsesSrq) != 0, peer.process, *link_);
  outbox.fences().begin(peers.producer(),
                        (offer.flags & kOfferNeedsFullFence) != 0 || !AsymmetricBarrier::register_process());
  sends_.regions().attach(peers, peer.memory_of, quiet_bytes_of(offer));
  receiver_.attach(offer.qp_num);
  if (peer.process.pid > 0) {
    peer_group_.store(std::uint64_t{static_cast<std::uint32_t>(peer.process.pid)} << 32 | peer.process.uid,
                      std::memory_order_relaxed);
  }
  stalled_peer_.attach(*link_);
  attributes_.set_state(IBV_QPS_RTS);
  sends_.note_wired();
  return ok();
}

void ReliableQueuePair::abandon() {
  withdraw_memory();
  memory_.abandon();
}

void ReliableQueuePair::take_over() {
  if (own_regions_.are_of_other_process()) domain().renew(own_regions_);
}

std::shared_ptr<Link> ReliableQueuePair::link() {
  const std::lock_guard guard(send_lock_);
  return link_;
}

PeerProcess ReliableQueuePair::peer_process() {
  const std::lock_guard guard(send_lock_);
  return sends_.outbox().process();
}

bool ReliableQueuePair::may_peer_map() {
  const std::lock_guard guard(send_lock_);
  return sends_.regions().has_process();
}

void ReliableQueuePair::fail(ibv_wc_status first) {
  const std::lock_guard guard(send_lock_);
  sends_.fail(first);
}

/// The peer's values that are remembered here are not saved: they are read again.
std::optional<verbs::SavedQueuePair> ReliableQueuePair::save() {
  const std::lock_guard guard(send_lock_);
  const bool is_connected = sends_.is_wired() && (state == IBV_QPS_RTS || state == IBV_QPS_ERR);
  if (!is_connected || !sends_.is_empty() || !receiver_.can_be_saved()) return std::nullopt;
  verbs::SavedQueuePair saved{};
  sends_.outbox().save(saved);
  receiver_.save(saved);
  saved.failed = state == IBV_QPS_ERR;
  return saved;
}

Status ReliableQueuePair::restore(const verbs::SavedQueuePair& saved) {
  const std::lock_guard guard(send_lock_);
  if (!sends_.is_wired() || !sends_.is_empty()) return Error{EINVAL, "restore: state"};
  if (Status restored = receiver_.restore(saved); !restored) return restored;
  send_queue().forget_completions(qp_num);  // the other process has polled its copies of them
  sends_.outbox().restore(saved);
  if (saved.failed != 0) sends_.fail(IBV_WC_WR_FLUSH_ERR);
  return ok();
}

bool ReliableQueuePair::is_untouched_since(const verbs::SavedQueuePair& saved) {
  const std::lock_guard guard(send_lock_);
  return sends_.is_wired() && sends_.outbox().is_untouched_since(saved) && receiver_.is_untouched_since(saved);
}

Status ReliableQueuePair::modify(ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_STATE) != 0 && attr.qp_state == IBV_QPS_RESET) {
    unplug();
    // No thread polls a detached queue pair, so this thread owns the receive side.
    detach_from_queues();
    receiver_.reset();
    attach_to_queues();
    const std::lock_guard guard(send_lock_);
    sends_.reset();
    receive_end_.forget();
    return ok();
  }
  const std::lock_guard guard(send_lock_);
  if (Status allowed = attributes_.check(attr, mask); !allowed) return allowed;
  attributes_.store(attr, mask);
  if ((mask & IBV_QP_STATE) == 0) return ok();
  if (attr.qp_state == IBV_QPS_ERR) {
    // The peer's next message rings, so that it learns at once that nobody will see it.
    inbox_.doorbell().armed.store(kArmedForAny);
    sends_.fail(IBV_WC_WR_FLUSH_ERR);
    return ok();
  }
  attributes_.set_state(attr.qp_state);
  sends_.follow_state();
  return ok();
}

void ReliableQueuePair::query(ibv_qp_attr& attr) {
  const std::lock_guard guard(send_lock_);
  attr = attributes_.all();
  attr.cap = init_attr_.cap;
}

void ReliableQueuePair::push_sends() {
  if (!sends_.has_queued()) return;
  const std::lock_guard guard(send_lock_);
  if (state == IBV_QPS_RTS || state == IBV_QPS_SQD) sends_.progress();
}

bool ReliableQueuePair::arm(CompletionQueue& queue, ArmKind kind) {
  bool needs_barrier = false;
  if (&queue == &receive_queue()) {
    receiver_.note_arming();
    needs_barrier = arming_.arm(kind);
  }
  if (!sends_.has_queued()) return needs_barrier;
  const std::lock_guard guard(send_lock_);
  if (!sends_.is_wired() || sends_.is_empty()) return needs_barrier;
  sends_.outbox().wait();
  return true;
}

void ReliableQueuePair::on_wake() {
  push_sends();
  if (sends_.has_queued()) {
    // The doorbell was for the sends, of which some still cannot continue: asks to be woken again.
    {
      const std::lock_guard guard(send_lock_);
      if (sends_.is_wired()) sends_.outbox().wait();
    }
    AsymmetricBarrier::heavy_now();
    push_sends();
  }
  arming_.rung();
}

void ReliableQueuePair::on_packet(LinkPacket type, std::span<const std::byte> /*bytes*/, PassedFd memory) {
  if (type == LinkPacket::want_ready_map) return arming_.pass_map(stalled_peer_.link());
  if (type == LinkPacket::ready_map && memory) sends_.outbox().enter_map(std::move(memory));
}

void ReliableQueuePair::on_peer_gone() {
  const std::lock_guard guard(send_lock_);
  if (state == IBV_QPS_ERR || state == IBV_QPS_RESET) return;
  // A peer whose queue pair failed or was reset has set `closed`.
  if (!sends_.outbox().is_closed())
    receive_end_.note_cause(sends_.outbox().has_rung_in_vain() ? verbs::kVendorErrPeerEndedAsleep
                                                               : verbs::kVendorErrPeerEnded);
  sends_.fail_for_peer();
}

Result<MemoryRegion*> ReliableQueuePair::start_in_init(std::size_t arena_bytes) {
  attributes_.set_state(IBV_QPS_INIT);
  if (arena_bytes == 0) return nullptr;
  // Quiet memory is at the end of the arena, with whole pages.
  if (memory_.quiet_bytes() != 0) arena_bytes = inbox_.arena_bytes;
  auto region = domain().add_region(device_.keys(), inbox_.arena(), arena_bytes,
                                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &own_regions_);
  if (region) own_regions_.note_arena_registered();
  return region;
}

RcWiring& wiring_of(ibv_qp& qp) { return static_cast<ReliableQueuePair&>(static_cast<QueuePair&>(qp)); }

Result<RcQueuePair> create_rc_queue_pair(DeviceContext& device, ibv_pd& pd, ibv_qp_init_attr& attr, ArenaBytes arena,
                                         const SpareRoom* from_peer, std::optional<SegmentPeer> peer) {
  auto made = ReliableQueuePair::create(device, pd, attr, arena, from_peer, peer);
  if (!made) return made.error();
  auto region = (*made)->start_in_init(arena.all);
  if (!region) return region.error();
  const RcQueuePair out{made->get(), *region != nullptr ? (*region)->addr : nullptr, *region};
  static_cast<void>(std::move(*made).release());
  return out;
}

void ReliableQueuePair::add_hot_lines(HotLines& lines) {
  lines.add(static_cast<const ibv_qp*>(this), &recv_cq);
  lines.add(receiver_.hot_members(), &attributes_);
  lines.add(&inbox_.doorbell(), &inbox_.doorbell());
  const std::lock_guard guard(send_lock_);
  if (sends_.is_wired()) sends_.outbox().add_hot_lines(lines);
}

}  // namespace ringsock::soft
