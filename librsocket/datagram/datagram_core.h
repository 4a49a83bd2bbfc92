// What the parts of a datagram rsocket share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/statistics/statistics.h"
#include "librsocket/datagram/arrivals.h"
#include "librsocket/datagram/lane.h"
#include "librsocket/datagram/peers.h"
#include "librsocket/datagram/udp_port.h"

namespace ringsock::rs {

struct Process;

/// `lock` guards everything but `process`, `domain` and `statistics`.
class DatagramCore {
 public:
  DatagramCore(Process& of, int family, UdpPort udp, std::uint32_t receive_bytes)
      : process(of), domain(family), port(std::move(udp)), arrivals(receive_bytes) {}

  /// Returns the peer, whose way is prepared as far as this process can do it alone. Binds the socket if need be.
  /// Errors: ENODEV no device carries datagrams to the address; those of bind(2) and of making a queue pair.
  Result<Peer*> peer_at(const SocketAddress& address);
  /// Opens the lane towards `address` unless it is open. Errors as above.
  Status open_lane(const SocketAddress& address);
  /// Returns the error that an earlier packet met, once.
  [[nodiscard]] int take_error() { return std::exchange(pending_error, 0); }
  [[nodiscard]] bool is_connected() const { return !peer.is_unspecified(); }
  /// Describes the socket for rsstat(1).
  void describe(int descriptor);
  /// Tells that another process has the port, too.
  void note_heirs();
  /// Drops all that belongs to the parent, in a child of fork(2).
  void leave_to_parent();

  Process& process;
  const int domain;
  Mutex lock;
  bool is_closed = false;
  bool read_shut = false;
  bool write_shut = false;
  bool has_heirs = false;
  bool must_wait_to_send = false;  ///< the kernel's send buffer was full
  int pending_error = 0;
  std::uint32_t slots = 0;  ///< of the lane
  SocketAddress peer;       ///< of rconnect(), not mapped
  UdpPort port;
  std::unique_ptr<Lane> lane;
  Peers peers;
  Arrivals arrivals;
  QuestionBudget questions;
  runtime::SocketStatistics statistics;

 private:
  Result<SocketAddress> local_towards(const SocketAddress& address);
};

}  // namespace ringsock::rs
