// The packets that a link has received for its connection id.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/mutex.h"
#include "core/device/shm/link/link.h"

namespace ringsock::soft {

/// Keeps a link's packets until their connection id asks for them. Any thread that drains the link delivers packets,
/// often one that polls completions.
class LinkInbox final : public Link::Sink {
 public:
  struct Packet {
    LinkPacket type;
    std::vector<std::byte> bytes;
    PassedFd memory;
  };

  void on_packet(LinkPacket type, std::span<const std::byte> bytes, PassedFd memory) override;
  void on_peer_gone() override;

  /// Passes `memfd` to the peer once when it asks (want_memory), on the thread that drains the link, so that the peer
  /// does not wait for our connection id to be polled. Keeps it until then, until the peer no longer needs it
  /// (memory_taken), or until withdraw_memory(). `link` is the link of this inbox.
  void offer_memory(std::shared_ptr<const UniqueFd> memfd, Link& link);
  void withdraw_memory();
  [[nodiscard]] bool was_asked_for_memory();

  /// Removes and returns the oldest packet.
  std::optional<Packet> pop();
  /// True once all packets are popped and the peer is gone.
  bool is_finished();

 private:
  Mutex lock_;
  std::list<Packet> packets_;
  std::shared_ptr<const UniqueFd> memory_;
  Link* link_ = nullptr;
  bool gone_ = false;
  bool was_asked_ = false;  ///< by want_memory
};

}  // namespace ringsock::soft
