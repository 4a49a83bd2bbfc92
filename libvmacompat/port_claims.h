// Ports that sockets of several processes have at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/runtime/service_thread.h"
#include "libvmacompat/port_holders.h"

namespace ringsock::vma {

class UdpSocket;

/// With SO_REUSEADDR several sockets have one UDP port, and what comes is the last one's. Among the sockets of one
/// process rings know which that is, among processes only the kernel does. Whether another process has a part in a port
/// is what sock_diag(7) says, and nobody else: rings take what comes to a port only while all of its sockets are this
/// process's.
///
/// A process whose rings take a port listens on an AF_UNIX socket: who comes later with a socket of that port connects
/// there, so that the kernel is asked again. The names are in the abstract space, which is a network namespace's, and
/// end with a random number, so nobody can take one before. A visitor is never believed: one that comes without a
/// socket of the port changes nothing, and is counted (Refusal::port_claim).
///
/// Threads: any.
class PortClaims {
 public:
  PortClaims() = default;
  PortClaims(const PortClaims&) = delete;
  PortClaims& operator=(const PortClaims&) = delete;

  /// For a socket that is bound at `place`. True: rings may take what comes there; once another process has a part in
  /// it, leave_port_to_kernel() is called, by the service thread. False: it is the kernel's; the processes whose rings
  /// took it have left it, or did not answer for a second, for 20 ms another user's. Only processes of users that have
  /// a socket of the port are waited for.
  bool enter(const PortPlace& place, UdpSocket& socket);
  /// Harmless when it has not entered. Not with locks that leave_port_to_kernel() takes.
  void leave(std::uint16_t port, UdpSocket& socket);

  // fork(2): a child has no claims.
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
    /// Of the namespace of whoever entered first. The service thread's.
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
