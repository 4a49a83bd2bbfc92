// The options of an rdma_cm_id, which must be set before it is bound.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>

#include "core/device/rdma/calls.h"

namespace ringsock::rdma {

/// Keeps what the caller wants until the id is bound or resolved. Old kernels do not have every option; the connection
/// works without it. Threads: one at a time.
class IdOptions {
 public:
  IdOptions(const Calls& calls, rdma_cm_id* id) : calls_(calls), id_(id) {}

  void reuse_address(bool on) { reuse_address_ = on; }
  void v6_only(bool on) { v6_only_ = on; }
  void type_of_service(std::uint8_t tos) { type_of_service_ = tos; }
  /// Sets all of them. Does nothing when that was done before.
  void set_once();
  /// Sets the time to wait for an acknowledgement, for the id of a connect request.
  void shorten_ack_timeout();

 private:
  void set(int name, void* value, std::size_t length);

  const Calls& calls_;
  rdma_cm_id* const id_;
  bool reuse_address_ = false;
  bool v6_only_ = false;
  std::uint8_t type_of_service_ = 0;
  bool are_set_ = false;
};

}  // namespace ringsock::rdma
