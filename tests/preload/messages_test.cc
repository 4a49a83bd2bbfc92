// sendmsg(2), sendmmsg(2) and their counterparts: messages of several parts, several messages, control data.
#include <netinet/in.h>
#include <sys/uio.h>

#include <array>
#include <thread>

#include "tests/preload/tcp_world.h"
#include "tests/support/thread_status.h"

namespace ringsock::preload_tests {
namespace {

TEST(PreloadedMessages, SendmsgAndRecvmsg) {
  auto [alice, bob] = connected_pair();
  std::string one = "12", two = "345";
  std::array<iovec, 2> parts{{{one.data(), 2}, {two.data(), 3}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = 2;
  ASSERT_EQ(::sendmsg(alice, &message, 0), 5);
  std::array<char, 8> data{};
  iovec part{data.data(), data.size()};
  msghdr got = message_of(part);
  ASSERT_EQ(::recvmsg(bob, &got, 0), 5);
  EXPECT_EQ(got.msg_flags, 0);
}

TEST(PreloadedMessages, SendmmsgAndRecvmmsg) {
  auto [alice, bob] = connected_pair();
  std::string one = "aa", two = "bbb";
  std::array<iovec, 2> parts{{{one.data(), 2}, {two.data(), 3}}};
  std::array<mmsghdr, 2> messages{};
  for (std::size_t i = 0; i < 2; ++i) {
    messages[i].msg_hdr = message_of(parts[i]);
  }
  ASSERT_EQ(::sendmmsg(alice, messages.data(), 2, 0), 2);
  EXPECT_EQ(messages[1].msg_len, 3U);
  std::array<char, 2> first{};
  std::array<char, 3> second{};
  std::array<iovec, 2> rooms{{{first.data(), 2}, {second.data(), 3}}};
  std::array<mmsghdr, 2> got{};
  for (std::size_t i = 0; i < 2; ++i) {
    got[i].msg_hdr = message_of(rooms[i]);
  }
  ASSERT_EQ(::recvmmsg(bob, got.data(), 2, 0, nullptr), 2);
  EXPECT_EQ(std::string(second.data(), 3), "bbb");
}

// What follows a message of which only a part was sent would leave a hole in the stream.
TEST(PreloadedMessages, SendmmsgEndsWithAMessageThatIsSentInPart) {
  constexpr int kParts = 500, kAttempts = 3'000;  // most attempts send all where the reader is as fast as the sender
  auto [alice, bob] = connected_pair();
  std::thread reader;  // begins when the room is full
  const auto read_all = [fd = int(bob)] {
    std::string room(30'000, ' ');
    while (::recv(fd, room.data(), room.size(), 0) > 0) {
    }
  };
  std::string large(300'000, 'l'), small(5'000, 's');
  int parts = 0;
  for (int i = 0; i < kAttempts && parts < kParts; ++i) {
    std::array<iovec, 2> pieces{{{large.data(), large.size()}, {small.data(), small.size()}}};
    std::array<mmsghdr, 2> messages{};
    for (std::size_t one = 0; one < 2; ++one) {
      messages[one].msg_hdr = message_of(pieces[one]);
    }
    const int sent = ::sendmmsg(alice, messages.data(), 2, MSG_DONTWAIT);
    if (sent != 2 && !reader.joinable()) reader = std::thread(read_all);
    if (sent < 0) {
      ASSERT_EQ(errno, EAGAIN);
      ASSERT_NE(poll_once(alice, POLLOUT, 10'000) & POLLOUT, 0);
      continue;
    }
    if (messages[0].msg_len == large.size()) continue;
    ++parts;
    EXPECT_EQ(sent, 1) << messages[0].msg_len << " bytes of the first message";
    if (sent != 1) break;
  }
  ::shutdown(alice, SHUT_WR);
  if (reader.joinable()) reader.join();
}

TEST(PreloadedMessages, RecvmmsgAtTheEndOfAStreamFillsEachMessageWithNothing) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  std::array<char, 8> room{};
  iovec part{room.data(), room.size()};
  std::array<mmsghdr, 2> messages{};
  for (mmsghdr& message : messages) {
    message.msg_len = 1;
    message.msg_hdr = message_of(part);
  }
  ASSERT_NE(poll_once(bob, POLLIN, 10'000) & POLLIN, 0);
  EXPECT_EQ(::recvmmsg(bob, messages.data(), 2, 0, nullptr), 2);
  EXPECT_EQ(messages[0].msg_len + messages[1].msg_len, 0U);
}

TEST(PreloadedMessages, ControlDataThatTcpDoesNotKnowHasNoEffect) {
  auto [alice, bob] = connected_pair();
  std::string bytes = "bytes";
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message = message_of(part);
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_len = CMSG_LEN(sizeof(int));
  header->cmsg_level = IPPROTO_IP;
  header->cmsg_type = IP_TTL;
  EXPECT_EQ(::sendmsg(alice, &message, 0), 5);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  std::memset(CMSG_DATA(header), 0, sizeof(int));
  EXPECT_EQ(::sendmsg(alice, &message, 0), 5);
  EXPECT_EQ(read_all(bob, 10), "bytesbytes");
  if (::geteuid() == 0) {  // CAP_NET_ADMIN
    header->cmsg_type = SO_MARK;
    EXPECT_EQ(::sendmsg(alice, &message, 0), 5);
    EXPECT_EQ(read_all(bob, 5), "bytes");
  }
  header->cmsg_type = 0x7777;
  EXPECT_EQ(::sendmsg(alice, &message, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  header->cmsg_level = IPPROTO_IP;
  header->cmsg_len = control.size() + 1;
  EXPECT_EQ(::sendmsg(alice, &message, 0), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(PreloadedMessages, RecvmsgThatWaitsForAllBytesLeavesTheNameEmpty) {
  auto [alice, bob] = connected_pair();
  const pid_t receiver = ::gettid();
  std::thread sender([receiver, &alice = alice] {
    EXPECT_TRUE(support::falls_asleep(receiver));
    ::send(alice, "xyz", 3, 0);
  });
  std::array<char, 3> bytes{};
  sockaddr_in name{};
  iovec part{bytes.data(), bytes.size()};
  msghdr message = message_of(part);
  message.msg_name = &name;
  message.msg_namelen = sizeof name;
  EXPECT_EQ(::recvmsg(bob, &message, MSG_WAITALL), 3);
  EXPECT_EQ(message.msg_namelen, 0U);
  sender.join();
}

TEST(PreloadedMessages, RecvmsgWithoutRoomLeavesTheNameEmptyOnceItHasWaited) {
  auto [alice, bob] = connected_pair();
  const timeval soon{.tv_sec = 0, .tv_usec = 10'000};
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), 0);
  sockaddr_in name{};
  std::array<char, 64> control{};
  msghdr message{};
  message.msg_name = &name;
  message.msg_namelen = sizeof name;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  EXPECT_EQ(::recvmsg(bob, &message, 0), 0);
  EXPECT_EQ(message.msg_namelen, 0U);
  EXPECT_EQ(message.msg_controllen, 0U);
}

TEST(PreloadedMessages, RecvmsgTellsThatCloexecWasAskedFor) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::send(alice, "x", 1, 0), 1);
  char byte = 0;
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ASSERT_EQ(::recvmsg(bob, &message, MSG_CMSG_CLOEXEC), 1);
  EXPECT_EQ(message.msg_flags, MSG_CMSG_CLOEXEC);
}

}  // namespace
}  // namespace ringsock::preload_tests
