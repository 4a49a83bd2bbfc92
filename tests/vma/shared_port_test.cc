// One port, several sockets.
#include <sys/wait.h>

#include <string>
#include <vector>

#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

class SharedPort : public Udp {
 protected:
  SharedPort() : messenger_(echo_) {}

  Socket reusing(std::uint16_t port = 0) {
    Socket socket(GetParam().family);
    socket.limit_waits();
    socket.set(SOL_SOCKET, SO_REUSEADDR, 1);
    const Address any(GetParam().family == AF_INET ? "0.0.0.0" : "::", port);
    EXPECT_EQ(::bind(socket, any.get(), any.length()), 0) << std::strerror(errno);
    return socket;
  }
  void other_host_sends(const std::string& text, std::uint16_t port) { messenger_.send(text, GetParam().here, port); }

  const Messenger messenger_;
};
INSTANTIATE_TEST_SUITE_P(Over, SharedPort, both_versions(), name_of_version);

TEST_P(SharedPort, TheLastSocketOfAProcessGetsAll) {
  const Socket first = reusing();
  const std::uint16_t port = first.name().port();
  {
    const Socket second = reusing(port);
    other_host_sends("second", port);
    EXPECT_EQ(all_of(second), Texts{"second"});
    EXPECT_EQ(all_of(first), Texts());
  }
  other_host_sends("first", port);
  EXPECT_EQ(all_of(first), Texts{"first"});
}

TEST_P(SharedPort, TheLastSocketOfTheHostGetsAll) {
  int ready[2], told[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(told), 0);
  const pid_t child = ::fork();  // before it has sockets that the parent has, too
  char byte = 0;
  if (child == 0) {
    std::uint16_t port = 0;
    if (::read(told[0], &port, sizeof port) != sizeof port) ::_exit(2);
    const Socket theirs = reusing(port);
    if (::write(ready[1], "r", 1) != 1 || ::read(told[0], &byte, 1) != 1) ::_exit(2);
    ::_exit(all_of(theirs) == Texts{"child's"} ? 0 : 1);
  }
  const Socket mine = reusing();
  const std::uint16_t port = mine.name().port();
  other_host_sends("mine", port);
  EXPECT_EQ(all_of(mine), Texts{"mine"});

  ASSERT_EQ(::write(told[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  other_host_sends("child's", port);
  EXPECT_EQ(all_of(mine), Texts());
  ASSERT_EQ(::write(told[1], "t", 1), 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);

  other_host_sends("mine again", port);
  EXPECT_EQ(all_of(mine), Texts{"mine again"});
  for (const int fd : {ready[0], ready[1], told[0], told[1]}) ::close(fd);
}

TEST_P(SharedPort, WhoIsConnectedGoesBeforeWhoIsNot) {
  const Socket connected = reusing();
  const std::uint16_t port = connected.name().port();
  ASSERT_EQ(::connect(connected, echo_.get(), echo_.length()), 0);
  const Socket other = reusing(port);
  other_host_sends("for the connected one", port);
  EXPECT_EQ(all_of(connected), Texts{"for the connected one"});
  EXPECT_EQ(all_of(other), Texts());
}

}  // namespace
}  // namespace ringsock::vma_tests
