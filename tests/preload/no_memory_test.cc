// A program whose memory runs out at any allocation: each call serves it, or answers that there is no memory, and
// serves it once there is some. Nothing ends the program, nothing that was sent is lost, no descriptor is left over.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "tests/preload/preloaded.h"
#include "tests/support/failing_memory.h"

namespace ringsock::preloaded {
namespace {

using support::Failing;

/// A call of a program that waits for memory: it is repeated, with memory, once it has answered that there is none.
template <class Call>
auto patiently(const char* what, Call call) {
  auto result = call();
  if (result < 0 && (errno == ENOMEM || errno == ENOBUFS)) {
    support::end_failures();
    result = call();
  }
  if (result < 0) std::perror(what);
  expect(result >= 0, what);
  return result;
}

void send_patiently(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    done += static_cast<std::size_t>(
        patiently("send", [&] { return ::send(fd, text.data() + done, text.size() - done, MSG_NOSIGNAL); }));
  }
}
void receive_patiently(int fd, char* room, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const auto got = patiently("recv", [&] { return ::recv(fd, room + done, bytes - done, 0); });
    expect(got > 0, "the stream ends early");
    done += static_cast<std::size_t>(got);
  }
}

/// What the story needs of memory itself, from before memory runs out.
struct Texts {
  std::string sent = pattern(40'000, 1);
  std::string received = std::string(40'000, '\0');
};

void say(int from, int to, Texts& texts) {
  send_patiently(from, texts.sent);
  receive_patiently(to, texts.received.data(), texts.received.size());
  expect(texts.sent == texts.received, "other bytes than were sent");
}

struct Pair {
  int listener, client, server;
};

/// A client whose memory fails once it was answered goes by the kernel: what it leaves behind is accepted, too.
int accept_client(int listener, in_port_t port) {
  for (;;) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    const int fd = patiently("accept", [&] { return ::accept(listener, reinterpret_cast<sockaddr*>(&peer), &length); });
    if (peer.sin_port == port) return fd;
    expect(::close(fd) == 0, "close of a client that is gone");
  }
}

Pair connect_pair() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  Pair pair{};
  pair.listener = patiently("socket", [] { return ::socket(AF_INET, SOCK_STREAM, 0); });
  patiently("bind", [&] { return ::bind(pair.listener, name, length); });
  patiently("listen", [&] { return ::listen(pair.listener, 8); });
  patiently("getsockname", [&] { return ::getsockname(pair.listener, name, &length); });
  pair.client = patiently("socket", [] { return ::socket(AF_INET, SOCK_STREAM, 0); });
  patiently("connect", [&] { return ::connect(pair.client, name, length); });
  patiently("getsockname", [&] { return ::getsockname(pair.client, name, &length); });
  pair.server = accept_client(pair.listener, address.sin_port);
  return pair;
}
void close_pair(const Pair& pair) {
  for (const int fd : {pair.client, pair.server, pair.listener}) expect(::close(fd) == 0, "close");
}

void wait_for_word(const Pair& pair) {
  send_patiently(pair.client, "x");
  pollfd entries[2] = {{pair.server, POLLIN, 0}, {pair.client, POLLIN, 0}};
  patiently("poll", [&] { return ::poll(entries, 2, -1); });
  expect(entries[0].revents == POLLIN, "what poll() finds");
  fd_set readable;
  patiently("select", [&] {
    FD_ZERO(&readable);
    FD_SET(pair.server, &readable);
    return ::select(pair.server + 1, &readable, nullptr, nullptr, nullptr);
  });
  expect(FD_ISSET(pair.server, &readable), "what select() finds");
  char word = 0;
  receive_patiently(pair.server, &word, 1);
}

void wait_in_set(const Pair& pair) {
  const int set = patiently("epoll_create1", [] { return ::epoll_create1(0); });
  for (const int fd : {pair.client, pair.server, pair.listener}) {
    epoll_event event{EPOLLIN, {.fd = fd}};
    patiently("epoll_ctl", [&] { return ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event); });
  }
  for (int i = 0; i < 20; ++i) {
    send_patiently(pair.client, "x");
    epoll_event ready[3];
    const int count = patiently("epoll_wait", [&] { return ::epoll_wait(set, ready, 3, -1); });
    expect(count == 1 && ready[0].data.fd == pair.server, "what epoll_wait() finds");
    char word = 0;
    receive_patiently(pair.server, &word, 1);
    expect(patiently("epoll_wait", [&] { return ::epoll_wait(set, ready, 3, 0); }) == 0, "an event of nothing");
  }
  patiently("epoll_ctl", [&] { return ::epoll_ctl(set, EPOLL_CTL_DEL, pair.client, nullptr); });
  expect(::close(set) == 0, "close of a set");
}

void talk_by_duplicates(const Pair& pair, Texts& texts) {
  const int copy = patiently("dup", [&] { return ::dup(pair.client); });
  const int other = patiently("dup2", [&] { return ::dup2(pair.server, copy + 20); });
  say(copy, other, texts);
  expect(::close(copy) == 0 && ::close(other) == 0, "close of a duplicate");
}

/// The child sends what its parent receives. fork(2) cannot tell that there was no memory for what the two processes
/// have to tell each other: the child has no connection then, and the parent keeps it.
void talk_over_fork(const Pair& pair, Texts& texts) {
  constexpr int kHasNoConnection = 2;
  const pid_t child = patiently("fork", [] { return ::fork(); });
  if (child == 0) {
    if (::fcntl(pair.client, F_GETFD) < 0) ::_exit(kHasNoConnection);
    try {
      send_patiently(pair.client, texts.sent);
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "the forked child: %s\n", failure.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  const int how = wait_for(child);
  expect(how == 0 || how == kHasNoConnection, "the child");
  if (how == kHasNoConnection) return say(pair.client, pair.server, texts);
  receive_patiently(pair.server, texts.received.data(), texts.received.size());
  expect(texts.sent == texts.received, "other bytes than the child sent");
}

void end_each_way(const Pair& pair) {
  patiently("shutdown", [&] { return ::shutdown(pair.client, SHUT_WR); });
  char nothing = 0;
  expect(patiently("recv", [&] { return ::recv(pair.server, &nothing, 1, 0); }) == 0, "the end of the stream");
}

void only_connect(Texts& /*texts*/) { close_pair(connect_pair()); }
void talk(Texts& texts) {
  const Pair pair = connect_pair();
  say(pair.client, pair.server, texts);
  say(pair.server, pair.client, texts);
  talk_by_duplicates(pair, texts);
  end_each_way(pair);
  close_pair(pair);
}
void wait(Texts& /*texts*/) {
  const Pair pair = connect_pair();
  wait_for_word(pair);
  wait_in_set(pair);
  close_pair(pair);
}
void fork_and_talk(Texts& texts) {
  const Pair pair = connect_pair();
  talk_over_fork(pair, texts);
  close_pair(pair);
}
/// Clients that were never accepted, and a set that is closed with members.
void leave_much_open(Texts& /*texts*/) {
  const Pair pair = connect_pair();
  sockaddr_in address{};
  socklen_t length = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  patiently("getsockname", [&] { return ::getsockname(pair.listener, name, &length); });
  const int waiting = patiently("socket", [] { return ::socket(AF_INET, SOCK_STREAM, 0); });
  patiently("connect", [&] { return ::connect(waiting, name, length); });
  const int set = patiently("epoll_create1", [] { return ::epoll_create1(0); });
  epoll_event event{EPOLLIN, {.fd = pair.listener}};
  patiently("epoll_ctl", [&] { return ::epoll_ctl(set, EPOLL_CTL_ADD, pair.listener, &event); });
  close_pair(pair);
  expect(::close(waiting) == 0 && ::close(set) == 0, "close");
}

/// Returns whether it is the socket by which processes that share connections ask this one, which is made when needed.
bool is_door(int fd) {
  constexpr std::string_view kName("\0ringsock-door-", 15);
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 || address.sun_family != AF_UNIX)
    return false;
  return std::string_view(address.sun_path, sizeof address.sun_path).starts_with(kName);
}

/// Of this process, without the segments that are kept for other connections.
std::size_t count_descriptors() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone);
    if (target.find("memfd:") == std::string::npos && !is_door(std::stoi(entry.path().filename()))) ++count;
  }
  return count;
}

using Story = void (*)(Texts&);
struct Case {
  const char* name;
  Story story;
  Failing which;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

/// Makes what a process and its thread keep: a descriptor for waits, for one. Nothing comes, so that the thread sleeps.
void get_acquainted() {
  const Pair pair = connect_pair();
  pollfd entry{pair.server, POLLIN, 0};
  expect(::poll(&entry, 1, 20) == 0, "an event of nothing");
  close_pair(pair);
}

/// Lets each allocation of the story fail once, beginning with the first.
void live_without(const Case& one) {
  Texts texts;
  get_acquainted();
  one.story(texts);
  const std::size_t before = count_descriptors();
  unsigned failed = 1;
  for (unsigned number = 1; failed > 0; ++number) {
    ::alarm(30);
    texts.received.assign(texts.received.size(), '\0');
    const std::string context = std::string(one.name) + ", allocation " + std::to_string(number);
    support::fail_allocation(number, one.which);
    try {
      one.story(texts);
    } catch (const std::exception& failure) {
      support::end_failures();
      throw std::runtime_error(context + ": " + failure.what());
    }
    failed = support::end_failures();
    // Another thread may have the last use of a descriptor. The alarm ends the wait for one that is left over.
    while (count_descriptors() > before) ::sched_yield();
  }
}

class NoMemory : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(AtOneAllocation, NoMemory,
                         ::testing::Values(Case{"OnlyConnects", only_connect, Failing::one},
                                           Case{"Talks", talk, Failing::one}, Case{"Waits", wait, Failing::one},
                                           Case{"Forks", fork_and_talk, Failing::one},
                                           Case{"LeavesMuchOpen", leave_much_open, Failing::one}),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(FromOneAllocationOn, NoMemory,
                         ::testing::Values(Case{"OnlyConnects", only_connect, Failing::all_from_then_on},
                                           Case{"Talks", talk, Failing::all_from_then_on},
                                           Case{"Waits", wait, Failing::all_from_then_on},
                                           Case{"LeavesMuchOpen", leave_much_open, Failing::all_from_then_on}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(NoMemory, IsSurvived) {
  if (!support::can_fail_allocations()) GTEST_SKIP() << "the sanitizer has an allocator of its own";
  const pid_t program = spawn([] { live_without(GetParam()); });
  EXPECT_EQ(wait_for(program), 0);
}

}  // namespace
}  // namespace ringsock::preloaded
