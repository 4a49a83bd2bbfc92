// The link of a connection id.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <optional>

#include "core/device/shm/cm/link_inbox.h"
#include "core/device/shm/link/link.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/names/port_owner.h"

namespace ringsock::soft {

/// A link, the packets that came on it for the id, and its descriptor, which may be in use when the id has dropped the
/// link. Threads: one at a time.
class IdLink {
 public:
  IdLink() = default;
  /// The link of a connect request.
  IdLink(std::unique_ptr<LinkInbox> inbox, std::shared_ptr<Link> link)
      : inbox_(std::move(inbox)), link_(std::move(link)) {}
  IdLink(const IdLink&) = delete;
  IdLink& operator=(const IdLink&) = delete;
  ~IdLink() { drop(nullptr); }

  /// Makes a link over a connected socket.
  void open(UniqueFd socket, const PeerIdentity& peer);
  /// Leaves the link to the queue pair, if that uses it, and shuts it down then.
  /// @param unused  the segment of a peer that was not accepted yet, null: none
  void drop(MappedSegment* unused);
  /// Has the queue pair, after drop(), learn of the end at once: the id reads the link no more, and an edge-triggered
  /// waiter may have taken the last event of the descriptor. A channel's owner drains by itself.
  void tell_queue_pair();

  explicit operator bool() const { return link_ != nullptr; }
  Link* operator->() const { return link_.get(); }
  [[nodiscard]] const std::shared_ptr<Link>& shared() const { return link_; }
  /// Passes the memory to the peer when it asks (LinkInbox::offer_memory()).
  void offer_memory(std::shared_ptr<const UniqueFd> memfd) { inbox_->offer_memory(std::move(memfd), *link_); }
  void withdraw_memory() { inbox_->withdraw_memory(); }
  [[nodiscard]] bool was_asked_for_memory() { return inbox_->was_asked_for_memory(); }
  std::optional<LinkInbox::Packet> pop() { return inbox_->pop(); }
  /// Returns whether all packets are popped and the peer is gone.
  [[nodiscard]] bool is_finished() { return inbox_->is_finished(); }

  /// From now on the queue pair's completion channels, if it has any, wait on the link and drain it.
  void leave_to_channel_of(const ibv_qp& queue_pair);
  [[nodiscard]] bool is_channels() const { return channel_wakes_us_; }
  /// Returns what an owner that waits for events watches, -1: nothing.
  [[nodiscard]] int event_fd() const { return link_ && !channel_wakes_us_ ? link_->fd() : -1; }
  // verbs::ConnectionId::move_to_descriptor(), adopt_descriptor() and abandon(), also of a dropped link.
  Status move_to(int fd);
  Status adopt(int fd);
  void abandon(bool give_away);

 private:
  [[nodiscard]] std::shared_ptr<Link> with_descriptor() const { return link_ ? link_ : dropped_.lock(); }

  bool channel_wakes_us_ = false;
  std::unique_ptr<LinkInbox> inbox_;  ///< the link's manager, so it outlives the link's use of it
  std::shared_ptr<Link> link_;
  std::weak_ptr<Link> dropped_;  ///< now owned by the queue pair alone; its descriptor is still in use
};

}  // namespace ringsock::soft
