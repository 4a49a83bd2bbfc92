// What the parts of a datagram rsocket share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/statistics/statistics.h"
#include "librsocket/datagram/arrivals.h"
#include "librsocket/datagram/elders.h"
#include "librsocket/datagram/lane.h"
#include "librsocket/datagram/peers.h"
#include "librsocket/datagram/pieces.h"
#include "librsocket/datagram/udp_port.h"

namespace ringsock::rs {

struct Process;

/// `lock` guards everything but `process`, `domain`, `works_on_our_cpus` and `statistics`.
class DatagramCore {
 public:
  DatagramCore(Process& of, int family, UdpPort udp, std::uint32_t receive_bytes)
      : process(of), domain(family), port(std::move(udp)), arrivals(receive_bytes), pieces(receive_bytes) {}

  /// Returns the peer, whose way is prepared as far as this process can do it alone. Binds the socket if need be.
  /// @param local  our address towards it, if the peer is new; unspecified or the wildcard: what the route says
  /// Errors: ENODEV no device carries datagrams to the address; those of bind(2) and of making a queue pair.
  Result<Peer*> peer_at(const SocketAddress& address, const SocketAddress& local = {});
  /// Notes that datagrams to the peer leave from another address.
  void set_local(Peer& peer, const SocketAddress& local);
  /// Returns whether the peer's address handle is there, or can be made now.
  [[nodiscard]] bool has_path(Peer& peer, Nanos now);
  /// Tells the peer our number, in a control packet.
  void tell_number(const Peer& peer, const wire::RsUdpNote& what);
  /// Returns whether a datagram that found no room would find some now.
  [[nodiscard]] bool has_room();
  /// Returns the descriptor that is readable when a datagram comes by a lane, or -1.
  int arm_lanes();
  void close_lanes();
  /// The same in a child in which they may be half changed: they stay in memory.
  void abandon_lanes();
  /// Returns the error that an earlier packet met, once.
  [[nodiscard]] int take_error() { return std::exchange(pending_error, 0); }
  [[nodiscard]] bool is_connected() const { return !peer.is_unspecified(); }
  /// Describes the socket for rsstat(1).
  void describe(int descriptor);
  /// Tells that another process has the port, too.
  void note_heirs();
  /// Returns whether the answers to what is sent to the peer must come by the kernel, for whichever process reads them:
  /// this one has the socket by fork(2) and has read nothing, and the other one still has it.
  [[nodiscard]] bool shares_answers(const Peer& to, Nanos now) {
    return !elders.empty() && to.lane->is_embedded() && elders.are_there(*to.lane, now);
  }
  /// Drops all that belongs to the parent, in a child of fork(2).
  void leave_to_parent();

  Process& process;
  const int domain;
  Mutex lock;
  bool is_closed = false;
  bool read_shut = false;
  bool write_shut = false;
  bool has_heirs = false;
  bool must_wait_to_send = false;  ///< the kernel's send buffer was full, or:
  Lane* full_lane = nullptr;       ///< too many datagrams were under way
  std::size_t slots_wanted = 1;    ///< of full_lane
  int pending_error = 0;
  std::atomic<bool> works_on_our_cpus{false};  ///< a lane's device does; also read without the lock
  LaneSizes sizes;
  SocketAddress peer;  ///< of rconnect(), not mapped
  UdpPort port;
  std::vector<std::unique_ptr<Lane>> lanes;
  Peers peers;
  Elders elders;
  Arrivals arrivals;
  Pieces pieces;
  QuestionBudget questions;
  runtime::SocketStatistics statistics;

 private:
  static constexpr std::size_t kMostLanes = 8;
  Result<SocketAddress> local_towards(const SocketAddress& address, const SocketAddress& asked);
  Result<Lane*> lane_between(const SocketAddress& local, const SocketAddress& address);
  Result<Lane*> lane_on(verbs::Device& device, const verbs::UdPort& port);
  Status watch_lanes_together();

  [[nodiscard]] Result<verbs::Ah> make_handle(Lane& lane, ibv_ah_attr& path);

  Nanos handles_again_ = Nanos::min();  ///< not before
  UniqueFd together_;                   ///< an epoll set with the descriptors of several lanes
};

}  // namespace ringsock::rs
