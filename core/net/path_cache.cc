#include "core/net/path_cache.h"

#include <algorithm>
#include <utility>

namespace ringsock::net {

std::optional<Path> PathCache::find(const PathQuery& query) {
  if (const auto found = young_.find(query); found != young_.end()) return found->second.path;
  const auto found = old_.find(query);
  if (found == old_.end()) return std::nullopt;
  const Path path = found->second.path;
  auto node = old_.extract(found);
  make_room();
  young_.insert(std::move(node));
  return path;
}

void PathCache::insert(const PathQuery& query, const Path& path, Nanos expires) {
  old_.erase(query);
  if (!young_.contains(query)) make_room();
  young_.insert_or_assign(query, Entry{path, expires});
  if (expires != Nanos{}) next_expiry_ = next_expiry_ == Nanos{} ? expires : std::min(next_expiry_, expires);
}

void PathCache::make_room() {
  if (young_.size() < half_capacity_) return;
  dropped_ = dropped_ || !old_.empty();
  old_ = std::exchange(young_, {});
}

template <class Condition>
bool PathCache::forget_if(Condition condition) {
  ++changes_;
  const std::size_t forgotten = std::erase_if(young_, condition) + std::erase_if(old_, condition);
  return std::exchange(dropped_, false) || forgotten > 0;
}

bool PathCache::forget_to(const Prefix& destinations) {
  return forget_if([&](const auto& entry) { return destinations.contains(entry.first.destination); });
}

bool PathCache::forget_family(int family) {
  return forget_if(
      [&](const auto& entry) { return family == AF_UNSPEC || entry.first.destination.family() == family; });
}

bool PathCache::forget_expired(Nanos now) {
  if (next_expiry_ == Nanos{} || now < next_expiry_) return false;
  const bool forgotten =
      forget_if([now](const auto& entry) { return entry.second.expires != Nanos{} && entry.second.expires <= now; });
  next_expiry_ = {};
  for (const Half* half : {&young_, &old_}) {
    for (const auto& [query, entry] : *half) {
      if (entry.expires == Nanos{}) continue;
      next_expiry_ = next_expiry_ == Nanos{} ? entry.expires : std::min(next_expiry_, entry.expires);
    }
  }
  return forgotten;
}

}  // namespace ringsock::net
