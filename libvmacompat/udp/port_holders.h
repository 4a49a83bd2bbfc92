// The sockets of this host that have a UDP port, as the kernel reports them by sock_diag(7).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"

namespace ringsock::vma {

/// Where a UDP socket receives.
struct PortPlace {
  SocketAddress local;
  bool v6_only = false;
  int interface = 0;  ///< SO_BINDTODEVICE; 0: any
};

/// Returns whether a datagram from a network may be for either socket. Rings never receive datagrams of the loopback
/// interface.
bool compete(const PortPlace& ours, const PortPlace& other);

struct PortHolder {
  PortPlace place;
  uid_t uid;
  ino_t inode;  ///< as in fstat(2)
};

/// A process that listens under an abstract AF_UNIX name.
struct NameHolder {
  std::string name;
  uid_t uid;
};

/// Asks the kernel about the network namespace in which this object was made. Questions do not wait: the kernel answers
/// within the system calls. Their duration on a busy host says nothing about the answer, so there is no time limit:
/// only `visit` ends an answer early. An interrupted answer is asked for again. Threads: one at a time.
class SocketDiagnosis {
 public:
  /// Errors: those of socket(2).
  static Result<SocketDiagnosis> open();

  template <class Found>
  using Visit = std::function<bool(const Found&)>;  ///< returns false to end the answer

  /// Calls `visit` for each UDP socket that has the port, and for some more than once when the kernel was asked again.
  /// Errors: ENOENT the kernel does not support this; those of sendto(2) and recvfrom(2) when they persist.
  Status holders(std::uint16_t port, const Visit<PortHolder>& visit);
  /// The same for listening AF_UNIX sockets with abstract names (given without the zero byte).
  Status names(const Visit<NameHolder>& visit);

 private:
  explicit SocketDiagnosis(UniqueFd socket) : socket_(std::move(socket)) {}
  using VisitMessage = std::function<bool(const void* data, std::size_t length)>;
  template <class Request>
  Status ask(const Request& request, const VisitMessage& visit);
  template <class Request>
  Status ask_once(const Request& request, const VisitMessage& visit);
  Result<bool> read_answer(const VisitMessage& visit);
  void forget_answer();

  UniqueFd socket_;
  std::uint32_t question_ = 0;   ///< of the last question
  bool is_answer_left_ = false;  ///< the kernel has, or may have, more of the last answer
};

}  // namespace ringsock::vma
