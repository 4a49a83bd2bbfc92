// Streams within the host beside datagrams to another, in one program: each has its own way where both preload
// libraries are there.
#include <sys/epoll.h>
#include <sys/wait.h>

#include <array>

#include "tests/support/raw_syscall.h"
#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

bool has_rspreload() {
  const char* const libraries = std::getenv("LD_PRELOAD");
  return libraries != nullptr && std::strstr(libraries, "librspreload") != nullptr;
}

/// What the kernel has under the number: AF_UNIX is a ring's doorbell.
bool is_on_ring(int fd) {
  int domain = -1;
  socklen_t length = sizeof domain;
  raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &length);
  return domain == AF_UNIX;
}

class TwoLibraries : public Udp {
 protected:
  void SetUp() override {
    const int listener = ::socket(GetParam().family, SOCK_STREAM, 0);
    Address here(GetParam().loopback, 0);
    ASSERT_EQ(::bind(listener, here.get(), here.length()), 0);
    ASSERT_EQ(::listen(listener, 1), 0);
    ASSERT_EQ(::getsockname(listener, here.get(), &here.length()), 0);
    alice_ = ::socket(GetParam().family, SOCK_STREAM, 0);
    ASSERT_EQ(::connect(alice_, here.get(), here.length()), 0);
    bob_ = ::accept(listener, nullptr, nullptr);
    ASSERT_GE(bob_, 0);
    ::close(listener);
    bind_anywhere(socket_);
    if (preloaded()) until_rings_send(socket_);
  }
  void TearDown() override {
    ::close(alice_);
    ::close(bob_);
  }
  std::string read_from_alice() const {
    std::array<char, 64> bytes{};
    const ssize_t got = ::read(bob_, bytes.data(), bytes.size());
    return got > 0 ? std::string(bytes.data(), static_cast<std::size_t>(got)) : "nothing";
  }
  int alice_ = -1, bob_ = -1;
};
INSTANTIATE_TEST_SUITE_P(Versions, TwoLibraries, both_versions(), name_of_version);

TEST_P(TwoLibraries, EachSocketHasItsWay) {
  EXPECT_EQ(is_on_ring(alice_), has_rspreload());
  EXPECT_EQ(is_on_ring(bob_), has_rspreload());
  const long before = kernels_sent_datagrams(GetParam().family);
  get_acquainted(socket_);
  if (preloaded()) {
    EXPECT_EQ(kernels_sent_datagrams(GetParam().family), before);
  }
  ASSERT_EQ(::write(alice_, "stream", 6), 6);
  EXPECT_EQ(read_from_alice(), "stream");
}

TEST_P(TwoLibraries, OneSetTellsOfBoth) {
  const int set = ::epoll_create1(0);
  for (const int member : {bob_, static_cast<int>(socket_)}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = member}};
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, member, &event), 0);
  }
  epoll_event event{};
  ASSERT_EQ(::write(alice_, "stream", 6), 6);
  ASSERT_EQ(::epoll_wait(set, &event, 1, 5000), 1);
  EXPECT_EQ(event.data.fd, bob_);
  EXPECT_EQ(read_from_alice(), "stream");
  ASSERT_EQ(socket_.send_to(echo_, "datagram"), 8);
  ASSERT_EQ(::epoll_wait(set, &event, 1, 5000), 1);
  EXPECT_EQ(event.data.fd, static_cast<int>(socket_));
  EXPECT_EQ(socket_.receive(), "datagram");
  ::close(set);
}

TEST_P(TwoLibraries, AForkedChildHasBoth) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool sent = ::write(alice_, "child", 5) == 5;
    const bool echoed = socket_.send_to(echo_, "child's") == 7 && socket_.receive() == "child's";
    ::_exit(sent && echoed ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_from_alice(), "child");
}

}  // namespace
}  // namespace ringsock::vma_tests
