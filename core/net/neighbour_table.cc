#include "core/net/neighbour_table.h"

#include <algorithm>

namespace ringsock::net {

std::shared_ptr<Neighbour> NeighbourTable::find(int ifindex, const IpAddress& address) const {
  const auto found = entries_.find({ifindex, address});
  return found == entries_.end() ? nullptr : found->second;
}

std::shared_ptr<Neighbour> NeighbourTable::add(int ifindex, const IpAddress& address) {
  if (entries_.size() >= drop_above_) drop_unused();
  auto& entry = entries_[{ifindex, address}];
  if (!entry) entry = std::make_shared<Neighbour>(ifindex, address);
  return entry;
}

NeighbourTable::Update NeighbourTable::update(int ifindex, const IpAddress& address, const NeighbourFacts& facts) {
  Update out{find(ifindex, address)};
  if (!out.neighbour) return out;
  ++updates_;
  out.matters = out.neighbour->update(facts);
  out.refresh = facts.state == NeighbourState::stale && out.neighbour->take_use();
  return out;
}

std::vector<std::shared_ptr<Neighbour>> NeighbourTable::all() const {
  std::vector<std::shared_ptr<Neighbour>> out;
  out.reserve(entries_.size());
  for (const auto& [key, neighbour] : entries_) out.push_back(neighbour);
  return out;
}

void NeighbourTable::drop_unused() {
  std::erase_if(entries_, [](const auto& entry) { return entry.second.use_count() == 1; });
  drop_above_ = std::max(kAlwaysKept, 2 * entries_.size());
}

}  // namespace ringsock::net
