#include "libvmacompat/tcp/short_lives.h"

#include <netinet/in.h>

#include <algorithm>
#include <span>

#include "core/base/at_fork.h"

namespace ringsock::vma {

void Exchange::count(Direction direction, ssize_t bytes) {
  if (bytes <= 0) return;
  const auto add = [](auto& to, auto more) {
    to.store(to.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  };
  const Direction last = last_.load(std::memory_order_relaxed);
  if (last != direction) {
    last_.store(direction, std::memory_order_relaxed);
    if (last != Direction::none) add(turns_, 1U);
    since_turn_.store(0, std::memory_order_relaxed);
  }
  add(calls_, 1U);
  add(bytes_, static_cast<std::uint64_t>(bytes));
  add(since_turn_, static_cast<std::uint64_t>(bytes));
}

bool Exchange::lasts(Nanos now) const {
  return turns_.load(std::memory_order_relaxed) >= kTurns || calls_.load(std::memory_order_relaxed) >= kCalls ||
         bytes_.load(std::memory_order_relaxed) >= kBytes || now - began_.load(std::memory_order_relaxed) >= kAge;
}

ShortLives& short_lives() { return process_state<ShortLives>(); }

/// FNV-1a.
ShortLives::Place ShortLives::place_of(const SocketAddress& address) {
  Place out = 0xcbf2'9ce4'8422'2325;
  const auto add = [&out](std::span<const std::byte> bytes) {
    for (const std::byte one : bytes) out = (out ^ std::to_integer<Place>(one)) * 0x100'0000'01b3;
  };
  const std::uint16_t port = address.port();
  add(std::as_bytes(std::span(&port, 1)));
  if (address.family() == AF_INET6)
    add(std::as_bytes(std::span(&address.in6().sin6_addr, 1)));
  else
    add(std::as_bytes(std::span(&address.in4().sin_addr, 1)));
  return out;
}

std::uint32_t ShortLives::known(Place place, Nanos now) const {
  const Slot& slot = slots_[place % kSlots];
  const bool is_known =
      slot.place.load(std::memory_order_relaxed) == place && now - slot.noted.load(std::memory_order_relaxed) < kMemory;
  return is_known ? slot.lives.load(std::memory_order_relaxed) : 0;
}

void ShortLives::keep(Place place, std::uint32_t lives, Nanos now) {
  Slot& slot = slots_[place % kSlots];
  slot.place.store(place, std::memory_order_relaxed);
  slot.lives.store(lives, std::memory_order_relaxed);
  slot.noted.store(now, std::memory_order_relaxed);
}

bool ShortLives::are_expected(Place place, Nanos now) const { return known(place, now) >= kEnough; }

bool ShortLives::is_first_of_process() const { return fork_generation() != moved_in_.load(std::memory_order_relaxed); }

void ShortLives::expect_no_short_process() { moved_in_.store(fork_generation(), std::memory_order_relaxed); }

void ShortLives::note_short(Place place, Nanos now) { keep(place, std::min(known(place, now) + 1, kMost), now); }

void ShortLives::note_long(Place place, Nanos now) {
  if (const std::uint32_t lives = known(place, now)) keep(place, lives / 2, now);
}

}  // namespace ringsock::vma
