// Forks of a process whose other threads are busy.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ringsock::support {

/// Forks so many times, at various moments of what other threads do. Each child closes the low descriptors and ends;
/// one that does not get there within 20 seconds fails the test.
inline void let_children_close(int forks) {
  constexpr int kFirst = 3, kLast = 30;
  constexpr unsigned kPatience = 20;  // seconds
  for (int i = 0; i < forks && !testing::Test::HasFailure(); ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(kPatience);
      for (int fd = kFirst; fd < kLast; ++fd) ::close(fd);
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << i;
    ::usleep(static_cast<useconds_t>(i * 13 % 2000));  // the next fork meets another moment
  }
}

}  // namespace ringsock::support
