// What a link has brought for its connection id.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/mutex.h"
#include "core/device/soft/link.h"

namespace ringsock::soft {

/// Keeps a link's packets until their connection id asks. The packets come from whichever thread drains the link, often
/// one that polls completions.
class LinkInbox final : public Link::Sink {
 public:
  struct Packet {
    LinkPacket type;
    std::vector<std::byte> bytes;
    PassedFd memory;
  };

  void on_packet(LinkPacket type, std::span<const std::byte> bytes, PassedFd memory) override;
  void on_peer_gone() override;

  /// Passes `memfd` to the peer when it asks (want_memory), once, from whichever thread drains the link, so that the
  /// peer does not wait for our connection id to be looked at. Keeps it until then, until the peer needs it no more
  /// (memory_taken), or withdraw_memory(). `link` is this inbox's.
  void offer_memory(std::shared_ptr<const UniqueFd> memfd, Link& link);
  void withdraw_memory();

  /// The oldest packet.
  std::optional<Packet> pop();
  /// True once all packets are popped and the peer is gone.
  bool is_finished();

 private:
  Mutex lock_;
  std::deque<Packet> packets_;
  std::shared_ptr<const UniqueFd> memory_;
  Link* link_ = nullptr;
  bool gone_ = false;
};

}  // namespace ringsock::soft
