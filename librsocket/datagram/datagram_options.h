// setsockopt and getsockopt of a datagram rsocket.
#pragma once

#include <sys/socket.h>

#include <cstdint>

#include "core/base/result.h"
#include "core/config/rsocket_config.h"
#include "core/runtime/endpoint.h"
#include "librsocket/datagram/datagram_core.h"

namespace ringsock::rs {

/// The kernel's UDP socket keeps the options that it has, and answers for them; the rest is here. Threads: any, the
/// functions take the core's lock.
class DatagramOptions {
 public:
  DatagramOptions(DatagramCore& core, runtime::Endpoint& endpoint, const config::RsocketConfig& config);

  /// Errors: ENOPROTOOPT an option that is not listed in rsocket(7); EINVAL, EFAULT, EDOM; the kernel's.
  Status set(int level, int name, const void* value, socklen_t length);
  Status get(int level, int name, void* value, socklen_t* length);

 private:
  Status set_by_kernel(int level, int name, const void* value, socklen_t length);
  Status set_rdma(int name, const void* value, socklen_t length);
  Status get_rdma(int name, void* value, socklen_t* length);
  void update_room();

  DatagramCore& core_;
  runtime::Endpoint& endpoint_;
  int send_queue_;
  int receive_queue_;
  int inline_bytes_;
  std::uint32_t receive_bytes_;
  const std::uint32_t send_bytes_;
};

}  // namespace ringsock::rs
