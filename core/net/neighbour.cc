#include "core/net/neighbour.h"

namespace ringsock::net {

namespace {

constexpr unsigned kStateShift = 48;

std::uint64_t pack(const NeighbourFacts& facts) {
  std::uint64_t packed = static_cast<std::uint64_t>(facts.state);
  for (const std::uint8_t byte : facts.mac) packed = packed << 8 | byte;
  return packed;
}

NeighbourFacts unpack(std::uint64_t packed) {
  NeighbourFacts facts;
  facts.state = static_cast<NeighbourState>(packed >> kStateShift);
  for (std::size_t i = facts.mac.size(); i-- > 0; packed >>= 8) facts.mac[i] = static_cast<std::uint8_t>(packed);
  return facts;
}

}  // namespace

Neighbour::Neighbour(int ifindex, const IpAddress& address, const NeighbourFacts& facts)
    : ifindex_(ifindex), address_(address), packed_(pack(facts)) {}

NeighbourFacts Neighbour::facts() const noexcept { return unpack(packed_.load(std::memory_order_relaxed)); }

bool Neighbour::begin_use() noexcept {
  // Stored before the state is loaded, as update() stores the state before the use is taken: one of the two sees the
  // other.
  in_use_.exchange(true, std::memory_order_seq_cst);
  return unpack(packed_.load(std::memory_order_seq_cst)).state == NeighbourState::stale;
}

bool Neighbour::update(const NeighbourFacts& facts) noexcept {
  const NeighbourFacts before = unpack(packed_.exchange(pack(facts), std::memory_order_seq_cst));
  is_known_.store(true, std::memory_order_release);
  if (before.is_usable() != facts.is_usable()) return true;
  if (facts.is_usable()) return before.mac != facts.mac;
  return (before.state == NeighbourState::failed) != (facts.state == NeighbourState::failed);
}

}  // namespace ringsock::net
