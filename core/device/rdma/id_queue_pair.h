// The queue pair of an rdma_cm_id, whose states this library changes.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <sys/types.h>

#include "core/device/rdma/calls.h"
#include "core/device/rdma/rdma_device.h"
#include "core/verbs/connection_manager.h"

namespace ringsock::rdma {

/// Moves the caller's queue pair through its states, with the attributes of rdma_init_qp_attr(3) and the times that
/// peers wait here. Threads: one at a time.
class IdQueuePair {
 public:
  IdQueuePair(const Calls& calls, rdma_cm_id* id);
  IdQueuePair(const IdQueuePair&) = delete;
  IdQueuePair& operator=(const IdQueuePair&) = delete;
  ~IdQueuePair() { leave(); }

  /// Moves `qp` to INIT and reports its failures to `owner`, which must exist as long as this. The caller keeps the
  /// queue pair alive while the connection is used. On an error it is not used.
  Status use(ibv_qp& qp, RdmaDevice& device, QueuePairOwner& owner);
  /// Its failures are no longer reported. On return the owner is not being called.
  void leave();
  /// Returns it, null: there is none.
  [[nodiscard]] ibv_qp* get() const { return qp_; }
  /// Moves it to RTR and RTS. @param parameters  those of accept(), null on the active side
  Status to_ready(const verbs::ConnectionParameters* parameters);
  /// Flushes it. Does nothing in a forked child, where it is the parent's.
  void to_error();

 private:
  Status to_init();
  Result<int> attributes_for(ibv_qp_state state, ibv_qp_attr& attr);

  const Calls& calls_;
  rdma_cm_id* const id_;
  const pid_t process_;
  RdmaDevice* device_ = nullptr;  ///< of qp_
  ibv_qp* qp_ = nullptr;
  QueuePairOwner* owner_ = nullptr;
  bool is_owned_ = false;  ///< the device reports to owner_
};

}  // namespace ringsock::rdma
