// The passive side: a listening socket and the connections whose request has not come yet.
#pragma once

#include <sys/types.h>

#include <list>
#include <memory>
#include <optional>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/soft/cm/cm_wire.h"
#include "core/device/soft/cm/link_inbox.h"
#include "core/device/soft/cm/port_name.h"
#include "core/device/soft/cm/port_owner.h"

namespace ringsock::soft {

/// A connect request that passed every check, and its connection.
struct IncomingRequest {
  std::unique_ptr<LinkInbox> inbox;  ///< the link's manager; declared first, so that the link goes before it
  std::shared_ptr<Link> link;
  ConnectRequest request;
  std::shared_ptr<MappedSegment> segment;  ///< the requester's memfd; nullptr for PortSpace::udp
  PeerIdentity peer;
  bool accepted_by_listening_process = false;
};

/// Listens under a binding's name. Clients are served as their requests come: one that connects and says nothing holds
/// a slot of its own until it times out or newer ones need it, and nobody waits for it. The listening socket may be
/// shared with forked processes; each accepts what it gets.
class Acceptor {
 public:
  struct Limits {
    std::size_t half_open = 64;  ///< more: the oldest is dropped
    Nanos half_open_time{2'000'000'000};
  };

  /// @param backlog  as listen(2)
  /// @param sharers  how many may listen there: 1, or kMaxSharingListeners with SO_REUSEPORT
  /// Error: EADDRINUSE the name is taken.
  static Result<std::unique_ptr<Acceptor>> open(const PortBinding& where, int backlog, Limits limits,
                                                unsigned sharers = 1);
  ~Acceptor();

  /// The next request, or EAGAIN. Clients that break a rule are dropped; they see a refused connection.
  /// Other errors: those of accept4(2), e.g. EMFILE.
  Result<IncomingRequest> next(Nanos now);
  /// Applies a new backlog, as a second listen(2) does.
  Status set_backlog(int backlog);
  /// Readable when next() has work.
  [[nodiscard]] int fd() const;
  /// When the oldest half-open connection is to be dropped.
  [[nodiscard]] std::optional<Nanos> deadline() const;

 private:
  struct HalfOpen {
    std::unique_ptr<LinkInbox> inbox;
    std::shared_ptr<Link> link;
    Nanos expires;
  };
  using Slot = std::list<HalfOpen>::iterator;

  Acceptor(const PortBinding& where, Limits limits, UniqueFd socket);
  Status watch_socket();
  Status start_over_after_fork();
  void drop(Slot slot);
  void drop_expired(Nanos now);
  std::optional<IncomingRequest> serve_half_open();
  std::optional<IncomingRequest> serve(Slot slot);
  std::optional<IncomingRequest> check(HalfOpen& from, LinkInbox::Packet packet) const;
  std::optional<IncomingRequest> take_in(UniqueFd socket, Nanos now);

  PortBinding where_;
  Limits limits_;
  UniqueFd socket_;
  UniqueFd epoll_;
  std::list<HalfOpen> half_open_;  ///< oldest first
  mutable ClientAddresses addresses_;
  pid_t listening_pid_;
  pid_t epoll_pid_ = -1;
};

}  // namespace ringsock::soft
