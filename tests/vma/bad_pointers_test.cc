// Addresses where nothing is: EFAULT, and everything goes on.
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include "tests/support/bad_memory.h"
#include "tests/support/sanitizers.h"
#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

template <class To>
To* hidden(To* pointer) {
  asm volatile("" : "+r"(pointer));
  return pointer;
}
template <class To>
To* bad(const char* place) {
  return hidden(at<To>(place));
}

class UdpBadPointers : public Udp {
 protected:
  void SetUp() override {
    if (support::kHasAddressSanitizer || support::kHasThreadSanitizer)
      GTEST_SKIP() << "the sanitizer's own functions look at what is passed";
    bind_anywhere(socket_);
    if (preloaded()) until_rings_send(socket_);
  }
  void TearDown() override {
    if (!IsSkipped()) get_acquainted(socket_);
  }
  /// A datagram that waits.
  void ask() const {
    ASSERT_EQ(socket_.send_to(echo_, "hello"), 5);
    pollfd entry{socket_, POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 5000), 1);
  }

  BadMemory memory_;
};
INSTANTIATE_TEST_SUITE_P(Over, UdpBadPointers, both_versions(), name_of_version);

TEST_P(UdpBadPointers, ToReceiveIntoLoseTheDatagram) {
  char room[16];
  Address from;
  for (char* const place : memory_.unwritable()) {
    // What no process can have is found before the datagram is taken.
    const std::string left = reinterpret_cast<std::intptr_t>(place) < 0 ? "hello" : "";
    ask();
    EXPECT_EFAULT(::recv(socket_, hidden(place), 8, 0));
    EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), left);
    ask();
    iovec parts[]{{room, 2}, {place, 8}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    EXPECT_EFAULT(::recvmsg(socket_, &message, 0));
    EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), left);
    ask();
    EXPECT_EFAULT(::recvfrom(socket_, room, sizeof room, 0, from.get(), bad<socklen_t>(place)));
    EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "");
    if (place == nullptr) continue;
    ask();
    EXPECT_EFAULT(::recvfrom(socket_, room, sizeof room, 0, bad<sockaddr>(place), &from.length()));
    EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "");
    parts[1] = {room, sizeof room};
    ask();
    message.msg_name = place;
    message.msg_namelen = sizeof(sockaddr_in6);
    EXPECT_EFAULT(::recvmsg(socket_, &message, 0));
    EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "");
  }
}

TEST_P(UdpBadPointers, OfAMessageLoseNothing) {
  char room[16];
  ask();
  for (const char* const place : memory_.unreadable()) {
    EXPECT_EFAULT(::recvmsg(socket_, bad<msghdr>(place), 0));
    EXPECT_EFAULT(::recvmmsg(socket_, bad<mmsghdr>(place), 2, 0, nullptr));
    mmsghdr message{};
    message.msg_hdr.msg_iov = bad<iovec>(place);
    message.msg_hdr.msg_iovlen = 1;
    EXPECT_EFAULT(::recvmsg(socket_, &message.msg_hdr, 0));
    iovec part{room, sizeof room};
    message.msg_hdr.msg_iov = &part;
    if (place == nullptr) continue;
    EXPECT_EFAULT(::recvmmsg(socket_, &message, 1, 0, bad<timespec>(place)));
  }
  EXPECT_EQ(socket_.receive(), "hello");
}

TEST_P(UdpBadPointers, WhatFitsInFrontOfABadPageIsReceived) {
  ask();
  EXPECT_EQ(::recv(socket_, hidden(memory_.last(5)), 5000, 0), 5);
  EXPECT_EQ(std::string(memory_.last(5), 5), "hello");
  ask();
  EXPECT_EFAULT(::recv(socket_, hidden(memory_.last(4)), 5000, 0));
}

TEST_P(UdpBadPointers, ToSendFrom) {
  for (const char* const place : memory_.unreadable()) {
    EXPECT_EFAULT(::sendto(socket_, hidden(place), 8, 0, echo_.get(), echo_.length()));
    iovec parts[]{{bad<char>(place), 8}};
    msghdr message{};
    Address name = echo_;
    message.msg_name = name.get();
    message.msg_namelen = name.length();
    message.msg_iov = parts;
    message.msg_iovlen = 1;
    EXPECT_EFAULT(::sendmsg(socket_, &message, 0));
    message.msg_iov = bad<iovec>(place);
    EXPECT_EFAULT(::sendmsg(socket_, &message, 0));
    EXPECT_EFAULT(::sendmsg(socket_, bad<msghdr>(place), 0));
    EXPECT_EFAULT(::sendmmsg(socket_, bad<mmsghdr>(place), 1, 0));
    if (place == nullptr) continue;
    EXPECT_EFAULT(::sendto(socket_, "hello", 5, 0, bad<sockaddr>(place), echo_.length()));
    char text[] = "hello";
    parts[0] = {text, 5};
    message.msg_iov = parts;
    message.msg_name = bad<char>(place);
    EXPECT_EFAULT(::sendmsg(socket_, &message, 0));
    message.msg_name = name.get();
    message.msg_control = bad<char>(place);
    message.msg_controllen = CMSG_SPACE(sizeof(int));
    EXPECT_EFAULT(::sendmsg(socket_, &message, 0));
  }
}

TEST_P(UdpBadPointers, OfNamesOptionsAndWaits) {
  const Socket other(GetParam().family);
  Address name;
  socket_.set(SOL_SOCKET, SO_RCVBUF, 100000);
  const int set = ::epoll_create1(0);
  epoll_event event{EPOLLOUT, {.fd = socket_}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, socket_, &event), 0);
  for (char* const place : memory_.unwritable()) {
    socklen_t length = sizeof(sockaddr_in6);
    EXPECT_EFAULT(::getsockname(socket_, bad<sockaddr>(place), &length));
    EXPECT_EFAULT(::getsockname(socket_, name.get(), bad<socklen_t>(place)));
    int value = 0;
    length = sizeof value;
    EXPECT_EFAULT(::getsockopt(socket_, SOL_SOCKET, SO_RCVBUF, hidden(place), &length));
    EXPECT_EFAULT(::getsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &value, bad<socklen_t>(place)));
    EXPECT_EFAULT(::ioctl(socket_, FIONREAD, hidden(place)));
    EXPECT_EFAULT(::poll(bad<pollfd>(place), 2, 0));
    EXPECT_EFAULT(::epoll_wait(set, bad<epoll_event>(place), 8, 0));
    if (place == memory_.constant()) continue;
    EXPECT_EFAULT(::connect(other, bad<sockaddr>(place), echo_.length()));
    EXPECT_EFAULT(::bind(other, bad<sockaddr>(place), echo_.length()));
    EXPECT_EFAULT(::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, hidden(place), sizeof(int)));
    EXPECT_EFAULT(::epoll_ctl(set, EPOLL_CTL_ADD, other, bad<epoll_event>(place)));
  }
  ::close(set);
}

}  // namespace
}  // namespace ringsock::vma_tests
