// Every call that moves bytes.
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include <array>
#include <csignal>
#include <cstdio>

#include "tests/preload/tcp_world.h"
#include "tests/support/thread_status.h"

namespace ringsock::preload_tests {
namespace {

TEST(PreloadedBytes, ReadAndWrite) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(alice, "hello", 5), 5);
  std::array<char, 16> data{};
  ASSERT_EQ(::read(bob, data.data(), data.size()), 5);
  EXPECT_STREQ(data.data(), "hello");
}

TEST(PreloadedBytes, ReadvAndWritevFillEveryPart) {
  auto [alice, bob] = connected_pair();
  std::string one = "ab", two = "cdef";
  const std::array<iovec, 2> out{{{one.data(), 2}, {two.data(), 4}}};
  ASSERT_EQ(::writev(alice, out.data(), 2), 6);
  std::array<char, 3> first{}, second{};
  const std::array<iovec, 2> in{{{first.data(), 3}, {second.data(), 3}}};
  ASSERT_EQ(::readv(bob, in.data(), 2), 6);
  EXPECT_EQ(std::string(first.data(), 3) + std::string(second.data(), 3), "abcdef");
}

TEST(PreloadedBytes, Preadv2WithoutOffsetIsReadvAndWithOneIsRefused) {
  auto [alice, bob] = connected_pair();
  std::string text = "xyz";
  const iovec out{text.data(), 3};
  ASSERT_EQ(::pwritev2(alice, &out, 1, -1, 0), 3);
  std::array<char, 3> data{};
  const iovec in{data.data(), 3};
  ASSERT_EQ(::preadv2(bob, &in, 1, -1, 0), 3);
  EXPECT_EQ(::preadv2(bob, &in, 1, 0, 0), -1);
  EXPECT_EQ(errno, ESPIPE);
}

TEST(PreloadedBytes, RecvfromTellsNoAddressAsOnAnyStream) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::sendto(alice, "q", 1, 0, nullptr, 0), 1);
  char byte = 0;
  sockaddr_storage from{};
  socklen_t length = sizeof from;
  ASSERT_EQ(::recvfrom(bob, &byte, 1, 0, reinterpret_cast<sockaddr*>(&from), &length), 1);
  EXPECT_EQ(length, 0U);
}

TEST(PreloadedBytes, PeekLeavesTheBytesAndWaitallWaitsForAll) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::send(alice, "abc", 3, MSG_NOSIGNAL), 3);
  std::array<char, 6> data{};
  ASSERT_EQ(::recv(bob, data.data(), 6, MSG_PEEK), 3);
  std::thread late([fd = int(alice)] { EXPECT_EQ(::send(fd, "def", 3, 0), 3); });
  EXPECT_EQ(::recv(bob, data.data(), 6, MSG_WAITALL), 6);
  late.join();
  EXPECT_EQ(std::string(data.data(), 6), "abcdef");
}

TEST(PreloadedBytes, APeekWithWaitallWaitsForAllUnlessTheStreamEndsOrTimeIsUp) {
  auto [alice, bob] = connected_pair();
  std::array<char, 6> data{};
  const auto peek = [&data, fd = int(bob)](int more) {
    return ::recv(fd, data.data(), data.size(), MSG_PEEK | MSG_WAITALL | more);
  };
  ASSERT_EQ(::send(alice, "abc", 3, MSG_NOSIGNAL), 3);
  EXPECT_EQ(peek(MSG_DONTWAIT), 3);
  const timeval short_time{0, 20'000}, long_time{30, 0};
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVTIMEO, &short_time, sizeof short_time), 0);
  EXPECT_EQ(peek(0), 3);
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_RCVTIMEO, &long_time, sizeof long_time), 0);
  const pid_t reader = ::gettid();
  std::thread late([fd = int(alice), reader] {
    EXPECT_TRUE(support::falls_asleep(reader));
    EXPECT_EQ(::send(fd, "defg", 4, 0), 4);
  });
  EXPECT_EQ(peek(0), 6);
  late.join();
  EXPECT_EQ(std::string(data.data(), 6), "abcdef");
  EXPECT_EQ(::recv(bob, data.data(), 4, 0), 4);
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  EXPECT_EQ(peek(0), 3);
  EXPECT_EQ(std::string(data.data(), 3), "efg");
}

TEST(PreloadedBytes, NothingThereIsEagainForDontwaitAndForNonblockingSockets) {
  auto [alice, bob] = connected_pair();
  char byte = 0;
  EXPECT_EQ(::recv(bob, &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(::fcntl(bob, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(::fcntl(bob, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  EXPECT_EQ(::read(bob, &byte, 1), -1);
  EXPECT_EQ(errno, EAGAIN);
  int off = 0;
  ASSERT_EQ(::ioctl(bob, FIONBIO, &off), 0);
  EXPECT_EQ(::fcntl(bob, F_GETFL) & O_NONBLOCK, 0);
}

TEST(PreloadedBytes, SendmsgAndRecvmsg) {
  auto [alice, bob] = connected_pair();
  std::string one = "12", two = "345";
  std::array<iovec, 2> parts{{{one.data(), 2}, {two.data(), 3}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = 2;
  ASSERT_EQ(::sendmsg(alice, &message, 0), 5);
  std::array<char, 8> data{};
  iovec part{data.data(), data.size()};
  msghdr got{};
  got.msg_iov = &part;
  got.msg_iovlen = 1;
  ASSERT_EQ(::recvmsg(bob, &got, 0), 5);
  EXPECT_EQ(got.msg_flags, 0);
}

TEST(PreloadedBytes, SendmmsgAndRecvmmsg) {
  auto [alice, bob] = connected_pair();
  std::string one = "aa", two = "bbb";
  std::array<iovec, 2> parts{{{one.data(), 2}, {two.data(), 3}}};
  std::array<mmsghdr, 2> messages{};
  for (std::size_t i = 0; i < 2; ++i) {
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  ASSERT_EQ(::sendmmsg(alice, messages.data(), 2, 0), 2);
  EXPECT_EQ(messages[1].msg_len, 3U);
  std::array<char, 2> first{};
  std::array<char, 3> second{};
  std::array<iovec, 2> rooms{{{first.data(), 2}, {second.data(), 3}}};
  std::array<mmsghdr, 2> got{};
  for (std::size_t i = 0; i < 2; ++i) {
    got[i].msg_hdr.msg_iov = &rooms[i];
    got[i].msg_hdr.msg_iovlen = 1;
  }
  ASSERT_EQ(::recvmmsg(bob, got.data(), 2, 0, nullptr), 2);
  EXPECT_EQ(std::string(second.data(), 3), "bbb");
}

// What follows a message of which only a part was sent would leave a hole in the stream.
TEST(PreloadedBytes, SendmmsgEndsWithAMessageThatIsSentInPart) {
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
      messages[one].msg_hdr.msg_iov = &pieces[one];
      messages[one].msg_hdr.msg_iovlen = 1;
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

TEST(PreloadedBytes, RecvmmsgAtTheEndOfAStreamFillsEachMessageWithNothing) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  std::array<char, 8> room{};
  iovec part{room.data(), room.size()};
  std::array<mmsghdr, 2> messages{};
  for (mmsghdr& message : messages) {
    message.msg_len = 1;
    message.msg_hdr.msg_iov = &part;
    message.msg_hdr.msg_iovlen = 1;
  }
  ASSERT_NE(poll_once(bob, POLLIN, 10'000) & POLLIN, 0);
  EXPECT_EQ(::recvmmsg(bob, messages.data(), 2, 0, nullptr), 2);
  EXPECT_EQ(messages[0].msg_len + messages[1].msg_len, 0U);
}

TEST(PreloadedBytes, SendfileFollowsTheOffsetOrTheFilesPosition) {
  auto [alice, bob] = connected_pair();
  char name[] = "/tmp/ringsock-sendfile-XXXXXX";
  const Fd file(::mkstemp(name));
  ::unlink(name);
  const std::string text(200'000, 'f');
  ASSERT_EQ(::write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  std::string got;
  std::thread reader([&, fd = int(bob)] { got = read_all(fd, 150'000); });
  off_t offset = 50'000;
  std::size_t left = 100'000;
  while (left > 0) {
    const ssize_t sent = ::sendfile(alice, file, &offset, left);
    ASSERT_GT(sent, 0);
    left -= static_cast<std::size_t>(sent);
  }
  EXPECT_EQ(offset, 150'000);
  EXPECT_EQ(::lseek(file, 0, SEEK_CUR), 200'000) << "an offset leaves the position alone";
  ASSERT_EQ(::lseek(file, 0, SEEK_SET), 0);
  left = 50'000;
  while (left > 0) {
    const ssize_t sent = ::sendfile(alice, file, nullptr, left);
    ASSERT_GT(sent, 0);
    left -= static_cast<std::size_t>(sent);
  }
  EXPECT_EQ(::lseek(file, 0, SEEK_CUR), 50'000);
  reader.join();
  EXPECT_EQ(got, std::string(150'000, 'f'));
}

TEST(PreloadedBytes, SpliceFromASocketToAPipeAndBack) {
  auto [alice, bob] = connected_pair();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const Fd out(ends[0]), in(ends[1]);
  ASSERT_EQ(::write(alice, "through", 7), 7);
  ASSERT_EQ(::splice(bob, nullptr, in, nullptr, 100, 0), 7);
  ASSERT_EQ(::splice(out, nullptr, bob, nullptr, 7, 0), 7);
  EXPECT_EQ(read_all(alice, 7), "through");
}

TEST(PreloadedBytes, SpliceIntoAPipeMovesWhatThePipeHasRoomFor) {
  auto [alice, bob] = connected_pair();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const Fd out(ends[0]), in(ends[1]);
  const std::string before(60'000, 'b');
  ASSERT_EQ(::write(in, before.data(), before.size()), ssize_t(before.size()));
  const std::string much(50'000, 'm');
  ASSERT_EQ(::write(alice, much.data(), much.size()), ssize_t(much.size()));
  const ssize_t moved = ::splice(bob, nullptr, in, nullptr, much.size(), 0);
  ASSERT_GT(moved, 0);
  EXPECT_LT(moved, ssize_t(much.size()));
  const auto rest = much.size() - static_cast<std::size_t>(moved);
  EXPECT_EQ(read_all(out, before.size() + static_cast<std::size_t>(moved)), before + much.substr(rest));
  EXPECT_EQ(read_all(bob, rest), much.substr(0, rest));
}

TEST(PreloadedBytes, SendfileFromASocketGoesIntoAPipeOnly) {
  auto [alice, bob] = connected_pair();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const Fd out(ends[0]), in(ends[1]);
  const Fd file(::memfd_create("file", MFD_CLOEXEC));
  ASSERT_EQ(::write(alice, "through", 7), 7);
  EXPECT_EQ(::sendfile(file, bob, nullptr, 7), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::splice(bob, nullptr, file, nullptr, 7, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(::sendfile(in, bob, nullptr, 7), 7);
  EXPECT_EQ(read_all(out, 7), "through");
}

TEST(PreloadedBytes, ACopyFromOrToAClosedDescriptorFails) {
  auto [alice, bob] = connected_pair();
  const Fd directory(::open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int closed = ::dup(alice);
  ::close(closed);
  EXPECT_EQ(::sendfile(alice, closed, nullptr, 7), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(::sendfile(alice, directory, nullptr, 7), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::sendfile(closed, bob, nullptr, 7), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(::splice(closed, nullptr, alice, nullptr, 7, 0), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(::splice(bob, nullptr, closed, nullptr, 7, 0), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(PreloadedBytes, SpliceTakesNothingFromAPipeForASocketThatCannotSend) {
  auto [alice, bob] = connected_pair();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const Fd out(ends[0]), in(ends[1]);
  ASSERT_EQ(::write(in, "kept", 4), 4);
  ASSERT_EQ(::shutdown(bob, SHUT_WR), 0);
  auto* const before = std::signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(::splice(out, nullptr, bob, nullptr, 4, 0), -1);
  EXPECT_EQ(errno, EPIPE);
  std::signal(SIGPIPE, before);
  EXPECT_EQ(read_all(out, 4), "kept");
}

TEST(PreloadedBytes, ControlDataThatTcpDoesNotKnowHasNoEffect) {
  auto [alice, bob] = connected_pair();
  std::string bytes = "bytes";
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
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

TEST(PreloadedBytes, DprintfAndSockatmark) {
  auto [alice, bob] = connected_pair();
  EXPECT_EQ(::dprintf(alice, "answer %d\n", 42), 10);
  EXPECT_EQ(read_all(bob, 10), "answer 42\n");
  EXPECT_EQ(::sockatmark(bob), 0);
}

TEST(PreloadedBytes, StreamsOfStdio) {
  auto [alice, bob] = connected_pair();
  FILE* const out = ::fdopen(::dup(bob), "w");
  FILE* const in = ::fdopen(bob.release(), "r");
  ASSERT_NE(in, nullptr);
  ASSERT_NE(out, nullptr);
  EXPECT_GE(::fileno(in), 0);
  ASSERT_EQ(::write(alice, "a line\nrest", 11), 11);
  std::array<char, 32> line{};
  ASSERT_NE(std::fgets(line.data(), line.size(), in), nullptr);
  EXPECT_STREQ(line.data(), "a line\n");
  std::fprintf(out, "answer %d\n", 42);
  std::fflush(out);
  EXPECT_EQ(read_all(alice, 10), "answer 42\n");
  std::fclose(in);
  std::fclose(out);
  EXPECT_EQ(read_all(alice, 1), "") << "fclose() closes the connection";
}

TEST(PreloadedBytes, HalfCloseGivesTheReaderTheEndAndLeavesTheOtherDirection) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(alice, "last", 4), 4);
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  EXPECT_EQ(read_all(bob, 10), "last");
  ASSERT_EQ(::write(bob, "ok", 2), 2);
  EXPECT_EQ(read_all(alice, 2), "ok");
}

TEST(PreloadedBytes, TheErrorQueueIsNoStream) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(alice, "hello", 5), 5);
  char bytes[8];
  EXPECT_EQ(::recv(bob, bytes, sizeof bytes, MSG_ERRQUEUE), -1);
  EXPECT_EQ(errno, EAGAIN);
  iovec part{bytes, sizeof bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(::recvmsg(bob, &message, MSG_ERRQUEUE), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(read_all(bob, 5), "hello");
}

TEST(PreloadedBytes, WhoAsksForCompletionsOfSendsGetsThemOrANo) {
  auto [alice, bob] = connected_pair();
  const int on = 1;
  if (::setsockopt(alice, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) != 0) {
    EXPECT_EQ(errno, EOPNOTSUPP);
    return;
  }
  ASSERT_EQ(::send(alice, "hello", 5, MSG_ZEROCOPY), 5);
  EXPECT_EQ(read_all(bob, 5), "hello");
  pollfd entry{alice, 0, 0};
  ASSERT_EQ(::poll(&entry, 1, 5000), 1);
  EXPECT_EQ(entry.revents, POLLERR);
}

TEST(PreloadedBytes, ReadsAndWritesOfNothingAskNobody) {
  auto [alice, bob] = connected_pair();
  const Fd unconnected(::socket(AF_INET, SOCK_STREAM, 0));
  char byte = 0;
  iovec nothing[] = {{&byte, 0}, {&byte, 0}};
  for (const int fd : {int(alice), int(unconnected)}) {
    EXPECT_EQ(::read(fd, &byte, 0), 0);
    EXPECT_EQ(::readv(fd, nothing, 2), 0);
    EXPECT_EQ(::readv(fd, nothing, 0), 0);
    EXPECT_EQ(::writev(fd, nothing, 2), 0);
  }
  EXPECT_EQ(::recv(alice, &byte, 0, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(::recv(alice, &byte, 0, MSG_DONTWAIT | MSG_TRUNC), -1);
  EXPECT_EQ(errno, EAGAIN);
}

/// What poll(2), SO_ERROR and getpeername(2) say of a connection.
struct Health {
  explicit Health(int fd) {
    pollfd entry{fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    ::poll(&entry, 1, 0);
    bits = entry.revents;
    socklen_t length = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    Address peer;
    peer.length = sizeof peer.storage;
    has_peer = ::getpeername(fd, peer.get(), &peer.length) == 0;
  }
  int bits = 0;
  int error = -1;
  bool has_peer = false;
};

TEST(PreloadedBytes, WhatIsSentFirstAfterThePeersCloseIsTakenAndComesBackAsAReset) {
  auto [alice, bob] = connected_pair();
  bob.reset();
  EXPECT_EQ(read_all(alice, 1), "");
  const Health ended(alice);
  EXPECT_EQ(ended.bits, POLLIN | POLLOUT | POLLRDHUP);
  EXPECT_EQ(ended.error, 0);
  EXPECT_TRUE(ended.has_peer);

  EXPECT_EQ(::send(alice, "too late", 8, MSG_NOSIGNAL), 8);
  const Health reset(alice);
  EXPECT_EQ(reset.bits, POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP);
  EXPECT_EQ(reset.error, EPIPE);
  EXPECT_FALSE(reset.has_peer);
  const Health told(alice);
  EXPECT_EQ(told.bits, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
  EXPECT_EQ(told.error, 0);
  EXPECT_EQ(read_all(alice, 1), "");
  EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(::shutdown(alice, SHUT_RDWR), -1);
  EXPECT_EQ(errno, ENOTCONN);
}

TEST(PreloadedBytes, AnEmptySendTellsNothingOfThePeersEndUntilTheReset) {
  auto [alice, bob] = connected_pair();
  bob.reset();
  EXPECT_EQ(read_all(alice, 1), "");
  EXPECT_EQ(::send(alice, "", 0, MSG_NOSIGNAL), 0);
  EXPECT_EQ(::send(alice, "", 0, MSG_NOSIGNAL), 0);
  EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(::send(alice, "", 0, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
  }
}

int error_of(int fd) {
  int error = -1;
  socklen_t length = sizeof error;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
  return error;
}

TEST(PreloadedBytes, WhatIsSentBeforeThePeersCloseIsKnownComesBackAsAReset) {
  auto [alice, bob] = connected_pair();
  bob.reset();
  ASSERT_EQ(::send(alice, "?", 1, MSG_NOSIGNAL), 1);
  EXPECT_NE(poll_once(alice, POLLIN, 5000) & POLLHUP, 0);
  EXPECT_EQ(error_of(alice), EPIPE);
  EXPECT_EQ(::send(alice, "?", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(PreloadedBytes, BytesLeftUnreadByAPeerThatHasShutDownAndClosedAreAReset) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::send(alice, "?", 1, 0), 1);
  ASSERT_EQ(::shutdown(bob, SHUT_RDWR), 0);
  bob.reset();
  EXPECT_NE(poll_once(alice, POLLIN, 5000) & POLLHUP, 0);
  EXPECT_EQ(error_of(alice), EPIPE);
}

TEST(PreloadedBytes, BytesThatComeAfterAShutdownOfBothDirectionsAreAReset) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::shutdown(bob, SHUT_RDWR), 0);
  ASSERT_EQ(::send(alice, "?", 1, MSG_NOSIGNAL), 1);
  EXPECT_NE(poll_once(bob, POLLIN, 5000) & POLLERR, 0);
  EXPECT_EQ(error_of(bob), ECONNRESET);
  char byte = 0;
  EXPECT_EQ(::read(bob, &byte, 1), 0);
}

TEST(PreloadedBytes, AnEndOfThePeerAfterAResetHidesNothingOfIt) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::shutdown(bob, SHUT_RDWR), 0);
  ASSERT_EQ(::send(alice, "?", 1, MSG_NOSIGNAL), 1);
  ::shutdown(alice, SHUT_WR);  // over TCP she may know of the reset
  EXPECT_NE(poll_once(bob, POLLIN, 5000) & POLLERR, 0);
  char byte = 0;
  EXPECT_EQ(::read(bob, &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST(PreloadedBytes, AReceiveOfNothingReportsAReset) {
  auto [alice, bob] = connected_pair();
  const linger at_once{1, 0};
  ASSERT_EQ(::setsockopt(bob, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  bob.reset();
  poll_once(alice, POLLIN, 5000);
  char byte = 0;
  EXPECT_EQ(::recv(alice, &byte, 0, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST(PreloadedBytes, OfALongWriteToOneWhoHasGoneOnlyWhatASocketBuffersIsTaken) {
  const std::string much(10 << 20, 'm');
  for (const int flags : {int{MSG_NOSIGNAL}, MSG_NOSIGNAL | MSG_DONTWAIT}) {
    for (const bool end_is_known : {false, true}) {
      auto [alice, bob] = connected_pair();
      bob.reset();
      if (end_is_known) {
        EXPECT_EQ(read_all(alice, 1), "");
      }
      const ssize_t sent = ::send(alice, much.data(), much.size(), flags);
      EXPECT_GT(sent, 0);
      EXPECT_LT(sent, 8 << 20);
      EXPECT_EQ(::send(alice, much.data(), much.size(), flags), -1);
      EXPECT_EQ(errno, EPIPE);
    }
  }
}

/// How `bob` ends a connection so that his peer hears of a reset.
enum class ResetBy { linger_of_nothing, unread_bytes };
constexpr ResetBy kResets[] = {ResetBy::linger_of_nothing, ResetBy::unread_bytes};

void reset_connection(int alice, Fd& bob, ResetBy how) {
  if (how == ResetBy::unread_bytes) {
    EXPECT_EQ(::send(alice, "unread", 6, 0), 6);
    EXPECT_NE(poll_once(bob, POLLIN, 1000) & POLLIN, 0);
  } else {
    const linger at_once{1, 0};
    EXPECT_EQ(::setsockopt(bob, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  }
  bob.reset();
}

constexpr int kAfterReset = POLLIN | POLLOUT | POLLRDHUP | POLLHUP;

TEST(PreloadedBytes, AResetIsTakenBySoError) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    reset_connection(alice, bob, how);
    const int error = Health(alice).error;
    EXPECT_EQ(error, ECONNRESET);
    const Health told(alice);
    EXPECT_EQ(told.bits, kAfterReset);
    EXPECT_EQ(told.error, 0);
    EXPECT_FALSE(told.has_peer);
    char byte = 0;
    EXPECT_EQ(::recv(alice, &byte, 1, 0), 0);
    EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
  }
}

TEST(PreloadedBytes, AResetIsTakenByWhoeverReadsOrWrites) {
  for (const ResetBy how : kResets) {
    for (const bool reads : {false, true}) {
      auto [alice, bob] = connected_pair();
      reset_connection(alice, bob, how);
      EXPECT_NE(poll_once(alice, POLLIN, 1000), 0);
      EXPECT_EQ(poll_once(alice, POLLIN | POLLOUT | POLLRDHUP), kAfterReset | POLLERR);
      char byte = 0;
      EXPECT_EQ(reads ? ::recv(alice, &byte, 1, 0) : ::send(alice, "x", 1, 0), -1) << "no signal, either";
      EXPECT_EQ(errno, ECONNRESET);
      EXPECT_EQ(poll_once(alice, POLLIN | POLLOUT | POLLRDHUP), kAfterReset);
      EXPECT_EQ(Health(alice).error, 0);
      EXPECT_EQ(::recv(alice, &byte, 1, 0), 0);
      EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
      EXPECT_EQ(errno, EPIPE);
    }
  }
}

TEST(PreloadedBytes, AShutdownHidesNoResetThatHasCome) {
  for (const ResetBy how : kResets) {
    for (const int direction : {SHUT_WR, SHUT_RDWR}) {
      auto [alice, bob] = connected_pair();
      reset_connection(alice, bob, how);
      EXPECT_EQ(::shutdown(alice, direction), -1);
      EXPECT_EQ(errno, ENOTCONN);
      EXPECT_EQ(poll_once(alice, POLLIN | POLLOUT | POLLRDHUP), kAfterReset | POLLERR);
      char byte = 0;
      EXPECT_EQ(::recv(alice, &byte, 1, 0), -1);
      EXPECT_EQ(errno, ECONNRESET);
    }
  }
}

TEST(PreloadedBytes, WhatCameBeforeAResetIsReadFirst) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    const std::string answer(50'000, 'a');
    EXPECT_EQ(::send(bob, answer.data(), answer.size(), 0), static_cast<ssize_t>(answer.size()));
    reset_connection(alice, bob, how);
    EXPECT_EQ(read_all(alice, answer.size()), answer);
    char byte = 0;
    EXPECT_EQ(::recv(alice, &byte, 1, 0), -1);
    EXPECT_EQ(errno, ECONNRESET);
    EXPECT_EQ(::recv(alice, &byte, 1, 0), 0);
  }
}

TEST(PreloadedBytes, AConnectionThatWasResetHasNoPeerThoughBytesWaitToBeRead) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    EXPECT_EQ(::send(bob, "plain text", 10, 0), 10);
    reset_connection(alice, bob, how);
    Address peer;
    peer.length = sizeof peer.storage;
    EXPECT_EQ(::getpeername(alice, peer.get(), &peer.length), -1);
    EXPECT_EQ(errno, ENOTCONN);
    EXPECT_EQ(read_all(alice, 10), "plain text");
  }
}

TEST(PreloadedBytes, AResetThatMeetsAReadOfManyBytesIsTheNextCallsToTell) {
  auto [alice, bob] = connected_pair();
  EXPECT_EQ(::send(bob, "answer", 6, 0), 6);
  std::thread resets([&alice = alice, &bob = bob] {
    ::usleep(50'000);
    reset_connection(alice, bob, ResetBy::linger_of_nothing);
  });
  char bytes[100];
  EXPECT_EQ(::recv(alice, bytes, sizeof bytes, MSG_WAITALL), 6);
  resets.join();
  EXPECT_EQ(::recv(alice, bytes, sizeof bytes, MSG_WAITALL), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST(PreloadedBytes, AResetAfterTheEndOfTheStreamIsABrokenPipe) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    EXPECT_EQ(::shutdown(bob, SHUT_WR), 0);
    EXPECT_EQ(read_all(alice, 1), "");
    reset_connection(alice, bob, how);
    EXPECT_EQ(Health(alice).error, EPIPE);
    char byte = 0;
    EXPECT_EQ(::recv(alice, &byte, 1, 0), 0);
    EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
  }
}

TEST(PreloadedBytes, AWriterThatSleepsHearsOfTheResetOfAPeerThatHasReadNothing) {
  auto [alice, bob] = connected_pair();
  std::thread closes([&bob = bob] {
    ::usleep(100'000);
    bob.reset();
  });
  const std::string block(100'000, 'b');
  ssize_t sent = 0;
  while (sent >= 0) sent = ::send(alice, block.data(), block.size(), MSG_NOSIGNAL);
  EXPECT_EQ(errno, ECONNRESET);
  closes.join();
  EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  char byte = 0;
  EXPECT_EQ(::recv(alice, &byte, 1, 0), 0);
}

TEST(PreloadedBytes, AWriterThatNeitherSleepsNorReadsHearsOfAResetSoon) {
  for (const ResetBy how : kResets) {
    auto [alice, bob] = connected_pair();
    for (int i = 0; i < 100; ++i) EXPECT_EQ(::send(alice, "x", 1, 0), 1);
    EXPECT_EQ(read_all(bob, 100).size(), 100U);
    reset_connection(alice, bob, how);
    ::usleep(10'000);
    ssize_t sent = 0;
    for (int i = 0; i < 100 && sent >= 0; ++i) sent = ::send(alice, "x", 1, MSG_NOSIGNAL);
    EXPECT_EQ(sent, -1);
    EXPECT_EQ(errno, ECONNRESET);
  }
}

TEST(PreloadedBytes, WhoHasReadAllClosesInOrder) {
  auto [alice, bob] = connected_pair();
  EXPECT_EQ(::send(alice, "request", 7, 0), 7);
  EXPECT_EQ(read_all(bob, 7), "request");
  EXPECT_EQ(::send(bob, "answer", 6, 0), 6);
  bob.reset();
  EXPECT_EQ(read_all(alice, 100), "answer");
  EXPECT_EQ(Health(alice).error, 0);
}

TEST(PreloadedBytes, AConnectionWhoseBothDirectionsHaveEndedHasNoPeer) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  EXPECT_EQ(read_all(bob, 1), "");
  ASSERT_EQ(::shutdown(bob, SHUT_WR), 0);
  EXPECT_EQ(read_all(alice, 1), "");
  EXPECT_FALSE(Health(alice).has_peer);
  EXPECT_FALSE(Health(bob).has_peer);
}

TEST(PreloadedBytes, WritingToOneWhoHasGoneIsEpipeWithASignal) {
  auto [alice, bob] = connected_pair();
  bob.reset();
  static volatile std::sig_atomic_t signals = 0;
  struct sigaction action {
  }, old{};
  action.sa_handler = [](int) { signals = signals + 1; };
  ASSERT_EQ(::sigaction(SIGPIPE, &action, &old), 0);
  ssize_t sent = 0;
  // One write is taken before the reset comes back.
  for (int i = 0; i < 100 && sent >= 0; ++i) sent = ::write(alice, "x", 1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(signals, 1);
  EXPECT_EQ(::send(alice, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(signals, 1);
  ::sigaction(SIGPIPE, &old, nullptr);
}

TEST(PreloadedBytes, WhoSendsSeldomHearsOfThePeersEndAfterFewSends) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(alice, "first", 5), 5);
  EXPECT_EQ(read_all(bob, 5), "first");
  bob.reset();
  ::usleep(5'000);
  int taken = 0;
  while (taken < 10 && ::send(alice, "x", 1, MSG_NOSIGNAL) == 1) {
    ++taken;
    ::usleep(5'000);
  }
  EXPECT_EQ(errno, EPIPE);
  EXPECT_LE(taken, 4);
}

TEST(PreloadedBytes, CountsOfBytesThatWait) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(alice, "12345", 5), 5);
  ASSERT_NE(poll_once(bob, POLLIN, 1000), 0);
  int count = -1;
  ASSERT_EQ(::ioctl(bob, FIONREAD, &count), 0);
  EXPECT_EQ(count, 5);
  ASSERT_EQ(::ioctl(alice, TIOCOUTQ, &count), 0);
  EXPECT_EQ(count, 0);
}

TEST(PreloadedBytes, TheSenderCountsThoseThatThePeerHasNoRoomFor) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::fcntl(alice, F_SETFL, O_NONBLOCK), 0);
  const std::string text(8 << 20, 'x');
  ssize_t sent = 0;
  for (ssize_t more = 0; more >= 0; sent += std::max<ssize_t>(more, 0)) more = ::send(alice, text.data(), 100'000, 0);
  int waiting = 0;
  ASSERT_EQ(::ioctl(alice, TIOCOUTQ, &waiting), 0);
  EXPECT_GT(waiting, 0);
  EXPECT_LE(waiting, sent);
  std::string all(static_cast<std::size_t>(sent), '\0');
  ASSERT_EQ(::recv(bob, all.data(), all.size(), MSG_WAITALL), sent);
  for (waiting = -1; waiting != 0;) ASSERT_EQ(::ioctl(alice, TIOCOUTQ, &waiting), 0);
}

TEST(PreloadedBytes, ALotInBothDirectionsAtOnce) {
  const auto pair = connected_pair(AF_INET6);
  constexpr std::size_t kBytes = 8 << 20;
  const auto pattern = [](std::size_t i, char seed) {
    return static_cast<char>(i * 7 + (i >> 11) + static_cast<unsigned char>(seed));
  };
  const auto write_side = [&](int fd, char seed) {
    std::string block(60'000, '\0');
    for (std::size_t done = 0; done < kBytes;) {
      const std::size_t size = std::min(block.size(), kBytes - done);
      for (std::size_t i = 0; i < size; ++i) block[i] = pattern(done + i, seed);
      const ssize_t sent = ::write(fd, block.data(), size);
      ASSERT_GT(sent, 0);
      done += static_cast<std::size_t>(sent);
    }
  };
  const auto read_side = [&](int fd, char seed) {
    const std::string all = read_all(fd, kBytes);
    ASSERT_EQ(all.size(), kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) ASSERT_EQ(all[i], pattern(i, seed)) << i;
  };
  std::thread a([&] { write_side(pair.alice, 'a'); });
  std::thread b([&] { write_side(pair.bob, 'b'); });
  std::thread c([&] { read_side(pair.alice, 'b'); });
  read_side(pair.bob, 'a');
  a.join();
  b.join();
  c.join();
}

}  // namespace
}  // namespace ringsock::preload_tests
