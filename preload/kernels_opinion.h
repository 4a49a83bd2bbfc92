// Kernel sockets that answer for sockets on a ring.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include "core/base/raised_limit.h"
#include "core/base/unique_fd.h"
#include "preload/route.h"

namespace ringsock::preload {

/// Returns the domain of a stream socket.
inline int domain_of(Lookup& socket) {
  int domain = AF_INET;
  socklen_t length = sizeof domain;
  [[maybe_unused]] const Status told = socket->get_option(SOL_SOCKET, SO_DOMAIN, &domain, &length);
  return domain;
}

/// Returns whether an answer of the socket's is not the kernel's.
inline bool is_kernel_unasked(runtime::Endpoint& socket) {
  const auto* const chosen = socket.as_chosen_socket();
  return chosen != nullptr ? !chosen->is_kernel_socket() : hand_overs().is_connection(socket);
}

/// A TCP socket of the kernel, which answers for what a ring does not know. It has a number above the limit where the
/// program has used all others.
class KernelsOpinion {
 public:
  explicit KernelsOpinion(int domain) {
    const RaisedLimit beyond_full_table;
    socket_ = out_of_the_way(UniqueFd(real.socket(domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP)));
  }
  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
};

}  // namespace ringsock::preload
