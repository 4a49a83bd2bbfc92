// Calls that read, write and copy bytes.
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

/// SPLICE_F_NONBLOCK and O_NONBLOCK of the pipe are about the pipe.
TEST(PreloadedBytes, SpliceFromABlockingSocketWaitsForBytesWhateverIsSaidOfThePipe) {
  for (const int flags_of_pipe : {0, O_NONBLOCK}) {
    auto [alice, bob] = connected_pair();
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), flags_of_pipe), 0);
    const Fd out(ends[0]), in(ends[1]);
    const pid_t splicer = ::gettid();
    std::thread sender([&, fd = int(alice)] {
      EXPECT_TRUE(support::falls_asleep(splicer));
      EXPECT_EQ(::send(fd, "xyz", 3, 0), 3);
    });
    EXPECT_EQ(::splice(bob, nullptr, in, nullptr, 100, SPLICE_F_NONBLOCK), 3);
    sender.join();
    EXPECT_EQ(read_all(out, 3), "xyz");
    ASSERT_EQ(::fcntl(bob, F_SETFL, O_NONBLOCK), 0);
    EXPECT_EQ(::splice(bob, nullptr, in, nullptr, 100, 0), -1);
    EXPECT_EQ(errno, EAGAIN);
  }
}

TEST(PreloadedBytes, SpliceAsksThePipeBeforeTheSocket) {
  auto* const before = std::signal(SIGPIPE, SIG_IGN);
  auto [alice, bob] = connected_pair();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  Fd out(ends[0]);
  const Fd in(ends[1]);
  const std::string full(65536, 'f');
  ASSERT_EQ(::write(in, full.data(), full.size()), ssize_t(full.size()));
  ASSERT_EQ(::shutdown(alice, SHUT_WR), 0);
  EXPECT_EQ(::splice(bob, nullptr, in, nullptr, 100, SPLICE_F_NONBLOCK), -1);
  EXPECT_EQ(errno, EAGAIN);
  out.reset();
  EXPECT_EQ(::splice(bob, nullptr, in, nullptr, 100, 0), -1);
  EXPECT_EQ(errno, EPIPE);
  std::signal(SIGPIPE, before);
}

TEST(PreloadedBytes, SpliceIntoAFullBlockingSocketWaitsUntilItsTimeAndLeavesThePipeAsItWas) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::fcntl(alice, F_SETFL, O_NONBLOCK), 0);
  const std::string much(100'000, 'm');
  while (::send(alice, much.data(), much.size(), 0) > 0) {
  }
  ASSERT_EQ(::fcntl(alice, F_SETFL, 0), 0);
  const timeval soon{.tv_sec = 0, .tv_usec = 20'000};
  ASSERT_EQ(::setsockopt(alice, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon), 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const Fd out(ends[0]), in(ends[1]);
  ASSERT_EQ(::write(in, "kept", 4), 4);
  for (const unsigned flags : {0U, unsigned{SPLICE_F_NONBLOCK}}) {
    // The kernel makes room once more when it moves bytes to the receiver's buffer.
    ssize_t moved = 4;
    for (int i = 0; i < 10'000 && moved == 4; ++i) {
      moved = ::splice(out, nullptr, alice, nullptr, 4, flags);
      if (moved == 4) {
        ASSERT_EQ(::write(in, "kept", 4), 4);
      }
    }
    EXPECT_EQ(moved, -1);
    EXPECT_EQ(errno, EAGAIN);
  }
  EXPECT_EQ(read_all(out, 4), "kept");
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

TEST(PreloadedBytes, TheErrorQueueIsNoStream) {
  auto [alice, bob] = connected_pair();
  ASSERT_EQ(::write(alice, "hello", 5), 5);
  char bytes[8];
  EXPECT_EQ(::recv(bob, bytes, sizeof bytes, MSG_ERRQUEUE), -1);
  EXPECT_EQ(errno, EAGAIN);
  iovec part{bytes, sizeof bytes};
  msghdr message = message_of(part);
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

TEST(PreloadedBytes, APeekThatStoresNothingCountsAllThatWait) {
  auto [alice, bob] = connected_pair();
  const std::vector<char> all(20'000, 'x');
  ASSERT_EQ(::write(alice, all.data(), all.size()), 20'000);
  ASSERT_EQ(::write(alice, "yz", 2), 2);
  std::vector<char> room(20'002);
  ASSERT_EQ(::recv(bob, room.data(), room.size(), MSG_PEEK | MSG_WAITALL), 20'002);
  EXPECT_EQ(::recv(bob, nullptr, 50'000, MSG_PEEK | MSG_TRUNC), 20'002);
  EXPECT_EQ(::recv(bob, nullptr, 20'001, MSG_PEEK | MSG_TRUNC), 20'001);
  EXPECT_EQ(read_all(bob, 20'002).substr(20'000), "yz");
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
