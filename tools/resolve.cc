#include "tools/resolve.h"

#include <netdb.h>
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>

namespace ringsock::tools {

namespace {

const char* or_null(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }

Result<Resolved> copied(const sockaddr* address, socklen_t length) {
  Resolved out;
  if (address == nullptr || length > sizeof out.address) return Error{EADDRNOTAVAIL, "resolve"};
  std::memcpy(&out.address, address, length);
  out.length = length;
  return out;
}

Result<Resolved> by_libc(const ResolveRequest& request) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = request.passive ? AI_PASSIVE : 0;
  if (request.format != AddressFormat::name) hints.ai_flags |= AI_NUMERICHOST;
  if (request.format == AddressFormat::ipv6) hints.ai_family = AF_INET6;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(or_null(request.node), or_null(request.port), &hints, &found);
  if (error == EAI_SYSTEM) return Error::last("getaddrinfo");
  if (error != 0) {
    std::fprintf(stderr, "%s: %s\n", request.node.c_str(), ::gai_strerror(error));
    return Error{EADDRNOTAVAIL, "getaddrinfo"};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  return copied(found->ai_addr, found->ai_addrlen);
}

Result<Resolved> by_rdma_cm(const ResolveRequest& request) {
  rdma_addrinfo hints{};
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_flags = request.passive ? RAI_PASSIVE : 0;
  if (request.format != AddressFormat::name) hints.ai_flags |= RAI_NUMERICHOST;
  if (request.format == AddressFormat::ipv6 || request.format == AddressFormat::gid) {
    hints.ai_flags |= RAI_FAMILY;
    hints.ai_family = request.format == AddressFormat::gid ? AF_IB : AF_INET6;
  }
  rdma_addrinfo* found = nullptr;
  if (::rdma_getaddrinfo(or_null(request.node), or_null(request.port), &hints, &found) != 0) {
    return Error{errno != 0 ? errno : EADDRNOTAVAIL, "rdma_getaddrinfo"};
  }
  const std::unique_ptr<rdma_addrinfo, decltype(&::rdma_freeaddrinfo)> owner(found, &::rdma_freeaddrinfo);
  auto out =
      request.passive ? copied(found->ai_src_addr, found->ai_src_len) : copied(found->ai_dst_addr, found->ai_dst_len);
  if (out && !request.passive && found->ai_route != nullptr && found->ai_route_len > 0) {
    const std::span route(static_cast<const std::byte*>(found->ai_route),
                          static_cast<std::size_t>(found->ai_route_len));
    out->route.assign(route.begin(), route.end());
  }
  return out;
}

}  // namespace

Result<Resolved> resolve(const ResolveRequest& request) {
  return request.by_rdma_cm || request.format == AddressFormat::gid ? by_rdma_cm(request) : by_libc(request);
}

std::string host_text(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "?";
  ::getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

}  // namespace ringsock::tools
