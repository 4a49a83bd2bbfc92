// listen(2) and accept(2) of a socket with a way.
#pragma once

#include <atomic>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"

namespace ringsock::transports {

class ChosenSocket;

/// The listener of the way beside that of the kernel, which has the same port. Takes clients from both.
class ListeningBeside {
 public:
  explicit ListeningBeside(ChosenSocket& socket) : socket_(socket) {}

  /// listen(2), in each state of the socket.
  Status listen(int backlog);
  /// accept4(2), in each state of the socket.
  Result<int> accept(SocketAddress& peer, int flags);
  /// Undoes listening by the way; harmless when it does not listen.
  void stop_by_way();

 private:
  Status listen_by_way(int backlog);
  Status listen_for_family(int backlog);
  Status listen_in_family_by_way(int backlog);
  Result<int> accept_if_kernel_has_one(SocketAddress& peer, int flags);
  Result<int> accept_from_kernel(SocketAddress& peer, int flags);
  Result<int> take_in_accepted(UniqueFd fd, const SocketAddress& local, int flags);
  void leave_ended();

  ChosenSocket& socket_;
  std::atomic<bool> kernel_first_{false};  ///< whether accept() asks the kernel before the way next time
};

}  // namespace ringsock::transports
