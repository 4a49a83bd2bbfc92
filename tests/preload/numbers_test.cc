// Descriptor numbers: the library's own descriptors are not in the way of the program's.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/preload/preloaded.h"

namespace ringsock::preloaded {
namespace {

/// A process that hangs is killed, and fails.
void limit_life() { ::alarm(20); }

int in_child(const std::function<void()>& body) {
  return wait_for(spawn([&] {
    limit_life();
    body();
  }));
}

int open_nothing() { return ::open("/dev/null", O_RDWR); }

// As programs do that read and write a connection as standard input and output.
TEST(Numbers, AConnectionThatAStandardStreamTakesOverLeavesTheLowestFree) {
  EXPECT_EQ(in_child([] {
              ::close(STDIN_FILENO);
              expect(open_nothing() == STDIN_FILENO, "the lowest number");
              const Listener listener = listen_anywhere();
              const int client = connect_to(listener.port);
              const int server = ::accept(listener.fd, nullptr, nullptr);
              expect(is_on_ring(client), "a ring");
              ::close(STDIN_FILENO);
              expect(::dup2(client, STDOUT_FILENO) == STDOUT_FILENO, "dup2");
              expect(!is_on_ring(client), "a kernel socket");
              const int file = open_nothing();
              expect(file == STDIN_FILENO, "the lowest number again");
              send_all(server, "text");
              expect(receive(STDOUT_FILENO, 4) == "text", "the connection");
              ::close(STDOUT_FILENO);
              ::close(client);
              expect(receive_all(server).empty(), "the end");
              ::close(server);
              expect(::lseek(file, 0, SEEK_CUR) == 0, "the program's file");
            }),
            0);
}

/// A way in which a daemon closes every descriptor but those up to the standard streams and one listener.
using CloseOthers = void (*)(int kept);

/// Calls `close_number` with each number that the limit allows.
template <class Close>
void close_up_to_limit(int kept, Close close_number) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  for (int fd = STDERR_FILENO + 1; fd < static_cast<int>(limit.rlim_cur); ++fd) {
    if (fd != kept) close_number(fd);
  }
}
void by_close(int kept) {
  close_up_to_limit(kept, [](int fd) { ::close(fd); });
}
void by_system_call(int kept) {
  close_up_to_limit(kept, [](int fd) { ::syscall(SYS_close, fd); });
}
void by_ranges(int kept) {
  if (kept > STDERR_FILENO + 1) ::close_range(STDERR_FILENO + 1, static_cast<unsigned>(kept) - 1, 0);
  ::close_range(static_cast<unsigned>(kept) + 1, ~0U, 0);
}
void by_closefrom(int kept) { ::closefrom(kept + 1); }
void by_directory(int kept) {
  std::vector<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    numbers.push_back(std::stoi(entry.path().filename()));
  for (const int fd : numbers) {
    if (fd > STDERR_FILENO && fd != kept) ::close(fd);
  }
}

struct Closing {
  const char* name;
  CloseOthers close_others;
  rlim_t limit;
};
constexpr Closing kClosings[] = {{"closeWithSmallLimit", by_close, 64}, {"close", by_close, 1024},
                                 {"systemCall", by_system_call, 64},    {"closeRange", by_ranges, 1024},
                                 {"closefrom", by_closefrom, 1024},     {"directory", by_directory, 1024}};

void set_limit(rlim_t numbers) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = numbers;
  expect(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

class Daemon : public ::testing::TestWithParam<Closing> {};

/// Stops this process until its parent lets it go on: a daemon has no descriptor left for a signal.
void tell_parent() { ::raise(SIGSTOP); }
void hear_of(pid_t child) {
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  ::kill(child, SIGCONT);
}

void serve(int listener, int clients) {
  for (int i = 0; i < clients; ++i) {
    pollfd entry{listener, POLLIN, 0};
    expect(::poll(&entry, 1, -1) == 1 && entry.revents == POLLIN, "poll");
    const int client = ::accept(listener, nullptr, nullptr);
    expect(client >= 0, "accept");
    echo(client);
    ::close(client);
  }
}

TEST_P(Daemon, ThatClosesWhatItDoesNotKnowAfterListenServesItsClients) {
  int port_pipe[2];
  ASSERT_EQ(::pipe(port_pipe), 0);
  const pid_t daemon = spawn([&] {
    limit_life();
    set_limit(GetParam().limit);
    const Listener listener = listen_anywhere();
    expect(::write(port_pipe[1], &listener.port, sizeof listener.port) == sizeof listener.port, "write");
    const int early = connect_to(listener.port);
    expect(is_on_ring(early) && ::accept(listener.fd, nullptr, nullptr) > early, "on a ring");
    GetParam().close_others(listener.fd);
    tell_parent();
    serve(listener.fd, 3);
  });
  std::uint16_t port = 0;
  ASSERT_EQ(::read(port_pipe[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  hear_of(daemon);
  for (int i = 0; i < 3; ++i) {
    const int fd = connect_to(port);
    send_all(fd, "hello");
    EXPECT_EQ(receive(fd, 5), "hello");
    EXPECT_TRUE(is_on_ring(fd));
    ::close(fd);
  }
  EXPECT_EQ(wait_for(daemon), 0);
  for (const int end : port_pipe) ::close(end);
}

INSTANTIATE_TEST_SUITE_P(Ways, Daemon, ::testing::ValuesIn(kClosings),
                         [](const auto& info) { return info.param.name; });

TEST(Numbers, BelowTheLimitAreAllTheProgramsOwn) {
  EXPECT_EQ(in_child([] {
              constexpr int kLimit = 64;
              set_limit(kLimit);
              const Listener listener = listen_anywhere();
              const int client = connect_to(listener.port);
              const int server = ::accept(listener.fd, nullptr, nullptr);
              expect(is_on_ring(client), "a ring");
              int last = server;
              for (int fd = server; fd >= 0; fd = open_nothing()) last = fd;
              expect(errno == EMFILE && last == kLimit - 1, "the last number is the program's");
              rlimit limit{};
              expect(::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == kLimit, "the limit is as it was");
              send_all(server, "text");
              expect(receive(client, 4) == "text", "the connection");
            }),
            0);
}

TEST(Numbers, AConnectThatIsUnderWayTakesNoneOfTheProgram) {
  constexpr int kLimit = 64, kClients = 20;
  EXPECT_EQ(in_child([] {
              const Listener listener = listen_anywhere();
              const pid_t server = spawn([&] {
                limit_life();
                tell_parent();  // it goes on when all clients wait
                for (int i = 0; i < kClients; ++i) expect(::accept(listener.fd, nullptr, nullptr) >= 0, "accept");
                ::pause();
              });
              int status = 0;
              expect(::waitpid(server, &status, WUNTRACED) == server && WIFSTOPPED(status), "the server has begun");
              ::close(listener.fd);
              set_limit(kLimit);
              std::vector<int> clients;
              for (int i = 0; i < kClients; ++i) clients.push_back(start_connecting(listener.port));
              constexpr int kFreeBefore = 2;  // below others
              expect(clients.back() < clients.front() + kClients + kFreeBefore, "one number each");
              expect(open_nothing() == clients.back() + 1, "the next number is the program's");
              ::kill(server, SIGCONT);
              for (const int client : clients) expect_connected(client);
              ::kill(server, SIGKILL);
              ::waitpid(server, &status, 0);
            }),
            0);
}

TEST(Numbers, OfTheLibraryAreClosedToTheProgram) {
  EXPECT_EQ(in_child([] {
              constexpr int kLimit = 64;
              set_limit(kLimit);
              const Listener listener = listen_anywhere();
              const int client = connect_to(listener.port);
              int own = kLimit;
              while (::fcntl(own, F_GETFD) < 0 && own < 2 * kLimit) ++own;
              expect(own < 2 * kLimit, "a number of the library");
              expect(error_of(::close(own)) == EBADF, "close");
              expect(error_of(static_cast<int>(::syscall(SYS_close, own))) == EBADF, "the system call");
              expect(error_of(::dup2(client, own)) == EBADF, "dup2");
              expect(::fcntl(own, F_GETFD) == FD_CLOEXEC, "still there");
            }),
            0);
}

}  // namespace
}  // namespace ringsock::preloaded
