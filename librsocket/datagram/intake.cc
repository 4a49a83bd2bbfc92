#include "librsocket/datagram/intake.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/refusals.h"

namespace ringsock::rs {

namespace {

/// One byte more than the largest rendezvous packet, to see longer ones.
constexpr std::size_t kPacketBytes = sizeof(wire::RsUdpHeader6) + wire::kMaxRsLarge + 1;

bool is_link_local(const SocketAddress& address) {
  return address.family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address.in6().sin6_addr);
}

}  // namespace

void Intake::look(Nanos now) {
  look_once(now, Looks::closely);
  if (!from_lane_.empty()) look_once(now, Looks::at_what_was_left);
}

void Intake::look_while_waiting(Nanos now) {
  if (lane_is_used_ && !is_woken_ && ++looks_of_waiting_ % kLooksOfWaiting != 0) {
    take_from_lanes(now);
    if (from_lane_.empty()) return;
  }
  is_woken_ = false;
  look(now);
}

void Intake::look_once(Nanos now, Looks looks) {
  // A look at the kernel's socket costs as much as many at the queue pair that has rings.
  constexpr int kLooksAtLane = 8;
  for (int i = 0; i < (lane_is_used_ ? kLooksAtLane : 1) && from_lane_.empty(); ++i) take_from_lanes(now);
  const std::size_t before_kernel = from_lane_.size();
  const bool has_switched = has_switched_to_lane();
  if (has_switched || before_kernel == 0 || ++looks_ % kLooksPerKernelLook == 0)
    take_from_kernel(has_switched ? kMostPacketsBeforeLane : kPacketsAtOnce);
  if (from_lane_.empty() && from_kernel_.empty()) return;
  lane_is_used_ = !from_lane_.empty();
  // A packet may tell of a new ring.
  if (!from_kernel_.empty()) {
    for (const auto& lane : core_.lanes) lane->look_closely();
  }
  // A packet of a peer that used the queue pair was sent after all that is there.
  if (looks == Looks::closely && has_packets_of_lane_users()) take_from_lanes(now);
  serve_packets(false, now);
  deliver_from_lane(before_kernel, now);
  serve_packets(true, now);
  from_kernel_.clear();
}

bool Intake::has_packets_of_lane_users() {
  return std::any_of(from_kernel_.begin(), from_kernel_.end(), [this](const FromKernel& packet) {
    const Peer* const peer = core_.peers.find(packet.from);
    return peer != nullptr && peer->has_come_by_queue_pair;
  });
}

void Intake::take_from_lanes(Nanos now) {
  for (const auto& lane : core_.lanes) take_from(*lane, now);
}

void Intake::take_from(Lane& lane, Nanos now) {
  std::array<Lane::Came, 16> came;
  for (std::size_t got = came.size(); got == came.size();) {
    got = lane.poll(came);
    for (const Lane::Came& one : std::span(came).first(got)) {
      const bool is_piece = !lane.is_embedded() && wire::is_rs_fragment(one.bytes);
      if (is_piece ? take_piece(lane, one, now) : take_datagram(lane, one)) continue;
      count_refusal(Refusal::datagram);
      lane.give_back(one.slot);
    }
  }
}

bool Intake::take_datagram(Lane& lane, const Lane::Came& came) {
  const auto parsed = wire::parse_rs_ud(came.bytes);
  if (!parsed || came.bytes.size() > lane.most_bytes()) return false;
  from_lane_.push_back({&lane, came.slot, came.from, with_scope(parsed->source), parsed->payload, nullptr});
  return true;
}

/// Only a peer whose number is known has been told that it may send pieces.
bool Intake::take_piece(Lane& lane, const Lane::Came& came, Nanos now) {
  auto parsed = wire::parse_rs_fragment(came.bytes);
  if (!parsed) return false;
  parsed->source = with_scope(parsed->source);
  const Peer* const peer = core_.peers.find(parsed->source);
  if (peer == nullptr || peer->lane != &lane || !peer->is_known || peer->qp_number != came.from) return false;
  auto whole = core_.pieces.add(*parsed, came.from, now);
  lane.give_back(came.slot);
  if (!whole) return true;
  const std::span<const std::byte> bytes(whole->memory.get(), whole->bytes);
  from_lane_.push_back({&lane, 0, came.from, parsed->source, bytes, std::move(whole->memory)});
  return true;
}

/// The header has no scope; the rendezvous had.
SocketAddress Intake::with_scope(const SocketAddress& source) {
  if (!is_link_local(source)) return source;
  const Peer* const known = core_.peers.find_without_scope(source);
  return known != nullptr ? known->address : source;
}

/// Returns whether a peer that used the kernel now uses the queue pair: what it sent before by the kernel comes first.
bool Intake::has_switched_to_lane() {
  return std::any_of(from_lane_.begin(), from_lane_.end(), [this](const FromLane& one) {
    const Peer* const peer = core_.peers.find(one.source);
    return peer != nullptr && !peer->has_come_by_queue_pair;
  });
}

void Intake::take_from_kernel(std::size_t most) {
  // Only as much of it becomes memory as packets are long.
  if (!packet_room_) packet_room_.reset(new std::byte[kPacketBytes]);
  const std::span<std::byte> buffer(packet_room_.get(), kPacketBytes);
  for (std::size_t i = 0; i < most; ++i) {
    const auto packet = core_.port.receive(buffer);
    if (!packet && packet.error().code == EAGAIN) return;
    if (!packet) {
      if (core_.is_connected()) core_.pending_error = packet.error().code;
      continue;
    }
    take_packet(buffer.first(std::min(packet->bytes, buffer.size())), *packet);
  }
}

void Intake::take_packet(std::span<const std::byte> bytes, const UdpPort::Packet& packet) {
  const auto parsed = wire::parse_rs_udp(bytes, packet.from);
  const SocketAddress from = packet.from.unmapped();
  const std::size_t most =
      parsed && parsed->note.takes_large ? wire::kMaxRsLarge : wire::max_rs_datagram(from.family());
  if (!parsed || parsed->payload.size() > most) return count_refusal(Refusal::datagram);
  FromKernel out{from, packet.to, parsed->op, parsed->note, parsed->qp_number, nullptr, parsed->payload.size(), false};
  out.payload = std::make_unique<std::byte[]>(parsed->payload.size() + 1);
  if (out.bytes != 0) std::memcpy(out.payload.get(), parsed->payload.data(), out.bytes);
  from_kernel_.push_back(std::move(out));
}

void Intake::serve_packets(bool of_lane_users, Nanos now) {
  for (FromKernel& packet : from_kernel_) {
    if (packet.is_done) continue;
    const Peer* const peer = core_.peers.find(packet.from);
    const bool is_lane_user = peer != nullptr && peer->has_come_by_queue_pair;
    if (is_lane_user && !of_lane_users) continue;
    packet.is_done = true;
    serve(packet, now);
  }
}

void Intake::serve(FromKernel& packet, Nanos now) {
  if (packet.op == wire::RsUdpOp::control) return serve_control(packet, now);
  auto peer = core_.peer_at(packet.from, packet.to);
  if (peer) {
    (*peer)->has_come_by_queue_pair = false;
    answer(**peer, packet, now);
  }
  const std::span<const std::byte> bytes(packet.payload.get(), packet.bytes);
  if (is_wanted(packet.from)) add({packet.from, bytes, {}, std::move(packet.payload)});
}

/// A ringsock on a real device asks, now and then, whether this socket still has its number.
void Intake::serve_control(const FromKernel& packet, Nanos now) {
  if (!packet.note.asks) return learn_answer(core_.peers.find(packet.from), packet, now);
  auto peer = core_.peer_at(packet.from, packet.to);
  if (peer) answer(**peer, packet, now);
}

/// Only a peer that was asked answers. One that we know tells of a new ring.
void Intake::learn_answer(Peer* peer, const FromKernel& packet, Nanos now) {
  const bool is_known = peer != nullptr && peer->is_known && peer->qp_number == packet.qp_number;
  if (peer == nullptr || (!peer->was_asked && !is_known)) return count_refusal(Refusal::datagram);
  if (!peer->lane->understands(packet.note) || !may_exchange(*peer, packet.qp_number, now)) return;
  const bool was_asked = std::exchange(peer->was_asked, false);
  peer->learn(packet.qp_number, now, packet.note);
  peer->has_answered = peer->has_answered || was_asked;
  if (peer->lane->open_ring(peer->qp_number)) core_.tell_number(*peer, {});
}

/// A peer that may exchange datagrams with us is told our number, in each look in which it asks.
void Intake::answer(Peer& peer, const FromKernel& packet, Nanos now) {
  if (!packet.to.is_unspecified() && !(packet.to.is_wildcard())) {
    SocketAddress local = packet.to;
    local.set_port(peer.local.port());
    if (!(local == peer.local)) core_.set_local(peer, local);
  }
  // The number is of one of the processes that read the port; what goes by the kernel reaches any of them.
  if (packet.note.is_shared) {
    peer.is_known = false;
    return;
  }
  if (!peer.lane->understands(packet.note) || !may_exchange(peer, packet.qp_number, now)) return;
  // Once for all packets of a look: a sender that does not know the number yet sends one after the other.
  if (peer.is_known && peer.qp_number == packet.qp_number && peer.answered == now) return;
  peer.learn(packet.qp_number, now, packet.note);
  if (packet.note.knows) return;
  peer.answered = now;
  peer.lane->open_ring(peer.qp_number);
  core_.tell_number(peer, {});
}

/// Whose the port is, is asked once for each number: behind a new number may be another process.
bool Intake::may_exchange(Peer& peer, std::uint32_t qp_number, Nanos now) {
  if (peer.is_known && peer.qp_number == qp_number) return true;
  peer.is_known = false;
  if (now < peer.ask_kernel_again) return false;
  if (!peer.lane->is_embedded()) return true;
  constexpr Nanos kAfterNo = std::chrono::seconds(10);
  constexpr Nanos kAfterTooMany = std::chrono::seconds(1);
  if (!core_.questions.take(now)) {
    peer.ask_kernel_again = now + kAfterTooMany;
    return false;
  }
  const bool may = peer.lane->device().ud().may_exchange(peer.local, peer.address);
  if (!may) peer.ask_kernel_again = now + kAfterNo;
  return may;
}

/// Leaves the first ones of a peer that have come since the kernel was looked at: what it sent before may be there.
/// @param before_kernel  how many had come before
void Intake::deliver_from_lane(std::size_t before_kernel, Nanos now) {
  std::size_t left = 0;
  for (std::size_t i = 0; i < from_lane_.size(); ++i) {
    FromLane& one = from_lane_[i];
    const Peer* const peer = core_.peers.find(one.source);
    if (i >= before_kernel && peer != nullptr && !peer->has_come_by_queue_pair) {
      if (left != i) from_lane_[left] = std::move(one);
      ++left;
      continue;
    }
    note_source(one, now);
    deliver(one);
  }
  from_lane_.resize(left);
}

/// A real device has some slots beside those that the receive buffer has room for, so that losses can be counted.
void Intake::deliver(FromLane& one) {
  if (!is_wanted(one.source)) {
    if (!one.own) one.lane->give_back(one.slot);
  } else if (one.own) {
    add({one.source, one.payload, {}, std::move(one.own)});
  } else if (one.lane->is_embedded() || core_.arrivals.slots() < core_.sizes.receives) {
    add({one.source, one.payload, {one.lane, one.slot}, nullptr});
  } else {
    count_refusal(Refusal::receive_buffer);
    one.lane->give_back(one.slot);
  }
}

void Intake::note_source(const FromLane& one, Nanos now) {
  Peer* const peer = core_.peers.find(one.source);
  if (peer == nullptr) return;
  peer->has_come_by_queue_pair = true;
  if (peer->is_known && peer->qp_number == one.from) peer->known_since = now;
}

bool Intake::is_wanted(const SocketAddress& source) const {
  return !core_.read_shut && (!core_.is_connected() || source == core_.peer);
}

void Intake::add(Arrival arrival) {
  if (core_.arrivals.add(std::move(arrival))) {
    has_news_ = true;
    core_.elders.clear();  // this process reads
  } else {
    count_refusal(Refusal::receive_buffer);
  }
}

void Intake::drop_oldest() {
  if (const auto slot = core_.arrivals.pop(); slot && slot->lane != nullptr) slot->lane->give_back(slot->number);
}

}  // namespace ringsock::rs
