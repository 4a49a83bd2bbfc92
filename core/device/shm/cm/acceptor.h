// The passive side: a listening socket and the connections whose request has not arrived yet.
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
#include "core/device/shm/cm/cm_wire.h"
#include "core/device/shm/cm/link_inbox.h"
#include "core/device/shm/names/port_name.h"
#include "core/device/shm/names/port_owner.h"

namespace ringsock::soft {

/// A connect request that has passed every check, and its connection.
struct IncomingRequest {
  std::unique_ptr<LinkInbox> inbox;  ///< the link's manager; declared first, so that the link is destroyed before it
  std::shared_ptr<Link> link;
  ConnectRequest request;
  // The requester's memory, for PortSpace::tcp only: one of these two.
  std::shared_ptr<MappedSegment> segment;  ///< a mapping kept from an earlier connection
  UniqueFd memfd;                          ///< a memfd with the required seals and the name in the request
  PeerIdentity peer;
  bool accepted_by_listening_process = false;
};

/// Listens under a binding's name. Clients are served in the order of their requests. A client that connects but sends
/// no request, or does not pass its memory when asked, delays nobody: it occupies a slot until it times out or newer
/// clients need the slot. The listening socket may be shared with forked processes; each serves the clients that it
/// accepts.
class Acceptor {
 public:
  struct Limits {
    /// Beyond this number the oldest connection of the user with the most is dropped. Never more than an eighth of
    /// RLIMIT_NOFILE.
    std::size_t half_open = 1024;
    /// Of one user other than our own, and half of what there may be. A client that connects to this many at once
    /// before it answers any of them, as load generators do, keeps its rings.
    std::size_t half_open_of_user = 512;
    Nanos half_open_time{2'000'000'000};
  };
  /// Checks a request's private data, before more expensive checks. nullptr accepts any data.
  using PrivateDataCheck = bool (*)(std::span<const std::byte>);
  /// The number of packets and connections that one call of next() handles, including refused ones.
  static constexpr int kMaxWork = 8;

  /// @param backlog as for listen(2)
  /// @param sharers how many may listen there: 1, or kMaxSharingListeners with SO_REUSEPORT Error: EADDRINUSE the name
  /// is taken.
  static Result<std::unique_ptr<Acceptor>> open(const PortBinding& where, int backlog, Limits limits,
                                                unsigned sharers = 1);
  /// Takes the name, and does not listen before set_backlog(). Errors: as open().
  static Result<std::unique_ptr<Acceptor>> prepare(const PortBinding& where, Limits limits);
  ~Acceptor();

  /// Returns the next request. Clients that break a rule are dropped and counted (Refusal); they see a refused
  /// connection. Errors: EAGAIN no request, or kMaxWork packets and connections led to none, in which case fd() is
  /// still readable; those of accept4(2), e.g. EMFILE.
  Result<IncomingRequest> next(Nanos now);
  void set_private_data_check(PrivateDataCheck check) { private_data_check_ = check; }
  /// Listens, or applies a new backlog, as a second listen(2) does.
  Status set_backlog(int backlog);
  /// Makes every process that has the listener refuse clients from now on.
  void end_for_all() noexcept;
  /// Readable when next() has work.
  [[nodiscard]] int fd() const;
  /// The two parts of fd(): the listening socket, which other processes may share, and the connections that only this
  /// process waits for.
  [[nodiscard]] int queue_fd() const { return socket_.get(); }
  [[nodiscard]] int half_open_fd() const;
  /// Returns when the oldest half-open connection must be dropped.
  [[nodiscard]] std::optional<Nanos> deadline() const;

 private:
  struct HalfOpen {
    std::unique_ptr<LinkInbox> inbox;
    std::shared_ptr<Link> link;
    Nanos expires;
    std::optional<IncomingRequest> request;  ///< complete except for its memory, which the client is passing
    std::optional<PeerIdentity> peer;        ///< of connections that wait
  };
  enum class Outcome { refused, waits, ready };
  using Slot = std::list<HalfOpen>::iterator;

  Acceptor(const PortBinding& where, Limits limits, UniqueFd socket, unsigned made_at);
  static Result<std::unique_ptr<Acceptor>> take_name(const PortBinding& where, Limits limits, unsigned sharers,
                                                     unsigned made_at);
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
  HalfOpen make_half_open(UniqueFd socket, Nanos now) const;
  static std::optional<LinkInbox::Packet> first_packet(HalfOpen& fresh);
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
  UniqueFd epoll_;                 ///< epoll descriptor over both parts
  std::list<HalfOpen> half_open_;  ///< oldest first
  mutable ClientAddresses addresses_;
  const unsigned made_at_;  ///< fork_generation(); kByAnyProcess: any process of a family may have called listen(2)
  unsigned epoll_made_at_;  ///< fork_generation(); kByAnyProcess: not yet
  bool has_ended_ = false;  ///< end_for_all() of some process
};

}  // namespace ringsock::soft
