// Addresses where nothing is: EFAULT, and everything goes on.
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include <array>
#include <utility>

#include "tests/preload/tcp_world.h"
#include "tests/support/bad_memory.h"
#include "tests/support/sanitizers.h"

namespace ringsock::preload_tests {
namespace {

// Hides from the compiler, and from the headers' attributes, what is passed.
template <class To>
To* hidden(To* pointer) {
  asm volatile("" : "+r"(pointer));
  return pointer;
}
template <class To>
To* bad(const char* place) {
  return hidden(at<To>(place));
}

class BadPointers : public ::testing::Test {
 protected:
  BadPointers() : pair_(connected_pair()), alice_(pair_.alice), bob_(pair_.bob) {
    EXPECT_EQ(::write(alice_, "0123456789", 10), 10);
  }
  void SetUp() override {
    if (support::kHasAddressSanitizer || support::kHasThreadSanitizer)
      GTEST_SKIP() << "the sanitizer's own functions look at what is passed";
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(read_all(bob_, 10), "0123456789");
    ASSERT_EQ(::write(bob_, "well", 4), 4);
    EXPECT_EQ(read_all(alice_, 4), "well");
  }

  void select_more_than_the_set_has() const;

  BadMemory memory_;
  Pair pair_;
  const int alice_, bob_;
};

TEST_F(BadPointers, ToReceiveInto) {
  char room[16];
  for (char* const place : memory_.unwritable()) {
    EXPECT_EFAULT(::recv(bob_, hidden(place), 8, 0));
    EXPECT_EFAULT(::read(bob_, hidden(place), 8));
    EXPECT_EFAULT(::recvfrom(bob_, hidden(place), 8, 0, nullptr, nullptr));
    iovec part{place, 8};
    EXPECT_EFAULT(::readv(bob_, &part, 1));
    msghdr message = message_of(part);
    EXPECT_EFAULT(::recvmsg(bob_, &message, 0));
  }
  for (const char* const place : memory_.unreadable()) {
    EXPECT_EFAULT(::recvmsg(bob_, bad<msghdr>(place), 0));
    EXPECT_EFAULT(::readv(bob_, bad<iovec>(place), 1));
    EXPECT_EFAULT(::recvmmsg(bob_, bad<mmsghdr>(place), 1, 0, nullptr));
    iovec part{room, sizeof room};
    mmsghdr message{};
    message.msg_hdr = message_of(part);
    if (place != nullptr) {
      EXPECT_EFAULT(::recvmmsg(bob_, &message, 1, 0, bad<timespec>(place)));
    }
    message.msg_hdr.msg_iov = bad<iovec>(place);
    EXPECT_EFAULT(::recvmsg(bob_, &message.msg_hdr, 0));
  }
}

TEST_F(BadPointers, NothingToReceiveComesBeforeABadPlace) {
  EXPECT_EQ(::recv(alice_, hidden(memory_.constant()), 8, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  pair_.bob = Fd();
  auto [alice, bob] = connected_pair();
  bob.reset();
  EXPECT_EQ(::recv(alice, hidden(memory_.constant()), 8, 0), 0);
  pair_ = connected_pair();
  const_cast<int&>(alice_) = pair_.alice;
  const_cast<int&>(bob_) = pair_.bob;
  ASSERT_EQ(::write(alice_, "0123456789", 10), 10);
}

TEST_F(BadPointers, WhatFitsInFrontOfABadPageIsReceived) {
  EXPECT_EFAULT(::recv(bob_, hidden(memory_.last(4)), 5000, 0));
  EXPECT_EFAULT(::send(alice_, hidden(memory_.last(4)), 8, 0));
  EXPECT_EQ(::recv(bob_, hidden(memory_.last(10)), 5000, 0), 10);
  EXPECT_EQ(std::string(memory_.last(10), 10), "0123456789");
  ASSERT_EQ(::write(alice_, "0123456789", 10), 10);
}

TEST_F(BadPointers, AreNotLookedAtWhereALengthIsImpossible) {
  char room[16];
  std::vector<char*> places = memory_.unwritable();
  places.push_back(room);
  for (char* const place : places) {
    iovec parts[]{{place, 8}, {place, SIZE_MAX}};
    msghdr message = message_of(parts[1]);
    const auto expect_einval = [](ssize_t result) { EXPECT_EQ(error_of(result), EINVAL); };
    expect_einval(::readv(bob_, parts, 2));
    expect_einval(::writev(alice_, parts, 2));
    expect_einval(::recvmsg(bob_, &message, 0));
    expect_einval(::sendmsg(alice_, &message, 0));
  }
}

TEST_F(BadPointers, ToSendFrom) {
  for (const char* const place : memory_.unreadable()) {
    EXPECT_EFAULT(::send(alice_, hidden(place), 8, 0));
    EXPECT_EFAULT(::write(alice_, hidden(place), 8));
    EXPECT_EFAULT(::sendto(alice_, hidden(place), 8, 0, nullptr, 0));
    iovec part{bad<char>(place), 8};
    EXPECT_EFAULT(::writev(alice_, &part, 1));
    msghdr message = message_of(part);
    EXPECT_EFAULT(::sendmsg(alice_, &message, 0));
    message.msg_iov = bad<iovec>(place);
    EXPECT_EFAULT(::sendmsg(alice_, &message, 0));
    EXPECT_EFAULT(::sendmsg(alice_, bad<msghdr>(place), 0));
    EXPECT_EFAULT(::writev(alice_, bad<iovec>(place), 1));
    EXPECT_EFAULT(::sendmmsg(alice_, bad<mmsghdr>(place), 1, 0));
  }
}

TEST_F(BadPointers, OfNamesAndOptions) {
  const Fd listener = listening();
  const Fd undecided(::socket(AF_INET, SOCK_STREAM, 0));
  Address name = name_of(listener);
  for (const char* const place : memory_.unreadable()) {
    EXPECT_EFAULT(::connect(undecided, bad<sockaddr>(place), sizeof(sockaddr_in)));
    EXPECT_EFAULT(::bind(undecided, bad<sockaddr>(place), sizeof(sockaddr_in)));
    EXPECT_EFAULT(::setsockopt(undecided, SOL_SOCKET, SO_KEEPALIVE, hidden(place), sizeof(int)));
    EXPECT_EFAULT(::setsockopt(alice_, SOL_SOCKET, SO_KEEPALIVE, hidden(place), sizeof(int)));
    EXPECT_EFAULT(::setsockopt(alice_, IPPROTO_TCP, TCP_NODELAY, hidden(place), sizeof(int)));
  }
  for (char* const place : memory_.unwritable()) {
    for (const int fd : {int(alice_), int(listener), int(undecided)}) {
      socklen_t length = sizeof(sockaddr_in);
      EXPECT_EFAULT(::getsockname(fd, bad<sockaddr>(place), &length));
      EXPECT_EFAULT(::getsockname(fd, name.get(), bad<socklen_t>(place)));
      int value = 0;
      length = sizeof value;
      EXPECT_EFAULT(::getsockopt(fd, SOL_SOCKET, SO_TYPE, hidden(place), &length));
      EXPECT_EFAULT(::getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, bad<socklen_t>(place)));
      EXPECT_EFAULT(::ioctl(alice_, FIONREAD, hidden(place)));
    }
    socklen_t length = sizeof(sockaddr_in);
    EXPECT_EFAULT(::getpeername(alice_, bad<sockaddr>(place), &length));
    EXPECT_EFAULT(::getpeername(alice_, name.get(), bad<socklen_t>(place)));
    if (place == nullptr) continue;
    const Fd client = connected_to(listener);
    length = sizeof(sockaddr_in);
    EXPECT_EFAULT(::accept(listener, bad<sockaddr>(place), &length));
  }
  EXPECT_EQ(::connect(undecided, name.get(), name.length), 0);
}

TEST_F(BadPointers, OfOptionsWhoseValueBeginsInGoodMemory) {
  const std::array<std::pair<int, int>, 4> long_options{std::pair{SOL_SOCKET, SO_RCVTIMEO},
                                                        {SOL_SOCKET, SO_LINGER},
                                                        {IPPROTO_TCP, TCP_CONGESTION},
                                                        {IPPROTO_TCP, TCP_INFO}};
  for (const auto& [level, name] : long_options) {
    SCOPED_TRACE(name);
    socklen_t length = 256;
    EXPECT_EFAULT(::getsockopt(alice_, level, name, hidden(memory_.last(4)), &length));
  }
  EXPECT_EFAULT(::setsockopt(alice_, SOL_SOCKET, SO_RCVTIMEO, hidden(memory_.last(4)), sizeof(timeval)));
  EXPECT_EFAULT(::setsockopt(alice_, SOL_SOCKET, SO_LINGER, hidden(memory_.last(4)), sizeof(linger)));
  socklen_t length = 64;
  EXPECT_EQ(::getsockopt(alice_, SOL_SOCKET, SO_TYPE, hidden(memory_.last(4)), &length), 0) << "it has four bytes";
}

TEST_F(BadPointers, OfCallsThatWait) {
  const Fd set(::epoll_create1(0));
  epoll_event event{EPOLLIN, {.fd = bob_}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, bob_, &event), 0);
  pollfd entry{bob_, POLLIN, 0};
  const timespec no_time{};
  timeval none{};
  for (char* const place : memory_.unwritable()) {
    EXPECT_EFAULT(::poll(bad<pollfd>(place), 1, 0));
    EXPECT_EFAULT(::poll(bad<pollfd>(place), 3, 0));
    EXPECT_EFAULT(::ppoll(bad<pollfd>(place), 1, &no_time, nullptr));
    EXPECT_EFAULT(::epoll_wait(set, bad<epoll_event>(place), 1, 0));
    EXPECT_EFAULT(::epoll_wait(set, bad<epoll_event>(place), 64, 0));
    EXPECT_EFAULT(::epoll_pwait(set, bad<epoll_event>(place), 1, 0, nullptr));
    if (place == nullptr) continue;
    EXPECT_EFAULT(::select(bob_ + 1, bad<fd_set>(place), nullptr, nullptr, &none));
    EXPECT_EFAULT(::pselect(bob_ + 1, nullptr, bad<fd_set>(place), nullptr, &no_time, nullptr));
  }
  for (const char* const place : memory_.unreadable()) {
    EXPECT_EFAULT(::epoll_ctl(set, EPOLL_CTL_ADD, alice_, bad<epoll_event>(place)));
    EXPECT_EFAULT(::epoll_ctl(set, EPOLL_CTL_MOD, bob_, bad<epoll_event>(place)));
    if (place == nullptr) continue;
    EXPECT_EFAULT(::ppoll(&entry, 1, &no_time, bad<sigset_t>(place)));
    EXPECT_EFAULT(::epoll_pwait(set, &event, 1, 0, bad<sigset_t>(place)));
    EXPECT_EFAULT(::epoll_pwait2(set, &event, 1, bad<timespec>(place), nullptr));
    EXPECT_EFAULT(::syscall(SYS_ppoll, &entry, 1, hidden(place), nullptr, 8));
    EXPECT_EFAULT(::syscall(SYS_ppoll, &entry, 1, nullptr, hidden(place), 8));
    EXPECT_EFAULT(::syscall(SYS_pselect6, bob_ + 1, nullptr, nullptr, nullptr, hidden(place), nullptr));
    EXPECT_EFAULT(::syscall(SYS_pselect6, bob_ + 1, nullptr, nullptr, nullptr, nullptr, hidden(place)));
  }
  EXPECT_EQ(::epoll_ctl(set, EPOLL_CTL_DEL, bob_, nullptr), 0);
}

TEST_F(BadPointers, OfCallsOnWhatIsNotOurs) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const Fd out(pipe[0]), in(pipe[1]);
  const Fd datagrams(::socket(AF_UNIX, SOCK_DGRAM, 0));
  for (const char* const place : memory_.unreadable()) {
    EXPECT_EFAULT(::poll(bad<pollfd>(place), 1, 0));
    EXPECT_EFAULT(::sendmsg(datagrams, bad<msghdr>(place), 0));
    EXPECT_EFAULT(::sendmmsg(datagrams, bad<mmsghdr>(place), 1, 0));
    if (place == nullptr) continue;
    EXPECT_EFAULT(::select(out + 1, bad<fd_set>(place), nullptr, nullptr, nullptr));
  }
}

/// With a socket of the library in the set, and with none.
void BadPointers::select_more_than_the_set_has() const {
  auto* const set = at<fd_set>(memory_.last(sizeof(fd_set)));
  FD_ZERO(set);
  FD_SET(bob_, set);
  timeval no_time{};
  EXPECT_EQ(::select(1 << 20, set, nullptr, nullptr, &no_time), 1);
  FD_CLR(bob_, set);
  EXPECT_EQ(::select(1 << 20, set, nullptr, nullptr, &no_time), 0);
}

TEST_F(BadPointers, MoreBitsThanTheSetHasAreOnlyReadAsFarAsThereAreDescriptors) { select_more_than_the_set_has(); }

/// The library has descriptors of its own for each connection, whose numbers may lie behind those of an fd_set.
TEST_F(BadPointers, TheBitsOfTheLibrarysDescriptorsAreNotReadInASetThatEndsBefore) {
  constexpr int kMoreThanFitBelow = 40;
  std::vector<Pair> others;
  for (int i = 0; i < kMoreThanFitBelow; ++i) others.push_back(connected_pair());
  select_more_than_the_set_has();
}

TEST_F(BadPointers, TheOffsetOfSendfile) {
  const Fd file(::memfd_create("file", 0));
  ASSERT_EQ(::ftruncate(file, 100), 0);
  for (char* const place : memory_.unwritable()) {
    if (place == nullptr || place == memory_.constant()) continue;
    EXPECT_EFAULT(::sendfile(alice_, file, bad<off_t>(place), 10));
  }
}

}  // namespace
}  // namespace ringsock::preload_tests
