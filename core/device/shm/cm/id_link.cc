#include "core/device/shm/cm/id_link.h"

#include <cerrno>

namespace ringsock::soft {

void IdLink::open(UniqueFd socket, const PeerIdentity& peer) {
  inbox_ = std::make_unique<LinkInbox>();
  link_ = std::make_shared<Link>(std::move(socket));
  if (peer.same_user) {
    link_->trust_peer();
  } else {
    link_->set_stranger(peer.uid);
  }
  link_->set_manager(inbox_.get());
}

void IdLink::drop(MappedSegment* unused) {
  if (!link_) return;
  link_->set_manager(nullptr);
  // A client that died before it was accepted has no next connection.
  if (unused != nullptr) {
    link_->drain();
    if (link_->peer_gone()) unused->forget_peer();
  }
  // While a queue pair also holds the link, the peer would not notice the close, so the link is shut down. Otherwise it
  // is only closed: a forked child may go on with its copy of the connection.
  if (link_.use_count() > 1) {
    link_->hang_up();
    dropped_ = link_;
  }
  link_.reset();
}

void IdLink::tell_queue_pair() {
  if (channel_wakes_us_) return;
  if (const auto link = dropped_.lock()) link->drain();
}

void IdLink::leave_to_channel_of(const ibv_qp& queue_pair) {
  const auto has_channel = [](const ibv_cq* cq) { return cq != nullptr && cq->channel != nullptr; };
  channel_wakes_us_ = has_channel(queue_pair.recv_cq) || has_channel(queue_pair.send_cq);
}

Status IdLink::move_to(int fd) {
  const auto link = with_descriptor();
  if (!link || channel_wakes_us_) return Error{EINVAL, "move_to_descriptor: state"};
  return link->move_to(fd);
}

Status IdLink::adopt(int fd) {
  const auto link = with_descriptor();
  if (!link || channel_wakes_us_) return Error{EINVAL, "adopt_descriptor: state"};
  link->adopt(fd);
  return ok();
}

void IdLink::abandon(bool give_away) {
  if (const auto link = with_descriptor()) link->abandon(give_away);
}

}  // namespace ringsock::soft
