// By what the kernel tells the flows of a multipath route apart.
#pragma once

#include <array>
#include <atomic>

#include "core/base/unique_fd.h"

namespace ringsock::net {

/// The sysctl fib_multipath_hash_policy of both families, of whose changes netlink does not tell. Two descriptors on
/// kernels with multipath routes. Threads: any, except open(), and has_changed(), which one thread calls at a time.
class MultipathWatch {
 public:
  /// Opens the files; the calling thread must be in the network namespace.
  void open();
  /// Returns whether flows between the same addresses may take different paths because of their ports. Reads a file.
  [[nodiscard]] bool distributes_by_ports(int family);
  /// Returns whether a policy is another one than at the last call for its family. Reads both files.
  bool has_changed();

 private:
  struct Policy {
    UniqueFd file;
    bool is_unknown = false;           ///< it exists and may not be read
    std::atomic<char> last_read{'0'};  ///< '0': by addresses only
  };
  static char read(const Policy& policy);

  std::array<Policy, 2> policies_;  ///< of IPv4 and IPv6
};

}  // namespace ringsock::net
