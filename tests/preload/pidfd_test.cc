// pidfd_getfd(2): a descriptor of another process, which does not notice it.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "tests/preload/preloaded.h"

extern "C" int pidfd_getfd(int process, int fd, unsigned flags) noexcept;

namespace ringsock::preloaded {
namespace {

TEST(PidfdGetfd, IsRefusedForAConnectionOnARing) {
  const Ends ends;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = spawn([] { ::pause(); });
  const auto process = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  ASSERT_GE(process, 0);
  const int copy = ::pidfd_getfd(process, pipe[0], 0);
  EXPECT_GE(copy, 0) << "a pipe is given";
  ::close(copy);
  for (const int fd : {ends.ours, ends.peers}) {
    EXPECT_EQ(::pidfd_getfd(process, fd, 0), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(::syscall(SYS_pidfd_getfd, process, fd, 0), -1);
    EXPECT_EQ(errno, EPERM);
  }
  ::kill(child, SIGKILL);
  wait_for(child);
  send_all(ends.ours, "still");
  EXPECT_EQ(receive(ends.peers, 5), "still");
  for (const int fd : {process, pipe[0], pipe[1]}) ::close(fd);
}

}  // namespace
}  // namespace ringsock::preloaded
