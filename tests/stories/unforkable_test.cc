// rsockets in processes that fork, on a device whose connections stay with the process that made them: the embedded
// device pretends to be one. There is no kernel listener beside an rsocket's.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace ringsock::stories {
namespace {

[[maybe_unused]] const int kPretends = ::setenv("RINGSOCK_TEST_SOFT_LIKE", "unforkable", 1);

int in_child(int (*body)(int), int fd) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body(fd));
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(UnforkableRsocket, AnInheritedListenerIsTheParents) {
  const int listener = rsocket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(rbind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(rlisten(listener, 4), 0);
  ASSERT_EQ(rgetsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);

  const auto accept_fails = [](int fd) {
    if (raccept(fd, nullptr, nullptr) >= 0 || errno != EIO) return 1;
    pollfd entry{fd, POLLIN, 0};
    return rpoll(&entry, 1, 0) == 1 && (entry.revents & POLLERR) != 0 ? 0 : 2;
  };
  EXPECT_EQ(in_child(accept_fails, listener), 0);

  const int alice = rsocket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(rconnect(alice, reinterpret_cast<sockaddr*>(&address), length), 0) << errno;
  const int bob = raccept(listener, nullptr, nullptr);
  ASSERT_GE(bob, 0);
  ASSERT_EQ(rsend(alice, "!", 1, 0), 1);
  char byte = 0;
  EXPECT_EQ(rrecv(bob, &byte, 1, 0), 1);
  for (const int fd : {alice, bob, listener}) rclose(fd);
}

}  // namespace
}  // namespace ringsock::stories
