// The network namespaces this process has sockets in.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/result.h"
#include "core/net/network_state.h"

namespace ringsock::net {

/// Returns a number for the network namespace of a socket, which is the one that it was made in, because setns(2) moves
/// threads and not sockets. Two numbers are equal when the namespaces are. Costs one or two system calls. Errors:
/// EBADF, ENOTSOCK; EPERM on kernels before 5.14 without CAP_NET_ADMIN.
Result<std::uint64_t> network_namespace_of(int socket_fd);

/// One NetworkState per namespace in use, shared by its holders. The last holder closes it, so that the library does
/// not keep a namespace alive. Threads: any.
class Networks {
 public:
  static constexpr ProcessPart kPart = ProcessPart::networks;

  /// Returns the NetworkState of a socket (any family). Makes it when nobody holds one yet: the calling thread then
  /// opens its netlink sockets. Errors: EXDEV when the thread is in another namespace by now and nobody holds one for
  /// the socket's; those of network_namespace_of() and NetworkState::open().
  Result<std::shared_ptr<NetworkState>> of_socket(int socket_fd);

  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  Mutex lock_;
  std::unordered_map<std::uint64_t, std::weak_ptr<NetworkState>> states_;
  std::vector<std::shared_ptr<NetworkState>> across_fork_;
};

/// Returns the instance of this process. Its handlers for fork(2) are installed when the library is loaded.
inline Networks& networks() { return process_state<Networks>(); }

}  // namespace ringsock::net
