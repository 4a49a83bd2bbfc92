// Which sockets of this host have a UDP port: the kernel's own answer, sock_diag(7).
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
  int interface = 0;  ///< SO_BINDTODEVICE, 0: any
};

/// Whether datagrams of a network may be for either. Those of the loopback are never a ring's.
bool compete(const PortPlace& ours, const PortPlace& other);

struct PortHolder {
  PortPlace place;
  uid_t uid;
  ino_t inode;  ///< as fstat(2) has it
};

/// Somebody who listens under an abstract AF_UNIX name.
struct NameHolder {
  std::string name;
  uid_t uid;
};

/// Asks the kernel about the network namespace in which this was made. No question waits: the kernel answers within the
/// calls. How long they take on a busy host says nothing of the answer, so only `visit` ends one early, by what it has
/// seen. An answer that was interrupted is asked for again. Threads: one at a time.
class SocketDiagnosis {
 public:
  /// Errors: those of socket(2).
  static Result<SocketDiagnosis> open();

  template <class Found>
  using Visit = std::function<bool(const Found&)>;  ///< false: enough

  /// Calls `visit` for all UDP sockets that have the port, for some of them more than once when the kernel was asked
  /// again. Errors: ENOENT the kernel cannot tell; what sendto(2) and recvfrom(2) go on failing with.
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
  std::uint32_t question_ = 0;   ///< the last one's number
  bool is_answer_left_ = false;  ///< the kernel has, or may have, more of it
};

}  // namespace ringsock::vma
