#include "core/device/soft/cm/link_inbox.h"

#include <algorithm>
#include <iterator>

namespace ringsock::soft {

void LinkInbox::on_packet(LinkPacket type, std::span<const std::byte> bytes, std::span<UniqueFd> fds) {
  // A request, a reply or reject, a disconnect: a peer that sends more gets its descriptors closed and is not heard.
  constexpr std::size_t kMaxPackets = 4;
  std::lock_guard guard(lock_);
  if (packets_.size() >= kMaxPackets) return;
  Packet packet{type, {bytes.begin(), bytes.end()}, {}};
  std::move(fds.begin(), fds.end(), std::back_inserter(packet.fds));
  packets_.push_back(std::move(packet));
}

void LinkInbox::on_peer_gone() {
  std::lock_guard guard(lock_);
  gone_ = true;
}

std::optional<LinkInbox::Packet> LinkInbox::pop() {
  std::lock_guard guard(lock_);
  if (packets_.empty()) return std::nullopt;
  Packet out = std::move(packets_.front());
  packets_.pop_front();
  return out;
}

bool LinkInbox::is_finished() {
  std::lock_guard guard(lock_);
  return gone_ && packets_.empty();
}

}  // namespace ringsock::soft
