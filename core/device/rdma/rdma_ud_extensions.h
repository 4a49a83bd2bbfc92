// What real devices offer for the datagrams of rsockets: ports, and paths between IP addresses.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/clock.h"
#include "core/device/rdma/calls.h"
#include "core/device/rdma/ud_path_search.h"
#include "core/verbs/ud_extensions.h"

namespace ringsock::rdma {

class RdmaDevices;

/// Any process may exchange datagrams: the other one is usually on another host, whose users nobody knows. Threads:
/// any.
class RdmaUdExtensions final : public verbs::UdExtensions {
 public:
  explicit RdmaUdExtensions(std::shared_ptr<RdmaDevices> devices);

  /// Asks RDMA CM. An answer is reused for a second.
  Result<verbs::UdPort> port_of(const SocketAddress& local) override;
  Result<ibv_ah_attr> path_to(const verbs::UdPort& port, const SocketAddress& local, const SocketAddress& destination,
                              std::unique_ptr<verbs::UdPathSearch>& search) override;
  bool may_exchange(const SocketAddress& /*local*/, const SocketAddress& /*peer*/) override { return true; }

 private:
  struct Known {
    Result<verbs::UdPort> port;
    Nanos until;
  };
  [[nodiscard]] Result<verbs::UdPort> ask(const SocketAddress& host);
  [[nodiscard]] Result<verbs::UdPort> port_of_id(rdma_cm_id& id);

  const std::shared_ptr<RdmaDevices> devices_;
  const CmPathSearch::Token searches_ = std::make_shared<const char>('s');
  std::mutex lock_;
  std::map<std::string, Known> known_;  ///< by the bytes of the address, port 0
};

/// Returns the GID of an IP address: that of IPv6, or of the mapped IPv4 address.
ibv_gid gid_of(const SocketAddress& address);

/// Returns the attributes of an address handle on an Ethernet port, which has the GID of `local`: RoCE v2 before v1.
/// Pure but for the table of GIDs. Errors: EADDRNOTAVAIL the port has no such GID; those of
/// ibv_query_gid_table(3).
Result<ibv_ah_attr> ethernet_path(const Calls& calls, ibv_context& context, std::uint8_t port,
                                  const SocketAddress& local, const SocketAddress& destination);

}  // namespace ringsock::rdma
