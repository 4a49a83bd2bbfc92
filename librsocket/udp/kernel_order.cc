#include "librsocket/udp/kernel_order.h"

#include <algorithm>
#include <utility>

#include "core/base/socket_memory.h"

namespace ringsock::rs {

namespace {

/// Returns whether a datagram comes behind kernel datagrams that have not come yet. The numbers wrap.
bool is_behind(std::uint32_t after_kernel, std::uint32_t from_kernel) {
  return static_cast<std::int32_t>(after_kernel - from_kernel) > 0;
}

/// Returns whether the ring's oldest datagram comes behind some of the kernel's that have not come yet.
bool waits(const KernelOrder::Ring& ring) { return ring.awaited != 0 && is_behind(ring.awaited, ring.from_kernel); }

}  // namespace

void KernelOrder::begin(int fd) {
  note_losses(fd);
  lost_ = 0;
}

/// Takes note of the datagrams that the kernel's socket has lost since the last call. Whose they were it does not tell.
void KernelOrder::note_losses(int fd) {
  const auto memory = socket_memory(fd);
  if (!memory) return;
  const std::uint32_t drops = (*memory)[SK_MEMINFO_DROPS];
  lost_ += drops - std::exchange(drops_, drops);
}

std::optional<soft::ParsedDatagram> KernelOrder::next_of(Ring& ring) {
  const auto front = ring.reader.front();
  if (!front || !*front || is_behind((*front)->header.imm_data, ring.from_kernel)) return std::nullopt;
  return **front;
}

bool KernelOrder::is_turn_of(Ring& ring, const soft::ParsedDatagram& oldest) {
  const std::uint32_t after_kernel = oldest.header.imm_data;
  if (!is_behind(after_kernel, ring.from_kernel)) return true;
  if (std::exchange(ring.awaited, after_kernel) == 0) ring.waits_since = Nanos::zero();
  waits_ = true;
  return false;
}

void KernelOrder::next_is(Rings& rings, const OfKernel& next) {
  if (is_behind(next.drops, drops_)) lost_ += next.drops - std::exchange(drops_, next.drops);
  for (Ring& ring : rings.rings()) {
    if (!(ring.source == next.source)) continue;
    end_waits(rings, ring, next.place);
    const std::uint32_t number = soft::number_behind(ring.from_kernel, next.place, lost_, rings.rings().size() == 1);
    if (is_behind(number, ring.from_kernel + 1)) advance(ring, number - 1);
  }
}

/// The kernel's datagrams of the ring's sender up to that number have come, or are lost.
void KernelOrder::advance(Ring& ring, std::uint32_t number) {
  lost_ -= std::min(lost_, number - ring.from_kernel);
  ring.from_kernel = number;
  if (!is_behind(ring.awaited, number)) ring.awaited = 0;
}

/// The kernel's next datagram is of the sender of `next`. Those that the sender's ended rings wait for came before it,
/// or are lost.
void KernelOrder::end_waits(Rings& rings, const Ring& next, soft::Place place) {
  for (Ring& ring : rings.rings()) {
    if (!ring.reader.has_ended()) continue;
    const bool is_before =
        ring.source == next.source ? !soft::is_number(place) : ring.sender == next.sender && ring.serial < next.serial;
    if (!is_before) continue;
    const auto front = ring.reader.front();
    if (front && *front && is_behind((*front)->header.imm_data, ring.from_kernel))
      advance(ring, (*front)->header.imm_data);
  }
}

void KernelOrder::was_taken(Rings& rings, const OfKernel& one) {
  auto& all = rings.rings();
  for (Ring& ring : all) {
    if (!(ring.source == one.source)) continue;
    if (!soft::is_mark(one.place)) {
      ring.from_kernel = soft::number_behind(ring.from_kernel, one.place, 0, false);
      continue;
    }
    ring.from_kernel = ring.awaited = 0;
    ring.reader.tell_mark(static_cast<std::uint32_t>(one.place));
    if (std::none_of(all.begin(), all.end(), waits)) lost_ = std::min(lost_, drops_ - one.drops);
  }
}

/// Returns when the ring stops to wait, where the kernel's socket is empty. Those that it waits for may be among the
/// lost ones. With several senders the lost ones may also be another's.
Nanos KernelOrder::end_of_wait(Rings& rings, Ring& ring, Nanos now) const {
  constexpr Nanos kPatience = std::chrono::milliseconds(20);
  constexpr Nanos kPatienceForLost = std::chrono::milliseconds(1);
  if (ring.waits_since == Nanos::zero()) ring.waits_since = now;
  if (ring.awaited - ring.from_kernel > lost_) return ring.waits_since + kPatience;
  return rings.rings().size() == 1 ? now : ring.waits_since + kPatienceForLost;
}

bool KernelOrder::kernel_is_empty(int fd, Rings& rings) {
  if (!waits_) return false;
  note_losses(fd);
  const Nanos now = monotonic_now();
  bool has_released = false;
  wait_until_ = Nanos::max();
  for (Ring& ring : rings.rings()) {
    if (ring.awaited == 0) continue;
    if (const Nanos end = waits(ring) ? end_of_wait(rings, ring, now) : now; now < end) {
      wait_until_ = std::min(wait_until_, end);
      continue;
    }
    if (waits(ring)) advance(ring, ring.awaited);
    ring.awaited = 0;
    has_released = true;
  }
  return has_released;
}

void KernelOrder::release(Rings& rings) {
  for (Ring& ring : rings.rings()) {
    if (waits(ring)) ring.from_kernel = ring.awaited;
    ring.awaited = 0;
  }
  wait_until_ = Nanos::max();
}

}  // namespace ringsock::rs
