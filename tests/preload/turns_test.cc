// Parents and children that use one connection in turns or at once, as they may with the kernel's: whoever comes second
// goes on where the first one is.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/preload/calls.h"
#include "tests/preload/preloaded.h"
#include "tests/support/sanitizers.h"

namespace ringsock::preloaded {
namespace {

[[maybe_unused]] const ::testing::Environment* const may_fork = ::testing::AddGlobalTestEnvironment(new MayFork);

/// In turns: pipes tell whose turn it is.
class Turns {
 public:
  void give() { signal_.give(); }
  void take() { signal_.wait(); }

 private:
  Signal signal_;
};

TEST(Turns, TheParentComesAfterItsChild) {
  Echo echo;
  ask(echo.fd, "before");
  const pid_t child = spawn([&] { ask(echo.fd, pattern(100'000, 1)); });
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, pattern(100'000, 2));
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, TheChildComesWhileItsParentIsTheUser) {
  Echo echo;
  Signal parent_was_there;
  Signal child_was_there;
  const pid_t child = spawn([&] {
    parent_was_there.wait();
    ask(echo.fd, pattern(100'000, 1));
    child_was_there.give();
  });
  ask(echo.fd, "parent");
  parent_was_there.give();
  child_was_there.wait();
  ask(echo.fd, pattern(100'000, 2));
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, TheyTakeManyTurns) {
  Echo echo;
  Signal to_child[50];
  Signal to_parent[50];
  const pid_t child = spawn([&] {
    for (unsigned i = 0; i < 50; ++i) {
      to_child[i].wait();
      ask(echo.fd, pattern(1000 + i, i));
      to_parent[i].give();
    }
  });
  for (unsigned i = 0; i < 50; ++i) {
    ask(echo.fd, pattern(2000 + i, i));
    to_child[i].give();
    to_parent[i].wait();
  }
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, OneReadsWhileTheOtherWrites) {
  Echo echo;
  const std::string sent = pattern(3'000'000, 7);
  const pid_t child = spawn([&] {
    send_all(echo.fd, sent);
    ::shutdown(echo.fd, SHUT_WR);
  });
  const std::string got = receive_all(echo.fd);
  EXPECT_EQ(got.size(), sent.size());
  EXPECT_TRUE(got == sent);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, TheReaderSleepsAlreadyWhenTheOtherBegins) {
  Echo echo;
  std::string got;
  Signal reads;
  const pid_t child = spawn([&] {
    reads.wait();
    send_all(echo.fd, "from the child");
  });
  std::thread reader([&] { got = receive(echo.fd, 14); });
  ::usleep(50'000);
  reads.give();
  reader.join();
  EXPECT_EQ(got, "from the child");
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, WhoWaitsInPollAndEpollIsWokenByWhatTheOtherAskedFor) {
  for (const bool by_epoll : {false, true}) {
    Echo echo;
    Signal waits;
    const pid_t child = spawn([&] {
      waits.wait();
      ::usleep(50'000);
      send_all(echo.fd, "hello");
    });
    int ready = 0;
    if (by_epoll) {
      const int set = ::epoll_create1(0);
      epoll_event event{EPOLLIN, {}};
      EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, echo.fd, &event), 0);
      EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0);
      waits.give();
      ready = ::epoll_wait(set, &event, 1, 10'000);
      ::close(set);
    } else {
      pollfd entry{echo.fd, POLLIN, 0};
      EXPECT_EQ(::poll(&entry, 1, 0), 0);
      waits.give();
      ready = ::poll(&entry, 1, 10'000);
      EXPECT_EQ(entry.revents, POLLIN);
    }
    EXPECT_EQ(ready, 1);
    EXPECT_EQ(receive(echo.fd, 5), "hello");
    EXPECT_EQ(wait_for(child), 0);
    EXPECT_EQ(echo.end(), 0);
  }
}

TEST(Turns, OneChildComesAfterTheOther) {
  Echo echo;
  for (unsigned i = 0; i < 3; ++i) {
    const pid_t child = spawn([&] { ask(echo.fd, pattern(10'000, i)); });
    EXPECT_EQ(wait_for(child), 0);
  }
  ask(echo.fd, "the parent");
  EXPECT_EQ(echo.end(), 0);
}

/// The parent has not seen that its messages are finished; what its children see of that is no news for it, nor for the
/// next child.
TEST(Turns, OneChildComesAfterTheOtherBehindTheParentsShutdown) {
  const std::string text = pattern(300, 1);
  Call call([&](int client) {
    send_all(client, text);
    receive_all(client);
  });
  ASSERT_EQ(receive(call.fd, 1), text.substr(0, 1));
  ASSERT_EQ(::shutdown(call.fd, SHUT_WR), 0);
  for (std::size_t i = 0; i < 2; ++i) {
    const pid_t child = spawn([&] { EXPECT_EQ(receive(call.fd, 100), text.substr(1 + 100 * i, 100)); });
    EXPECT_EQ(wait_for(child), 0);
  }
  EXPECT_EQ(receive(call.fd, 99), text.substr(201));
  EXPECT_EQ(call.end(), 0);
}

/// A child sends "child" and ends by _exit(2), if `enters` returns true.
template <class Enters>
void have_child_send_and_exit(int fd, Enters enters) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool sent = enters() && ::send(fd, "child", 5, 0) == 5;
    ::_exit(sent ? 0 : 1);
  }
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(receive(fd, 5), "child");
}

TEST(Turns, AChildThatEndsByUnderscoreExitLeavesItToItsParent) {
  Echo echo;
  have_child_send_and_exit(echo.fd, [] { return true; });
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, AChildThatEndsWhereItSeesNoProcLeavesItToItsParent) {
  if (::geteuid() != 0) GTEST_SKIP() << "chroot(2)";
  char folder[] = "/tmp/ringsock-turns-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  Echo echo;
  have_child_send_and_exit(echo.fd, [&] { return ::chroot(folder) == 0 && ::chdir("/") == 0; });
  ::rmdir(folder);
  ask(echo.fd, "parent");
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, GrandchildrenAskAcrossGenerations) {
  Echo echo;
  Signal used;
  Signal done;
  const pid_t child = spawn([&] {
    const pid_t grandchild = spawn([&] {
      used.wait();
      ask(echo.fd, "grandchild");
      done.give();
    });
    ask(echo.fd, "child");
    used.give();
    expect(wait_for(grandchild) == 0, "the grandchild had its answer");
  });
  done.wait();
  ask(echo.fd, "parent");
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

/// A program that writes "said echo" to the connection, after `wait()`.
template <class Wait>
pid_t start_program_on(int fd, Wait wait) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  wait();
  ::dup2(fd, STDOUT_FILENO);
  ::execlp("echo", "echo", "-n", "said echo", nullptr);
  ::_exit(127);
}

TEST(Turns, AProgramWritesAndItsParentReadsTheAnswer) {
  Echo echo;
  ask(echo.fd, "before");
  const pid_t child = start_program_on(echo.fd, [] {});
  EXPECT_EQ(receive(echo.fd, 9), "said echo");
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "after");
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, AProgramWritesAfterItsParentHasBegunToUseTheConnection) {
  Echo echo;
  Signal used;
  const pid_t child = start_program_on(echo.fd, [&] { used.wait(); });
  ask(echo.fd, "parent");
  used.give();
  EXPECT_EQ(receive(echo.fd, 9), "said echo");
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "after");
  EXPECT_EQ(echo.end(), 0);
}

/// A program that inherits the connection as it is, and has it as S.
pid_t start_perl_with(int fd, const char* script) {
  const std::string program = "open(S, '+<&=', " + std::to_string(fd) + ") or die; " + script;
  return spawn([&] { ::execl("/usr/bin/perl", "perl", "-e", program.c_str(), nullptr); });
}

TEST(Turns, AParentComesAfterAProgramThatUsesWhatItInherits) {
  for (const bool used_before : {false, true}) {
    Echo echo;
    if (used_before) ask(echo.fd, "before");
    const char* const script = "syswrite(S, 'perl') == 4 && sysread(S, $b, 4) == 4 && $b eq 'perl' or die";
    EXPECT_EQ(wait_for(start_perl_with(echo.fd, script)), 0);
    ask(echo.fd, pattern(100'000, 1));
    EXPECT_EQ(echo.end(), 0);
  }
}

TEST(Turns, AProgramThatUsesNothingTakesNothing) {
  Echo echo;
  EXPECT_EQ(wait_for(start_perl_with(echo.fd, "")), 0);
  ask(echo.fd, "parent");
  EXPECT_TRUE(is_on_ring(echo.fd));
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, AProgramThatHasClosedItKeepsNoConnectionOpen) {
  Echo echo;
  const pid_t program = start_perl_with(echo.fd, "close(S); sleep(1000)");
  ::usleep(200'000);
  ask(echo.fd, "parent");
  EXPECT_EQ(echo.end(), 0);
  ::kill(program, SIGKILL);
  EXPECT_EQ(wait_for(program), 128 + SIGKILL);
}

TEST(Turns, TheEndComesOnceAllHaveClosed) {
  Echo echo;
  Signal used;
  Signal use_again;
  const pid_t child = spawn([&] {
    ask(echo.fd, "child");
    used.give();
    use_again.wait();
    ask(echo.fd, "child again");
  });
  used.wait();
  ask(echo.fd, "parent");
  ::close(echo.fd);
  ::usleep(100'000);
  use_again.give();
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, NoDescriptorIsLeftBehind) {
  const auto next_number = [] {
    const int fd = ::open("/dev/null", O_RDONLY);
    ::close(fd);
    return fd;
  };
  const int before = next_number();
  for (int i = 0; i < 40; ++i) {
    Echo echo;
    EXPECT_EQ(wait_for(spawn([&] { ask(echo.fd, "child"); })), 0);
    ask(echo.fd, "parent");
    EXPECT_EQ(echo.end(), 0);
  }
  constexpr int kAwaitingTheirDestructor = 34;  // objects that calls may still be using
  EXPECT_LE(next_number(), before + kAwaitingTheirDestructor);
}

TEST(Turns, TwoConnectionsOfOneChildGoOnInTheParent) {
  Echo one;
  Echo two;
  const pid_t child = spawn([&] {
    ask(one.fd, "child, one");
    ask(two.fd, "child, two");
  });
  EXPECT_EQ(wait_for(child), 0);
  ask(two.fd, "parent, two");
  ask(one.fd, "parent, one");
  EXPECT_EQ(two.end(), 0);  // its peer has a copy of the other one
  EXPECT_EQ(one.end(), 0);
}

TEST(Turns, NobodyGoesOnWithAnOldCopyAfterTheUserHasForked) {
  Echo one;
  Echo two;
  Signal used;
  Signal asked;
  const pid_t child = spawn([&] {
    ask(one.fd, "child, one");
    ask(two.fd, "child, two");
    wait_for(spawn([] {}));
    used.give();
    asked.wait();
    ask(one.fd, "child, once more");
    ask(two.fd, "child, once more");
  });
  used.wait();
  ask(one.fd, "parent, one");
  ask(two.fd, "parent, two");
  asked.give();
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(two.end(), 0);  // its peer has a copy of the other one
  EXPECT_EQ(one.end(), 0);
}

TEST(Turns, AChildMayCloseTheConnectionBeforeItEnds) {
  Echo echo;
  const pid_t child = spawn([&] {
    ask(echo.fd, "child");
    ::close(echo.fd);
  });
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "parent");
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, OptionsStay) {
  Echo echo;
  const timeval limit{0, 50'000};
  EXPECT_EQ(::setsockopt(echo.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(wait_for(spawn([&] { ask(echo.fd, "child"); })), 0);
  ask(echo.fd, "parent");
  char byte = 0;
  EXPECT_EQ(error_of(::recv(echo.fd, &byte, 1, 0)), EAGAIN);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, AnOptionCountsThatIsSetWhileTheOtherOneUsesTheConnection) {
  Echo echo;
  Signal used;
  Signal done;
  const pid_t child = spawn([&] {
    ask(echo.fd, "child");
    used.give();
    done.wait();
  });
  used.wait();
  const timeval limit{0, 50'000};
  EXPECT_EQ(::setsockopt(echo.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EXPECT_EQ(::setsockopt(echo.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  char byte = 0;
  EXPECT_EQ(error_of(::recv(echo.fd, &byte, 1, 0)), EAGAIN);
  done.give();
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, ASenderThatSleepsSinceBeforeTheForkGoesOn) {
  const std::string parents = pattern(8'000'000, 1);
  const std::string childs = pattern(4'000'000, 2);
  const Call reader([&](int fd) {
    ::usleep(300'000);
    expect(receive_all(fd).size() == parents.size() + childs.size(), "all of both");
  });
  std::thread sender([&] { send_all(reader.fd, parents); });
  ::usleep(100'000);
  const pid_t child = spawn([&] { send_all(reader.fd, childs); });
  sender.join();
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(reader.end(), 0);
}

/// How the parent's call moves `bytes` in one go.
struct OneCall {
  const char* name;
  ssize_t (*send)(int fd, std::string& bytes);
  ssize_t (*receive)(int fd, std::string& bytes);
};
class OneCallMovesAll : public ::testing::TestWithParam<OneCall> {};

template <class Call>
ssize_t in_three_parts(std::string& bytes, Call call) {
  const std::size_t third = bytes.size() / 3;
  std::array<iovec, 3> parts{
      {{bytes.data(), third}, {bytes.data() + third, third}, {bytes.data() + 2 * third, bytes.size() - 2 * third}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return call(message);
}

constexpr OneCall kOneCalls[] = {
    {"send", [](int fd, std::string& bytes) { return ::send(fd, bytes.data(), bytes.size(), 0); },
     [](int fd, std::string& bytes) { return ::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL); }},
    {"sendto", [](int fd, std::string& bytes) { return ::sendto(fd, bytes.data(), bytes.size(), 0, nullptr, 0); },
     [](int fd, std::string& bytes) {
       sockaddr_storage from{};
       socklen_t length = sizeof from;
       return ::recvfrom(fd, bytes.data(), bytes.size(), MSG_WAITALL, reinterpret_cast<sockaddr*>(&from), &length);
     }},
    {"sendmsg",
     [](int fd, std::string& bytes) {
       return in_three_parts(bytes, [fd](const msghdr& message) { return ::sendmsg(fd, &message, 0); });
     },
     [](int fd, std::string& bytes) {
       return in_three_parts(bytes, [fd](msghdr& message) { return ::recvmsg(fd, &message, MSG_WAITALL); });
     }},
    {"writev",
     [](int fd, std::string& bytes) {
       return in_three_parts(bytes, [fd](const msghdr& message) {
         return ::writev(fd, message.msg_iov, static_cast<int>(message.msg_iovlen));
       });
     },
     [](int fd, std::string& bytes) { return ::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL); }},
};

TEST_P(OneCallMovesAll, ThatSends) {
  std::string parents = pattern(8'000'000, 1);
  std::replace(parents.begin(), parents.end(), '\xff', '\xfe');
  const Call reader([&](int fd) {
    ::usleep(300'000);
    const std::string got = receive_all(fd);
    expect(got.size() == parents.size() + 1, "all of both");
    // The kernel may take it somewhere in between.
    const std::size_t childs = got.find('\xff');
    expect(got.substr(0, childs) + got.substr(childs + 1) == parents, "in order");
  });
  Signal sends;
  Signal sent;
  const pid_t child = spawn([&] {
    sends.wait();
    ::usleep(100'000);
    send_all(reader.fd, "\xff");
    sent.wait();  // SIGCHLD would interrupt the parent's call
  });
  sends.give();
  EXPECT_EQ(GetParam().send(reader.fd, parents), static_cast<ssize_t>(parents.size()));
  sent.give();
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(reader.end(), 0);
}

TEST_P(OneCallMovesAll, ThatReceives) {
  Echo echo;
  const std::string one = pattern(1000, 1);
  const std::string two = pattern(1000, 2);
  Signal receives;
  const pid_t child = spawn([&] {
    receives.wait();
    ::usleep(100'000);
    send_all(echo.fd, two);
  });
  send_all(echo.fd, one);
  receives.give();
  std::string got(2000, '\0');
  EXPECT_EQ(GetParam().receive(echo.fd, got), 2000);
  EXPECT_TRUE(got == one + two);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

INSTANTIATE_TEST_SUITE_P(Turns, OneCallMovesAll, ::testing::ValuesIn(kOneCalls),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Turns, AllWantItAtOnce) {
  for (int round = 0; round < 40; ++round) {
    Echo echo;
    std::vector<pid_t> children;
    const auto sent = pattern(20'000, 3);
    for (int i = 0; i < 4; ++i) {
      children.push_back(spawn([&] {
        for (std::size_t at = 0; at < sent.size(); at += 1000)
          expect(::send(echo.fd, sent.data() + at, 1000, MSG_NOSIGNAL) == 1000, "a whole piece");
      }));
    }
    EXPECT_EQ(receive(echo.fd, 4 * sent.size()).size(), 4 * sent.size());
    for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
    ASSERT_EQ(echo.end(), 0);
  }
}

TEST(Turns, AKilledHolderKeepsNoConnectionOpen) {
  Echo echo;
  const pid_t holder = spawn([&] { ::pause(); });
  const pid_t child = spawn([&] { ask(echo.fd, "child"); });
  EXPECT_EQ(wait_for(child), 0);
  ask(echo.fd, "parent");
  ::kill(holder, SIGKILL);
  EXPECT_EQ(wait_for(holder), 128 + SIGKILL);
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, AfterAKilledUserTheOtherOneGoesOn) {
  Echo echo;
  have_user_killed(echo.fd, spawn);
  ask(echo.fd, "parent");
  EXPECT_EQ(echo.end(), 0);
}

TEST(Turns, ANonblockingSocketStaysSo) {
  Echo echo;
  ::fcntl(echo.fd, F_SETFL, ::fcntl(echo.fd, F_GETFL) | O_NONBLOCK);
  Signal used;
  Signal done;
  const pid_t child = spawn([&] {
    send_all(echo.fd, "x");
    used.give();
    done.wait();
  });
  used.wait();
  char byte = 0;
  pollfd entry{echo.fd, POLLIN, 0};
  ssize_t got = -1;
  while (got < 0 && ::poll(&entry, 1, 10'000) == 1) {
    got = ::recv(echo.fd, &byte, 1, 0);
    ASSERT_TRUE(got >= 0 || errno == EAGAIN);
  }
  EXPECT_EQ(got, 1);
  EXPECT_EQ(error_of(::recv(echo.fd, &byte, 1, 0)), EAGAIN);
  done.give();
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(echo.end(), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
