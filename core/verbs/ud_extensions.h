// What a device offers for the datagrams of rsockets beyond libibverbs.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <memory>

#include "core/base/result.h"
#include "core/base/socket_address.h"

namespace ringsock::verbs {

class Device;

/// ibv_wc::vendor_err of the successful completion of a datagram that was not delivered: no queue pair has the number
/// (any more), or its receive buffer is full. Real devices do not report it.
inline constexpr std::uint32_t kVendorErrNobody = 0x52530003;
inline constexpr std::uint32_t kVendorErrFull = 0x52530004;

/// The port of a device by which datagrams from a local address leave.
struct UdPort {
  Device* device = nullptr;  ///< null: the device that was asked
  std::uint8_t number = 1;
  std::uint16_t pkey_index = 0;
  ibv_mtu mtu = IBV_MTU_4096;  ///< the longest datagram, without the GRH
  bool is_ethernet = false;    ///< peers are reached by their GIDs
};

/// A search for a path that is under way. Its destructor ends it.
class UdPathSearch {
 public:
  UdPathSearch() = default;
  virtual ~UdPathSearch() = default;
  UdPathSearch(const UdPathSearch&) = delete;
  UdPathSearch& operator=(const UdPathSearch&) = delete;
};

/// Where UD queue pairs find each other by IP addresses. The functions here answer for a device that carries no
/// datagrams for rsockets. Threads: any.
class UdExtensions {
 public:
  virtual ~UdExtensions() = default;

  /// Returns the port that has `local`, an address of this host. Errors: ENODEV, EOPNOTSUPP the device, or the link
  /// layer, has no datagrams.
  virtual Result<UdPort> port_of(const SocketAddress& /*local*/) { return Error{EOPNOTSUPP, "ud: port"}; }
  /// Returns the attributes of an address handle from `local`, on `port`, to `destination`. Never waits for the
  /// network.
  /// @param search  an empty pointer, which the call may fill; then the caller calls again with it, from time to time
  /// Errors: EAGAIN the search goes on; EADDRNOTAVAIL, EHOSTUNREACH, ETIMEDOUT there is no path now.
  virtual Result<ibv_ah_attr> path_to(const UdPort& /*port*/, const SocketAddress& /*local*/,
                                      const SocketAddress& /*destination*/, std::unique_ptr<UdPathSearch>& /*search*/) {
    return Error{EOPNOTSUPP, "ud: path"};
  }
  /// Returns whether the process with the kernel's UDP port `peer` may exchange datagrams by queue pairs with this
  /// process, which has the port `local`. Costs some 10 us.
  virtual bool may_exchange(const SocketAddress& /*local*/, const SocketAddress& /*peer*/) { return false; }
  // Datagrams past the kernel, between queue pairs that have both called use_rings().
  virtual void use_rings(ibv_qp& /*qp*/) {}
  /// Opens a ring to the queue pair `number`, of a process that may_exchange() names, unless there is one. Returns
  /// whether it is new: then polls of the other end may not see what comes in it until that has called look_closely()
  /// or armed its completion queue.
  virtual bool open_ring(ibv_qp& /*qp*/, std::uint32_t /*number*/) { return false; }
  virtual void look_closely(ibv_qp& /*qp*/) {}
  /// Tells that the queue pair serves a UDP port that other processes have, too. From then on nobody sends a datagram
  /// by a ring to this process after its end.
  virtual void note_heirs(ibv_qp& /*qp*/) {}
  /// Returns whether the queue pair `number`, of another process of this host, is there for sure. Costs a system call.
  virtual bool is_there(ibv_qp& /*qp*/, std::uint32_t /*number*/) { return false; }
  /// Leaves a queue pair that came by fork(2) to the parent: this process can only destroy it, of which the parent and
  /// its peers notice nothing. Threads: the only one of its process.
  virtual void leave_to_parent(ibv_qp& /*qp*/) {}
};

}  // namespace ringsock::verbs
