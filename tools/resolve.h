// Resolves names to addresses, by getaddrinfo(3) or by the RDMA connection manager.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace ringsock::tools {

enum class AddressFormat {
  name,  ///< any name for getaddrinfo(3)
  ip,    ///< a numeric address
  ipv6,  ///< a numeric IPv6 address
  gid,   ///< an InfiniBand GID: by rdma_getaddrinfo(3) and AF_IB
};

struct ResolveRequest {
  std::string node;      ///< empty: the wildcard of a server
  std::string port;      ///< empty: any
  bool passive = false;  ///< for bind() rather than connect()
  AddressFormat format = AddressFormat::name;
  bool by_rdma_cm = false;
};

struct Resolved {
  sockaddr_storage address{};
  socklen_t length = 0;
  std::vector<std::byte> route;  ///< for SOL_RDMA/RDMA_ROUTE; empty when the resolver gave none

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  [[nodiscard]] int family() const { return address.ss_family; }
};

/// Returns the first suitable address. A failure that is no errno value (unknown name ...) has been reported on stderr.
Result<Resolved> resolve(const ResolveRequest& request);

/// Returns the numeric host part of an address.
std::string host_text(const sockaddr* address, socklen_t length);

}  // namespace ringsock::tools
