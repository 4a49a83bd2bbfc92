// What the embedded device offers for the datagrams of rsockets beyond libibverbs.
#pragma once

#include <memory>

#include "core/verbs/ud_extensions.h"

namespace ringsock::soft {

/// Datagrams are exchanged by processes of one user only: the kernel says whose the port is. Threads: any.
class SoftUdExtensions final : public verbs::UdExtensions {
 public:
  Result<verbs::UdPort> port_of(const SocketAddress& /*local*/) override { return verbs::UdPort{}; }
  Result<ibv_ah_attr> path_to(const verbs::UdPort& port, const SocketAddress& local, const SocketAddress& destination,
                              std::unique_ptr<verbs::UdPathSearch>& search) override;
  bool may_exchange(const SocketAddress& local, const SocketAddress& peer) override;
  void use_rings(ibv_qp& qp) override;
  bool open_ring(ibv_qp& qp, std::uint32_t number) override;
  void look_closely(ibv_qp& qp) override;
  void note_heirs(ibv_qp& qp) override;
  bool is_there(ibv_qp& qp, std::uint32_t number) override;
  void leave_to_parent(ibv_qp& qp) override;
};

}  // namespace ringsock::soft
