// The other end of the programs that measure between two hosts (two_hosts.sh). They have no GoogleTest.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace ringsock::vma_tests {

inline sockaddr_in measured_peer() {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(7001);
  ::inet_pton(AF_INET, "10.9.0.2", &out.sin_addr);
  return out;
}

}  // namespace ringsock::vma_tests
