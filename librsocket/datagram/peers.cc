#include "librsocket/datagram/peers.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "librsocket/datagram/lane.h"

namespace ringsock::rs {

namespace {
template <class T>
std::size_t hash_of(const T& bytes) {
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&bytes), sizeof bytes});
}
}  // namespace

void Peer::forget_path() {
  search.reset();
  if (ah && lane != nullptr) lane->retire(std::exchange(ah, {}));
}

std::size_t Peers::Hash::operator()(const SocketAddress& address) const noexcept {
  const std::size_t host =
      address.family() == AF_INET ? hash_of(address.in4().sin_addr) : hash_of(address.in6().sin6_addr);
  return host ^ (std::size_t{address.port()} * 0x9e3779b97f4a7c15U);
}

Peer* Peers::find(const SocketAddress& address) {
  if (!order_.empty() && order_.front().address == address) return &order_.front();
  const auto found = places_.find(address);
  if (found == places_.end()) return nullptr;
  order_.splice(order_.begin(), order_, found->second);
  return &order_.front();
}

Peer* Peers::find_without_scope(const SocketAddress& address) {
  const auto found = std::find_if(order_.begin(), order_.end(), [&](const Peer& peer) {
    return peer.address.family() == AF_INET6 && peer.address.port() == address.port() &&
           IN6_ARE_ADDR_EQUAL(&peer.address.in6().sin6_addr, &address.in6().sin6_addr);
  });
  return found == order_.end() ? nullptr : &*found;
}

Peer& Peers::add(const SocketAddress& address) {
  if (order_.size() >= kMost) {
    places_.erase(order_.back().address);
    order_.pop_back();
  }
  order_.emplace_front().address = address;
  places_[address] = order_.begin();
  return order_.front();
}

void Peers::clear() {
  places_.clear();
  order_.clear();
}

bool QuestionBudget::take(Nanos now) {
  if (second_ == Nanos::min() || now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    asked_ = 0;
  }
  return asked_++ < kPerSecond;
}

}  // namespace ringsock::rs
