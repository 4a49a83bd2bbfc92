// The active side of a connection, from the search for a listener to its answer.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "core/device/shm/cm/cm_wire.h"
#include "core/device/shm/cm/expected_accepter.h"
#include "core/device/shm/cm/id_link.h"
#include "core/device/shm/cm/listener_search.h"
#include "core/device/shm/cm/peer_segment.h"

namespace ringsock::soft {

/// Connects, sends the request, and attaches the queue pair by the reply. Threads: one at a time.
class ActiveSide {
 public:
  enum class Stage {
    searching,  ///< perhaps the listener's backlog is full
    awaiting_reply,
    awaiting_memory,  ///< the reply has arrived and names memory that the peer was asked to pass
    established,
    failed,
  };

  /// @param link  of the id, which is opened and, when the connection fails, dropped
  ActiveSide(SilentPorts& silent_ports, IdLink& link, verbs::PortSpace space, ConnectTimes times)
      : link_(link), space_(space), search_(silent_ports, space, times) {}

  void have_other_way(Nanos patience) { search_.have_other_way(patience); }
  /// Ends a connect that is under way, with ETIMEDOUT, unless its answer is found by the next work().
  void stop_waiting();
  /// Finds out which process listens, so that the queue pair can use a segment kept for it: as remembered from the last
  /// milliseconds, or by joining the listener's backlog, if that works at once. The backlog is better joined by
  /// connect(): a listener that is woken then finds the request, and does not have to sleep once more. Failures are
  /// left to connect(). Called again, it does nothing more.
  void join_early(const SocketAddress& destination, PortReservation& port);
  /// Returns the processes that the queue pair's segment is kept for.
  [[nodiscard]] std::optional<SegmentPeer> segment_peer() const { return expected_.segment_peer(); }

  /// Begins to connect. @param qp  null with PortSpace::udp
  void connect(const ConnectRequest& request, ibv_qp* qp, PortReservation& port);
  /// Does what can be done now, until stage() is established or failed.
  void work();
  [[nodiscard]] Stage stage() const { return stage_; }
  /// With failed: an errno value.
  [[nodiscard]] int error() const { return error_; }
  /// The process that listens.
  [[nodiscard]] const PeerIdentity& peer() const { return peer_; }
  /// Returns the peer's segment, which the queue pair uses, with what is charged for it.
  PeerSegment take_segment() { return std::move(segment_); }
  /// The peer's answer, for the event.
  [[nodiscard]] const ConnectReply& reply() const { return reply_; }
  /// Returns when work() must be called at the latest.
  [[nodiscard]] Nanos deadline() const { return stage_ == Stage::searching ? search_.retry_at() : reply_deadline_; }

 private:
  [[nodiscard]] bool is_waiting() const { return stage_ == Stage::awaiting_reply || stage_ == Stage::awaiting_memory; }
  void search();
  Status send_request(Connector::Connected connected);
  void look_for_answer();
  void give_up(Nanos now);
  bool is_spinning_on_reply();
  void on_packet(LinkInbox::Packet packet);
  void on_reply(LinkInbox::Packet packet);
  void on_udp_reply(const ConnectReply& reply);
  void on_memory(PassedFd memory);
  void on_reject(const LinkInbox::Packet& packet);
  [[nodiscard]] bool is_answered_by_our_own_namespace() const;
  bool meets_expected_accepter();
  void ask_for_memory();
  void finish(UniqueFd memfd);
  Status attach(UniqueFd memfd);
  void fail(int error);

  IdLink& link_;
  const verbs::PortSpace space_;
  Stage stage_ = Stage::searching;
  int error_ = 0;
  ListenerSearch search_;
  ExpectedAccepter expected_;
  bool is_early_ = false;  ///< the listener is known
  PeerIdentity peer_;
  PeerSegment segment_;
  ConnectRequest request_;
  ConnectReply reply_;
  ibv_qp* qp_ = nullptr;  ///< the caller's, alive while the connection is used
  Nanos reply_deadline_{};
  bool is_answer_due_ = false;             ///< the listener had decided to answer when the time was over
  std::uint64_t looked_for_reply_at_ = 0;  ///< ticks()
};

}  // namespace ringsock::soft
