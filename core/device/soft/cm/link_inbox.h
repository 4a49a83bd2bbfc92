// What a link has brought for its connection id.
#pragma once

#include <deque>
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
    std::vector<UniqueFd> fds;
  };

  void on_packet(LinkPacket type, std::span<const std::byte> bytes, std::span<UniqueFd> fds) override;
  void on_peer_gone() override;

  /// The oldest packet.
  std::optional<Packet> pop();
  /// True once all packets are popped and the peer is gone.
  bool is_finished();

 private:
  Mutex lock_;
  std::deque<Packet> packets_;
  bool gone_ = false;
};

}  // namespace ringsock::soft
