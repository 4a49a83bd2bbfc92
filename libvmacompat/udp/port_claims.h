// UDP ports that sockets of several processes have at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/unique_fd.h"
#include "core/runtime/service_thread.h"
#include "libvmacompat/udp/port_holders.h"

namespace ringsock::vma {

class UdpSocket;

/// With SO_REUSEADDR several sockets can have one UDP port; the one bound last receives. Within a process the rings
/// know which socket that is; among processes only the kernel knows. So rings receive what comes to a port only while
/// all sockets of the port belong to this process. Only sock_diag(7) is asked for that.
///
/// A process whose rings take a port listens on an AF_UNIX socket. A process that binds the port later connects there,
/// and then the first process asks the kernel again. The names are in the abstract name space of the network namespace,
/// and end with a random number, so nobody can take one in advance. A visitor is never believed: a visitor without a
/// socket of the port changes nothing, and is counted (Refusal::port_claim).
///
/// Threads: any.
class PortClaims {
 public:
  static constexpr ProcessPart kPart = ProcessPart::port_claims;
  PortClaims() = default;
  PortClaims(const PortClaims&) = delete;
  PortClaims& operator=(const PortClaims&) = delete;

  /// Claims the port for a socket that is bound at `place`. Returns true when rings may take what comes there; once
  /// another process has a socket there, the service thread calls leave_port_to_kernel(). Returns false when the kernel
  /// receives: then the processes whose rings took the port have left it, or have not answered within one second (20 ms
  /// for processes of other users). Only processes of users that have a socket of the port are waited for.
  bool enter(const PortPlace& place, UdpSocket& socket);
  /// Removes the socket; does nothing when it has not entered. The caller must not hold locks that
  /// leave_port_to_kernel() takes.
  void leave(std::uint16_t port, UdpSocket& socket);

  // Handlers for fork(2): a child has no claims.
  void before_fork() { lock_.lock(); }
  void after_fork_in_parent() { lock_.unlock(); }
  void after_fork_in_child();

 private:
  struct Entry {
    UdpSocket* socket;
    PortPlace place;
  };
  struct Claim {
    UniqueFd listener;
    /// For the network namespace of the socket that entered first. Used by the service thread only.
    std::shared_ptr<SocketDiagnosis> kernel;
    runtime::ServiceThread::Id watch = 0;
    std::vector<Entry> entries;
  };
  using Claims = std::unordered_map<std::uint16_t, Claim>;
  bool has_claim(const PortPlace& place, UdpSocket& socket);
  bool enter_known(const PortPlace& place, UdpSocket& socket);
  bool make_claim(const PortPlace& place, UdpSocket& socket, Claim claim);
  void leave_later(std::uint16_t port, UdpSocket& socket);
  void remove_entry(std::uint16_t port, UdpSocket& socket);
  void drop_if_unused(std::uint16_t port);
  void visitors_came(std::uint16_t port);
  void ignore_visitors(std::uint16_t port, std::size_t count);
  void end(Claim ended);

  Mutex lock_;
  Claims claims_;
};

PortClaims& port_claims();

}  // namespace ringsock::vma
