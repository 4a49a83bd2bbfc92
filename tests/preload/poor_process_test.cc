// Processes that get no thread, or that close every descriptor they do not know: they listen, accept, connect, exchange
// bytes and end as they do without the library.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/preload/preloaded.h"
#include "tests/support/poor_process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/thread_status.h"

namespace ringsock::preloaded {
namespace {

/// What a process does to itself before it uses sockets.
struct Poverty {
  const char* name;
  std::function<bool()> begin;
};
void PrintTo(const Poverty& poverty, std::ostream* out) { *out << poverty.name; }

/// Nor memfds: what is to be larger than a page ends in a SIGXFSZ.
bool allow_no_files() {
  const rlimit limit{4096, 4096};
  return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

class PoorProcess : public ::testing::TestWithParam<Poverty> {
 protected:
  void SetUp() override {
    if (GetParam().name == std::string("NoUserLimit") && ::geteuid() != 0)
      GTEST_SKIP() << "another user's limit needs root";
  }
  static void become_poor() { expect(GetParam().begin(), "poverty"); }
};
INSTANTIATE_TEST_SUITE_P(Without, PoorProcess,
                         ::testing::Values(Poverty{"ThreadsByAFilter", [] { return testing::deny_threads(); }},
                                           Poverty{"NoUserLimit", [] { return testing::become_lonely_user(); }},
                                           Poverty{"NoFiles", [] { return allow_no_files(); }}),
                         [](const auto& info) { return std::string(info.param.name); });

/// A process that runs `body`; one that hangs is killed, and fails.
pid_t spawn_briefly(const std::function<void()>& body) {
  return spawn([&] {
    ::alarm(20);
    body();
  });
}

/// The process gets no descriptor with this number or a higher one.
void limit_descriptors(rlim_t most) {
  const rlimit limit{most, most};
  expect(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "RLIMIT_NOFILE");
}

void keep_alive(int fd) {
  const int one = 1;
  expect(::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0, "SO_KEEPALIVE");
  expect(::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof one) == 0, "TCP_KEEPIDLE");
}

/// Ten clients, one after the other, and then a second listener, which is closed unused.
void serve_ten(int listener) {
  for (int i = 0; i < 10; ++i) {
    const int client = ::accept(listener, nullptr, nullptr);
    expect(client >= 0, "accept");
    keep_alive(client);
    echo(client);
    ::close(client);
  }
  ::close(listen_anywhere().fd);
  ::close(listener);
}

void be_ten_clients(std::uint16_t port) {
  for (unsigned i = 0; i < 10; ++i) {
    const int fd = connect_to(port);
    keep_alive(fd);
    const std::string text = pattern(20'000, i);
    send_all(fd, text);
    ::shutdown(fd, SHUT_WR);
    expect(receive_all(fd) == text, "the echo");
    ::close(fd);
  }
}

/// A process begins by `begin`, and is ten clients of the server, which ends then.
void expect_to_be_served(
    pid_t server, std::uint16_t port, const std::function<void()>& begin = [] {}) {
  const pid_t client = spawn_briefly([&] {
    begin();
    be_ten_clients(port);
  });
  EXPECT_EQ(wait_for(client), 0);
  EXPECT_EQ(wait_for(server), 0);
}

/// Tells a port to another process.
class PortPipe {
 public:
  PortPipe() { expect(::pipe(ends_) == 0, "pipe"); }
  PortPipe(const PortPipe&) = delete;
  PortPipe& operator=(const PortPipe&) = delete;
  ~PortPipe() {
    ::close(ends_[0]);
    if (ends_[1] >= 0) ::close(ends_[1]);
  }
  void keep_as_standard_input() { ends_[1] = ::dup2(ends_[1], 0); }
  void tell(std::uint16_t port) { expect(::write(ends_[1], &port, sizeof port) == sizeof port, "tell"); }
  std::uint16_t hear() {
    ::close(std::exchange(ends_[1], -1));  // so that the end of a teller is heard, too
    std::uint16_t port = 0;
    expect(::read(ends_[0], &port, sizeof port) == sizeof port, "hear");
    return port;
  }

 private:
  int ends_[2];
};

TEST_P(PoorProcess, Serves) {
  PortPipe ports;
  const pid_t server = spawn_briefly([&] {
    become_poor();
    const Listener listener = listen_anywhere();
    ports.tell(listener.port);
    serve_ten(listener.fd);
  });
  expect_to_be_served(server, ports.hear());
}

TEST_P(PoorProcess, IsAClient) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn_briefly([&] { serve_ten(listener.fd); });
  expect_to_be_served(server, listener.port, become_poor);
  ::close(listener.fd);
}

/// Connects as often as it gets sockets, at most `most` times; each connection must come about, and echo a byte.
void connect_to_the_limit(std::uint16_t port, int most) {
  for (int i = 0; i < most; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    expect(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "connect");
    char byte = 'x';
    expect(::send(fd, &byte, 1, 0) == 1 && ::recv(fd, &byte, 1, 0) == 1 && byte == 'x', "the echo");
  }
}

/// One byte for each client, whom it keeps.
[[noreturn]] void serve_a_byte_each(int listener) {
  for (;;) {
    const int client = ::accept(listener, nullptr, nullptr);
    expect(client >= 0, "accept");
    char byte = 0;
    if (::recv(client, &byte, 1, 0) == 1) expect(::send(client, &byte, 1, MSG_NOSIGNAL) == 1, "send");
  }
}

/// The kernel's connect() needs neither descriptors nor memory of the process.
void connect_in_poverty(const std::function<void()>& begin) {
  const Listener listener = listen_anywhere();
  const pid_t server = spawn([&] { serve_a_byte_each(listener.fd); });
  const pid_t client = spawn_briefly([&] {
    begin();
    connect_to_the_limit(listener.port, 50);
  });
  EXPECT_EQ(wait_for(client), 0);
  ::kill(server, SIGKILL);
  wait_for(server);
  ::close(listener.fd);
}

TEST(FullProcess, ConnectsWithItsLastDescriptors) {
  for (rlim_t most = 8; most <= 48; most += 2) {
    SCOPED_TRACE(most);
    connect_in_poverty([most] { limit_descriptors(most); });
  }
}

/// Without a descriptor for wake-ups by other threads it sleeps for some milliseconds at a time.
void wait_until_it_sleeps(pid_t process) {
  for (std::string state = "R"; !state.empty() && state.front() == 'R';) state = support::status_of(process, "State");
}

/// accept(2) takes the number of the new descriptor first.
TEST(FullProcess, IsToldSoByAcceptThoughNoClientHasCome) {
  const Listener listener = listen_anywhere();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{static_cast<rlim_t>(listener.fd), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  ::alarm(60);
  EXPECT_EQ(error_of(::accept(listener.fd, nullptr, nullptr)), EMFILE);
  ::alarm(0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const int client = connect_to(listener.port);
  const int accepted = ::accept(listener.fd, nullptr, nullptr);
  EXPECT_TRUE(is_on_ring(accepted));
  for (const int fd : {client, accepted, listener.fd}) ::close(fd);
}

/// Opens files until the table is full, and closes them.
int free_descriptors() {
  std::vector<int> files;
  for (int fd = ::open("/dev/null", O_RDONLY); fd >= 0; fd = ::open("/dev/null", O_RDONLY)) files.push_back(fd);
  for (const int fd : files) ::close(fd);
  return static_cast<int>(files.size());
}

/// The kernel's backlog costs no descriptors. The library's own are a few.
TEST(FullProcess, OpensFilesWhileClientsWaitAndThenAcceptsThem) {
  PortPipe ports;
  PortPipe rooms;
  Signal all_wait;
  const pid_t server = spawn_briefly([&] {
    limit_descriptors(100);
    const Listener listener = listen_anywhere();
    const int most = free_descriptors() - 4;
    rooms.tell(static_cast<std::uint16_t>(most));
    ports.tell(listener.port);
    all_wait.wait();
    expect(free_descriptors() > most - 10, "files while clients wait");
    for (int i = 0; i < most; ++i) {
      const int client = ::accept(listener.fd, nullptr, nullptr);
      expect(client >= 0, "accept");
      send_all(client, receive(client, 1));
    }
  });
  const int clients = rooms.hear();
  const std::uint16_t port = ports.hear();
  const pid_t client = spawn_briefly([&] {
    std::vector<int> fds;
    for (int i = 0; i < clients; ++i) {
      fds.push_back(connect_to(port));
      send_all(fds.back(), "x");
    }
    all_wait.give();
    for (const int fd : fds) expect(receive(fd, 1) == "x", "the echo");
  });
  EXPECT_EQ(wait_for(client), 0);
  EXPECT_EQ(wait_for(server), 0);
}

// Sandboxes set such a limit once they have their descriptors.
TEST(FullProcess, WaitsThoughItMayHaveNoDescriptors) {
  const Listener listener = listen_anywhere();
  for (rlim_t most = 0; most <= 3; ++most) {
    SCOPED_TRACE(most);
    const pid_t client = spawn_briefly([&] {
      const int fd = connect_to(listener.port);
      limit_descriptors(most);
      expect(::send(fd, "w", 1, 0) == 1, "the word that it waits");
      char byte = 0;
      expect(::recv(fd, &byte, 1, 0) == 1 && byte == 'x', "a receive that waits");
      const std::string text = pattern(4'000'000, 1);
      send_all(fd, text);
    });
    const int server = ::accept(listener.fd, nullptr, nullptr);
    ASSERT_GE(server, 0);
    char word = 0;
    ASSERT_EQ(::recv(server, &word, 1, 0), 1);
    wait_until_it_sleeps(client);
    ASSERT_EQ(::send(server, "x", 1, 0), 1);
    wait_until_it_sleeps(client);
    EXPECT_EQ(receive_all(server), pattern(4'000'000, 1));
    EXPECT_EQ(wait_for(client), 0);
    ::close(server);
  }
  ::close(listener.fd);
}

TEST(FullProcess, ConnectsWithItsLastMemory) {
  if (support::kHasAddressSanitizer) GTEST_SKIP() << "AddressSanitizer needs the address space";
  for (std::size_t more = 0; more <= std::size_t{8} << 20; more += std::size_t{256} << 10) {
    SCOPED_TRACE(more);
    connect_in_poverty([more] {
      ::close(listen_anywhere().fd);  // what a thread needs once
      std::size_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const rlim_t bytes = pages * static_cast<std::size_t>(::getpagesize()) + more;
      const rlimit limit{bytes, bytes};
      expect(::setrlimit(RLIMIT_AS, &limit) == 0, "RLIMIT_AS");
    });
  }
}

/// Ways to close all that a program does not know.
using Closes = void (*)(unsigned first);
const Closes kClosers[] = {
    [](unsigned first) { ::closefrom(static_cast<int>(first)); },
    [](unsigned first) { ::close_range(first, ~0U, 0); },
    [](unsigned first) {
      for (unsigned fd = first; fd < 4096; ++fd) ::close(static_cast<int>(fd));
    },
    [](unsigned first) {
      for (unsigned fd = 4096; fd-- > first;) ::close(static_cast<int>(fd));
    },
    testing::close_behind_all_backs,
};

/// As a daemon does that begins anew: it has listened before.
TEST(ProcessThatClosesAll, ServesAnew) {
  for (const Closes closes : kClosers) {
    PortPipe ports;
    const pid_t server = spawn_briefly([&] {
      const Listener before = listen_anywhere();
      const int self = connect_to(before.port);
      expect(self >= 0 && ::accept(before.fd, nullptr, nullptr) >= 0, "the first life");
      ports.keep_as_standard_input();
      closes(3);
      const Listener listener = listen_anywhere();
      ports.tell(listener.port);
      serve_ten(listener.fd);
    });
    expect_to_be_served(server, ports.hear());
  }
}

TEST(ProcessThatClosesAll, ConnectsAnew) {
  for (const Closes closes : kClosers) {
    const Listener listener = listen_anywhere();
    const pid_t server = spawn_briefly([&] {
      ::close(::accept(listener.fd, nullptr, nullptr));
      serve_ten(listener.fd);
    });
    expect_to_be_served(server, listener.port, [&] {
      expect(connect_to(listener.port) >= 0, "the first life");
      closes(3);
    });
    ::close(listener.fd);
  }
}

// -- children of a process that has allowed itself few calls

/// What libc needs for fork(2), memory and the end, and what the stories do.
bool allow_few_calls() {
  return testing::allow_only({SYS_epoll_wait, SYS_read,           SYS_write,        SYS_close,      SYS_sendto,
                              SYS_recvfrom,   SYS_clone,          SYS_wait4,        SYS_exit_group, SYS_set_robust_list,
                              SYS_rseq,       SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_getpid,     SYS_gettid,
                              SYS_futex,      SYS_getrandom,      SYS_brk,          SYS_mmap,       SYS_munmap,
                              SYS_mprotect,   SYS_newfstatat,     SYS_fstat,        SYS_lseek});
}

/// Makes a child under the filter, which does `act`, writes to a pipe and ends.
void fork_under_filter(const std::function<void()>& act = [] {}) {
  int ends[2];
  expect(::pipe(ends) == 0 && allow_few_calls(), "the filter");
  const pid_t child = ::fork();
  if (child == 0) {
    act();
    ::_exit(::write(ends[1], "done", 4) == 4 ? 0 : 1);
  }
  expect(wait_for(child) == 0, "the child's end");
  char said[4];
  expect(::read(ends[0], said, sizeof said) == 4, "what the child has written");
}

/// Each story runs in a process of its own.
class FewCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    if (support::kHasAddressSanitizer || support::kHasThreadSanitizer)
      GTEST_SKIP() << "a sanitizer's runtime makes system calls of its own";
  }
  static void run(const std::function<void()>& story) { EXPECT_EQ(wait_for(spawn_briefly(story)), 0); }
};

TEST_F(FewCalls, AChildThatLeavesAnUndecidedSocketAloneLives) {
  run([] {
    expect(::socket(AF_INET, SOCK_STREAM, 0) >= 0, "socket");
    fork_under_filter();
  });
}

TEST_F(FewCalls, AChildThatLeavesAListenerAloneLives) {
  run([] {
    listen_anywhere();
    fork_under_filter();
  });
}

TEST_F(FewCalls, AChildThatLeavesAnEpollSetAloneLives) {
  run([] {
    const Listener listener = listen_anywhere();
    epoll_event event{EPOLLIN, {}};
    expect(::epoll_ctl(::epoll_create1(0), EPOLL_CTL_ADD, listener.fd, &event) == 0, "epoll_ctl");
    fork_under_filter();
  });
}

TEST_F(FewCalls, AChildOfAChildLives) {
  run([] {
    listen_anywhere();
    fork_under_filter([] {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(3);
      expect(wait_for(child) == 3, "the child's child");
    });
  });
}

TEST_F(FewCalls, AnEpollSetTellsParentAndChildOfTheirConnections) {
  run([] {
    const Listener listener = listen_anywhere();
    const int client = connect_to(listener.port), server = ::accept(listener.fd, nullptr, nullptr);
    const int set = ::epoll_create1(0);
    epoll_event event{EPOLLIN, {.fd = server}};
    expect(::epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0, "epoll_ctl");
    const auto tells_of_bytes = [=] {
      epoll_event found{};
      expect(::epoll_wait(set, &found, 1, 1) == 0, "nothing has come");
      send_all(client, "bytes");
      expect(::epoll_wait(set, &found, 1, -1) == 1 && found.data.fd == server, "the set's event");
      expect(receive(server, 5) == "bytes", "the bytes");
    };
    fork_under_filter(tells_of_bytes);
    tells_of_bytes();
  });
}

TEST_F(FewCalls, AConnectionWorksInTheChildAndAfterIt) {
  run([] {
    const Listener listener = listen_anywhere();
    const int client = connect_to(listener.port), server = ::accept(listener.fd, nullptr, nullptr);
    expect(is_on_ring(client) && is_on_ring(server), "by ring");
    send_all(client, "from before");
    fork_under_filter([=] {
      expect(receive(server, 11) == "from before", "what came before the filter");
      send_all(server, "from the child");
    });
    expect(receive(client, 14) == "from the child", "what the child has sent");
    send_all(client, "and back");
    expect(receive(server, 8) == "and back", "data afterwards");
  });
}

}  // namespace
}  // namespace ringsock::preloaded
