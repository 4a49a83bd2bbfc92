// Ports that sockets of several processes have at the same time.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/runtime/service_thread.h"

namespace ringsock::vma {

class UdpSocket;

/// With SO_REUSEADDR several sockets have one UDP port, and what comes is the last one's. Among the sockets of one
/// process rings know which that is, among processes only the kernel does. So a process whose rings take what comes to
/// such a port listens on an AF_UNIX socket with the port's name (the abstract names of a network namespace are its
/// own); one that wants to do so as well connects there, and both leave the port to the kernel: the connection is
/// closed when that is done. Who else uses the name, which everybody may, makes sockets slower and nothing else.
///
/// Threads: any.
class PortClaims {
 public:
  PortClaims() = default;
  PortClaims(const PortClaims&) = delete;
  PortClaims& operator=(const PortClaims&) = delete;

  /// True: rings may take what comes to `port` for `socket`; when another process wants to, too, its
  /// leave_port_to_kernel() is called, by the service thread. False: the port is the kernel's. Takes some 0.2 s at
  /// most, when that process does not answer; else much less.
  bool enter(std::uint16_t port, UdpSocket& socket);
  /// Harmless when it has not entered. Not with locks that leave_port_to_kernel() takes.
  void leave(std::uint16_t port, UdpSocket& socket);

  // fork(2): a child has no claims.
  void before_fork() { lock_.lock(); }
  void after_fork_in_parent() { lock_.unlock(); }
  void after_fork_in_child();

 private:
  struct Claim {
    UniqueFd listener;
    runtime::ServiceThread::Id watch = 0;
    std::vector<UdpSocket*> sockets;
  };
  using Claims = std::unordered_map<std::uint16_t, Claim>;
  bool try_to_enter(std::uint16_t port, UdpSocket& socket);
  void visitors_came(std::uint16_t port);

  Mutex lock_;
  Claims claims_;
};

PortClaims& port_claims();

}  // namespace ringsock::vma
