// The passive side: a listening socket and the connections whose request has not come yet.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <span>

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
  // The requester's memory, PortSpace::tcp only: one of the two.
  std::shared_ptr<MappedSegment> segment;  ///< a mapping that was kept of an earlier connection
  UniqueFd memfd;                          ///< a memfd with the seals and the name that the request tells
  PeerIdentity peer;
  bool accepted_by_listening_process = false;
};

/// Listens under a binding's name. Clients are served as their requests come: one that connects and says nothing, or
/// does not pass the memory that it was asked for, holds a slot of its own until it times out or newer ones need it,
/// and nobody waits for it. The listening socket may be shared with forked processes; each accepts what it gets.
class Acceptor {
 public:
  struct Limits {
    /// More: the oldest of whoever has most is dropped. No more than an eighth of RLIMIT_NOFILE, in any case.
    std::size_t half_open = 256;
    std::size_t half_open_of_user = 128;  ///< of one user other than our own, and half of what there may be
    Nanos half_open_time{2'000'000'000};
  };
  /// What a request's private data must be, looked at before anything that costs more. nullptr: whatever it is.
  using PrivateDataCheck = bool (*)(std::span<const std::byte>);
  /// Packets and connections that one call of next() deals with, refused ones included.
  static constexpr int kMaxWork = 8;

  /// @param backlog  as listen(2)
  /// @param sharers  how many may listen there: 1, or kMaxSharingListeners with SO_REUSEPORT
  /// Error: EADDRINUSE the name is taken.
  static Result<std::unique_ptr<Acceptor>> open(const PortBinding& where, int backlog, Limits limits,
                                                unsigned sharers = 1);
  ~Acceptor();

  /// The next request, or EAGAIN: nothing is there, or kMaxWork of what was there led to no request; then fd() is still
  /// readable. Clients that break a rule are dropped, and counted (Refusal); they see a refused connection.
  /// Other errors: those of accept4(2), e.g. EMFILE.
  Result<IncomingRequest> next(Nanos now);
  void set_private_data_check(PrivateDataCheck check) { private_data_check_ = check; }
  /// Applies a new backlog, as a second listen(2) does.
  Status set_backlog(int backlog);
  /// Readable when next() has work.
  [[nodiscard]] int fd() const;
  /// The two parts of fd(): the listening socket, which other processes may have, too; connections that only this one
  /// waits for.
  [[nodiscard]] int queue_fd() const { return socket_.get(); }
  [[nodiscard]] int half_open_fd() const { return half_open_epoll_.get(); }
  /// When the oldest half-open connection is to be dropped.
  [[nodiscard]] std::optional<Nanos> deadline() const;

 private:
  struct HalfOpen {
    std::unique_ptr<LinkInbox> inbox;
    std::shared_ptr<Link> link;
    Nanos expires;
    std::optional<IncomingRequest> request;  ///< it only lacks its memory, which is on its way
    std::optional<PeerIdentity> peer;        ///< of those that wait
  };
  enum class Outcome { refused, waits, ready };
  using Slot = std::list<HalfOpen>::iterator;

  Acceptor(const PortBinding& where, Limits limits, UniqueFd socket);
  Status watch_socket();
  Status start_over_after_fork();
  void leave_half_open_to_parent();
  void drop(Slot slot);
  void make_room_for(uid_t user);
  void keep(HalfOpen fresh);
  static bool identify(HalfOpen& slot);
  void drop_expired(Nanos now);
  std::optional<IncomingRequest> serve_half_open(int& work);
  std::optional<IncomingRequest> serve(Slot slot);
  std::optional<IncomingRequest> take_in(UniqueFd socket, Nanos now);
  Outcome look_at(HalfOpen& from, LinkInbox::Packet packet) const;
  Outcome check(HalfOpen& from, const LinkInbox::Packet& packet) const;
  Outcome find_memory(HalfOpen& from) const;
  Outcome take_memory(HalfOpen& from, PassedFd memory) const;
  static void refuse(HalfOpen& slot);
  static IncomingRequest finish(HalfOpen& from);

  PortBinding where_;
  Limits limits_;
  PrivateDataCheck private_data_check_ = nullptr;
  UniqueFd socket_;
  UniqueFd half_open_epoll_;
  UniqueFd epoll_;                 ///< of both
  std::list<HalfOpen> half_open_;  ///< oldest first
  mutable ClientAddresses addresses_;
  const unsigned made_at_;  ///< fork_generation
  unsigned epoll_made_at_;  ///< the same
};

}  // namespace ringsock::soft
