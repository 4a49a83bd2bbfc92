#include "core/net/local_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <cstring>

#include "core/base/unique_fd.h"

namespace ringsock::net {
namespace {

SocketAddress v4(const char* text) {
  in_addr address{};
  ::inet_pton(AF_INET, text, &address);
  return SocketAddress::v4(ntohl(address.s_addr), 0);
}

SocketAddress v6(const char* text) {
  in6_addr address{};
  ::inet_pton(AF_INET6, text, &address);
  return SocketAddress::v6(address, 0);
}

bool is_local(const SocketAddress& address) {
  auto answer = is_local_address(address);
  EXPECT_TRUE(answer) << address.to_string();
  return answer && *answer;
}

TEST(LocalAddress, LoopbackIsLocal) {
  EXPECT_TRUE(is_local(v4("127.0.0.1")));
  EXPECT_TRUE(is_local(v4("127.255.0.9")));
  EXPECT_TRUE(is_local(v6("::1")));
  EXPECT_TRUE(is_local(v6("::ffff:127.0.0.1")));
}

TEST(LocalAddress, WildcardsAreNoAddress) {
  EXPECT_FALSE(is_local(v4("0.0.0.0")));
  EXPECT_FALSE(is_local(v6("::")));
  EXPECT_FALSE(is_local(SocketAddress()));
}

TEST(LocalAddress, AddressesForDocumentationAreElsewhere) {
  EXPECT_FALSE(is_local(v4("192.0.2.1")));
  EXPECT_FALSE(is_local(v6("2001:db8::1")));
}

/// Runs in a network namespace of its own: gives its loopback interface the address 192.0.2.1/32 and asks.
/// @return exit status: 0 right answers, 77 no permission for a namespace, else what was wrong
int answers_in_own_namespace() {
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return 77;
  const UniqueFd control(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP;
  if (::ioctl(control.get(), SIOCSIFFLAGS, &request) != 0) return 77;

  const SocketAddress address = v4("192.0.2.1");
  std::strcpy(request.ifr_name, "lo:1");
  std::memcpy(&request.ifr_addr, address.get(), sizeof(sockaddr_in));
  if (::ioctl(control.get(), SIOCSIFADDR, &request) != 0) return 77;
  const SocketAddress mask = v4("255.255.255.255");
  std::memcpy(&request.ifr_netmask, mask.get(), sizeof(sockaddr_in));
  if (::ioctl(control.get(), SIOCSIFNETMASK, &request) != 0) return 77;

  if (!is_local(address)) return 1;
  if (!is_local(address.mapped())) return 2;
  if (is_local(v4("192.0.2.2"))) return 3;
  return 0;
}

TEST(LocalAddress, FollowsTheInterfacesOfItsNetworkNamespace) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(answers_in_own_namespace());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no permission to make a network namespace";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace ringsock::net
