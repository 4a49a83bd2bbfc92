#include "core/device/shm/cm/link_inbox.h"

#include <utility>

namespace ringsock::soft {

void LinkInbox::on_packet(LinkPacket type, std::span<const std::byte> bytes, PassedFd memory) {
  // A connection needs a request, a reply or reject, memory, a disconnect. Further packets are dropped.
  constexpr std::size_t kMaxPackets = 4;
  std::lock_guard guard(lock_);
  if (type == LinkPacket::want_memory || type == LinkPacket::memory_taken) {
    was_asked_ = was_asked_ || type == LinkPacket::want_memory;
    const auto memfd = std::exchange(memory_, nullptr);
    // A peer that does not get the memory gives up.
    if (memfd && type == LinkPacket::want_memory) static_cast<void>(link_->send(LinkPacket::memory, {}, memfd->get()));
    return;
  }
  if (packets_.size() >= kMaxPackets) return;
  packets_.push_back({type, {bytes.begin(), bytes.end()}, std::move(memory)});
}

void LinkInbox::offer_memory(std::shared_ptr<const UniqueFd> memfd, Link& link) {
  std::lock_guard guard(lock_);
  memory_ = std::move(memfd);
  link_ = &link;
}

void LinkInbox::withdraw_memory() {
  std::lock_guard guard(lock_);
  memory_.reset();
}

bool LinkInbox::was_asked_for_memory() {
  std::lock_guard guard(lock_);
  return was_asked_;
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
