#include "core/device/shm/queue/soft_ud_extensions.h"

#include "core/device/shm/names/port_owner.h"
#include "core/device/shm/names/sock_diag.h"
#include "core/device/shm/queue/ud_queue_pair.h"

namespace ringsock::soft {

/// The device is one host, so any valid handle will do.
Result<ibv_ah_attr> SoftUdExtensions::path_to(const verbs::UdPort&, const SocketAddress&, const SocketAddress&,
                                              std::unique_ptr<verbs::UdPathSearch>&) {
  ibv_ah_attr attr{};
  attr.port_num = 1;
  attr.dlid = 1;
  return attr;
}

bool SoftUdExtensions::may_exchange(const SocketAddress& local, const SocketAddress& peer) {
  const auto owner = udp_port_owner(peer, local);
  return owner && is_own_uid(*owner);
}

namespace {
UdQueuePair* find_ud(ibv_qp& qp) { return qp.qp_type == IBV_QPT_UD ? &static_cast<UdQueuePair&>(qp) : nullptr; }
}  // namespace

void SoftUdExtensions::use_rings(ibv_qp& qp) {
  if (UdQueuePair* const ud = find_ud(qp)) ud->use_rings();
}

bool SoftUdExtensions::open_ring(ibv_qp& qp, std::uint32_t number) {
  UdQueuePair* const ud = find_ud(qp);
  return ud != nullptr && ud->open_ring(number);
}

void SoftUdExtensions::look_closely(ibv_qp& qp) {
  if (UdQueuePair* const ud = find_ud(qp)) ud->look_closely();
}

void SoftUdExtensions::note_heirs(ibv_qp& qp) {
  if (UdQueuePair* const ud = find_ud(qp)) ud->note_heirs();
}

bool SoftUdExtensions::is_there(ibv_qp& qp, std::uint32_t number) {
  UdQueuePair* const ud = find_ud(qp);
  return ud != nullptr && ud->is_there(number);
}

void SoftUdExtensions::leave_to_parent(ibv_qp& qp) {
  if (UdQueuePair* const ud = find_ud(qp)) ud->leave_to_parent();
}

}  // namespace ringsock::soft
