// Datagram rsockets: two in one process, and what each of them sees.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

#include <atomic>
#include <thread>
#include <tuple>
#include <vector>

#include "core/runtime/fd_table.h"
#include "tests/stories/datagram_pair.h"
#include "tests/support/thread_status.h"

namespace ringsock::stories {
namespace {

std::string error() { return strerrorname_np(errno); }

/// Waits until the thread that sets `number` sleeps.
void wait_until_asleep(const std::atomic<pid_t>& number) {
  while (number == 0) std::this_thread::yield();
  EXPECT_TRUE(support::falls_asleep(number));
}

TEST(Datagrams, TravelBothWaysWithTheirSource) {
  Post alice, bob;
  alice.send("hello", bob);
  Address from;
  ASSERT_EQ(bob.hear(&from), "hello");
  EXPECT_EQ(from.host(), "127.0.0.1");
  EXPECT_EQ(from.port(), alice.name.port());

  bob.send("and back", from);
  EXPECT_EQ(alice.hear(&from), "and back");
  EXPECT_EQ(from.port(), bob.name.port());
}

TEST(Datagrams, KeepTheirOrderWhenTheyChangeToTheQueuePair) {
  Post alice, bob;
  // Three by the kernel. Bob answers the first one he sees, and Alice then knows his queue pair.
  for (const char* text : {"1", "2", "3"}) alice.send(text, bob);
  EXPECT_EQ(bob.hear(), "1");
  alice.send("4", bob);
  alice.send("5", bob);
  for (const char* text : {"2", "3", "4", "5"}) EXPECT_EQ(bob.hear(), text);
}

TEST(Datagrams, KeepTheirOrderWhenTheReceiverDoesNotRead) {
  Post alice, bob;
  introduce(alice, bob);
  alice.send("by the queue pair", bob);
  EXPECT_EQ(bob.hear(), "by the queue pair");
  constexpr int kCount = 60;  // more than the device's queue has room for
  for (int i = 0; i < kCount; ++i) alice.send(std::to_string(i), bob);
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(bob.hear(), std::to_string(i));
}

TEST(Datagrams, KeepTheirOrderWhenMoreWaitInTheKernelThanOneLookTakes) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may have a large receive buffer";
  Post alice, bob;
  constexpr int kMuch = 1 << 20;
  ASSERT_EQ(rsetsockopt(bob.socket, SOL_SOCKET, SO_RCVBUFFORCE, &kMuch, sizeof kMuch), 0);
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount; ++i) alice.send(std::to_string(i), bob);
  int last = std::stoi(bob.hear());  // and answers, so Alice's next goes by the queue pair
  alice.send(std::to_string(kCount), bob);
  while (last != kCount) {
    const int next = std::stoi(bob.hear());
    ASSERT_GT(next, last);
    last = next;
  }
  EXPECT_EQ(bob.hear(nullptr, MSG_DONTWAIT), "<EAGAIN>") << "the last one comes last";
}

TEST(Datagrams, OfNoBytesArrive) {
  Post alice, bob;
  for (int round = 0; round < 2; ++round) {
    alice.send("", bob);
    Address from;
    EXPECT_EQ(bob.hear(&from), "");
    EXPECT_EQ(from.port(), alice.name.port());
  }
}

TEST(Datagrams, AreAsLargeAsASlot) {
  for (const auto& [host, domain, most] : {std::tuple{"127.0.0.1", AF_INET, 2040}, {"::1", AF_INET6, 2024}}) {
    Post alice(host, domain), bob(host, domain);
    const std::string large(static_cast<std::size_t>(most), 'x'), larger = large + 'x';
    for (int round = 0; round < 3; ++round) {  // by the kernel and by the queue pair
      alice.send(large, bob);
      EXPECT_EQ(bob.hear(), large);
      EXPECT_EQ(rsendto(alice.socket, larger.data(), larger.size(), 0, bob.name.get(), bob.name.length), -1);
      EXPECT_EQ(error(), "EMSGSIZE");
    }
  }
}

TEST(Datagrams, TravelOverIpv6) {
  Post alice("::1", AF_INET6), bob("::1", AF_INET6);
  introduce(alice, bob);
  alice.send("by the queue pair", bob);
  Address from;
  EXPECT_EQ(bob.hear(&from), "by the queue pair");
  EXPECT_EQ(from.host(), "::1");
  EXPECT_EQ(from.port(), alice.name.port());
}

TEST(Datagrams, FromIpv4ReachADualStackSocketWithAMappedAddress) {
  Post alice, bob("::", AF_INET6);
  for (int round = 0; round < 3; ++round) {
    alice.send("four", address_of("127.0.0.1", bob.name.port()));
    Address from;
    ASSERT_EQ(bob.hear(&from), "four");
    EXPECT_EQ(from.host(), "::ffff:127.0.0.1");
    bob.send("mapped", from);
    ASSERT_EQ(alice.hear(&from), "mapped");
    EXPECT_EQ(from.host(), "127.0.0.1");
  }
}

TEST(Datagrams, ToAWildcardSocketAreAnsweredFromTheAddressThatWasAsked) {
  Post alice, bob("0.0.0.0");
  for (const char* host : {"127.0.0.1", "127.0.0.77"}) {
    for (int round = 0; round < 3; ++round) {
      alice.send("where are you?", address_of(host, bob.name.port()));
      Address from;
      ASSERT_EQ(bob.hear(&from), "where are you?");
      bob.send("here", from);
      ASSERT_EQ(alice.hear(&from), "here");
      EXPECT_EQ(from.host(), host);
    }
  }
}

TEST(Datagrams, OfAnUnboundSocketHaveAPortThatCanBeAnswered) {
  Post alice(nullptr), bob;
  alice.send("anybody?", bob);
  Address from;
  ASSERT_EQ(bob.hear(&from), "anybody?");
  EXPECT_NE(from.port(), 0);
  bob.send("yes", from);
  EXPECT_EQ(alice.hear(), "yes");
}

TEST(Datagrams, ToTheWildcardReachThisHost) {
  Post alice, bob;
  alice.send("hello", address_of("0.0.0.0", bob.name.port()));
  EXPECT_EQ(bob.hear(), "hello");
}

TEST(ConnectedDatagrams, NeedNoAddressAndComeFromThePeerOnly) {
  Post alice, bob, mallory;
  introduce(mallory, alice);
  alice.connect(bob.name);
  EXPECT_EQ(peer_name(alice.socket).port(), bob.name.port());

  alice.socket.say("dear Bob");
  EXPECT_EQ(bob.hear(), "dear Bob");
  mallory.send("by the queue pair", alice);
  Post stranger;
  stranger.send("by the kernel", alice);
  bob.send("dear Alice", alice);
  EXPECT_EQ(alice.hear(), "dear Alice");
  EXPECT_EQ(alice.hear(nullptr, MSG_DONTWAIT), "<EAGAIN>");
}

TEST(ConnectedDatagrams, EndWithAnAddressOfNoFamily) {
  Post bob, carol;
  Post alice("127.0.0.1");
  alice.connect(bob.name);
  const sockaddr nobody{AF_UNSPEC, {}};
  ASSERT_EQ(rconnect(alice.socket, &nobody, sizeof nobody), 0);
  Address name;
  EXPECT_EQ(rgetpeername(alice.socket, name.get(), &name.length), -1);
  EXPECT_EQ(error(), "ENOTCONN");
  EXPECT_EQ(rsend(alice.socket, "x", 1, 0), -1);
  EXPECT_EQ(error(), "EDESTADDRREQ");
  // The kernel takes away a port that it has chosen itself.
  alice.send("hello", carol);
  Address from;
  EXPECT_EQ(carol.hear(&from), "hello");
  carol.send("hello", from);
  EXPECT_EQ(alice.hear(), "hello");
}

/// Alice asks Bob, whose socket is gone.
void ask_nobody(Post& alice) {
  Address gone;
  {
    const Post bob;
    gone = bob.name;
  }
  alice.connect(gone);
  alice.socket.say("Bob?");
}

TEST(ConnectedDatagrams, HearThatNobodyHasThePort) {
  Post alice;
  ask_nobody(alice);
  EXPECT_EQ(alice.hear(), "<ECONNREFUSED>");
  EXPECT_EQ(alice.hear(nullptr, MSG_DONTWAIT), "<EAGAIN>");
}

TEST(ConnectedDatagrams, PollTellsOfAnErrorThatIsNoDatagram) {
  Post alice;
  ask_nobody(alice);
  pollfd one{alice.socket, POLLIN, 0};
  ASSERT_EQ(rpoll(&one, 1, 10'000), 1);
  EXPECT_EQ(one.revents, POLLERR);
  one.events = POLLIN | POLLOUT;
  ASSERT_EQ(rpoll(&one, 1, 10'000), 1);
  EXPECT_EQ(one.revents, POLLOUT | POLLERR);
  EXPECT_EQ(alice.hear(), "<ECONNREFUSED>");
}

TEST(ConnectedDatagrams, HearItAlsoWhenThePeerIsGoneAfterwards) {
  Post alice, bob;
  alice.connect(bob.name);
  introduce(alice, bob);
  alice.socket.say("by the queue pair");
  EXPECT_EQ(bob.hear(), "by the queue pair");
  bob.socket.close();
  alice.socket.say("Bob?");
  EXPECT_EQ(alice.hear(), "<ECONNREFUSED>");
}

TEST(Datagrams, ReachTheNextProcessThatHasThePort) {
  Post alice, bob;
  introduce(alice, bob);
  const Address name = bob.name;
  bob.socket.close();
  Post next(nullptr);
  Address same = name;
  ASSERT_EQ(rbind(next.socket, same.get(), same.length), 0) << strerror(errno);
  alice.send("still there?", name);
  EXPECT_EQ(next.hear(), "still there?");
}

TEST(Datagrams, ThatAreLongerThanTheBufferAreCut) {
  Post alice, bob;
  introduce(alice, bob);
  char few[3];
  alice.send("abcdef", bob);
  EXPECT_EQ(rrecv(bob.socket, few, sizeof few, 0), 3);
  alice.send("abcdef", bob);
  EXPECT_EQ(rrecv(bob.socket, few, sizeof few, MSG_TRUNC), 6);  // the rest is gone
  alice.send("next", bob);
  EXPECT_EQ(bob.hear(), "next");

  alice.send("abcdef", bob);
  iovec part{few, sizeof few};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(rrecvmsg(bob.socket, &message, 0), 3);
  EXPECT_EQ(message.msg_flags, MSG_TRUNC);
}

TEST(Datagrams, CanBePeekedAt) {
  Post alice, bob;
  introduce(alice, bob);
  alice.send("one", bob);
  alice.send("two", bob);
  EXPECT_EQ(bob.hear(nullptr, MSG_PEEK), "one");
  EXPECT_EQ(bob.hear(nullptr, MSG_PEEK), "one");
  EXPECT_EQ(bob.hear(), "one");
  EXPECT_EQ(bob.hear(), "two");
}

TEST(Datagrams, AreGatheredAndScattered) {
  Post alice, bob;
  introduce(alice, bob);
  std::string letters = "abcdefghijklmnopqrstuvwxyz";
  for (const std::size_t pieces : {2U, 26U}) {
    std::vector<iovec> parts;
    for (std::size_t i = 0; i < pieces; ++i) parts.push_back({letters.data() + i, 1});
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    message.msg_name = bob.name.get();
    message.msg_namelen = bob.name.length;
    ASSERT_EQ(rsendmsg(alice.socket, &message, 0), static_cast<ssize_t>(pieces)) << error();

    char first[5] = "", second[40] = "";
    iovec to[] = {{first, 2}, {second, sizeof second}};
    Address from;
    message = {};
    message.msg_iov = to;
    message.msg_iovlen = 2;
    message.msg_name = from.get();
    message.msg_namelen = from.length;
    ASSERT_EQ(rrecvmsg(bob.socket, &message, 0), static_cast<ssize_t>(pieces));
    EXPECT_EQ(std::string(first) + second, letters.substr(0, pieces));
    EXPECT_EQ(from.port(), alice.name.port());
    EXPECT_EQ(message.msg_namelen, sizeof(sockaddr_in));
  }
}

TEST(Datagrams, CallsThatDoNotFitAreRefused) {
  Post alice, bob;
  EXPECT_EQ(rsend(alice.socket, "x", 1, 0), -1);
  EXPECT_EQ(error(), "EDESTADDRREQ");
  EXPECT_EQ(rlisten(alice.socket, 1), -1);
  EXPECT_EQ(error(), "EOPNOTSUPP");
  EXPECT_EQ(raccept(alice.socket, nullptr, nullptr), -1);
  EXPECT_EQ(error(), "EOPNOTSUPP");
  EXPECT_EQ(riomap(alice.socket, nullptr, 0, 0, 0, 0), -1);
  EXPECT_EQ(error(), "EOPNOTSUPP");
  Address six = address_of("::1", 9), no_port = address_of("127.0.0.1"), remote = address_of("192.0.2.1", 9);
  EXPECT_EQ(rsendto(alice.socket, "x", 1, 0, six.get(), six.length), -1);
  EXPECT_EQ(error(), "EAFNOSUPPORT");
  EXPECT_EQ(rsendto(alice.socket, "x", 1, 0, no_port.get(), no_port.length), -1);
  EXPECT_EQ(error(), "EINVAL");
  EXPECT_EQ(rsendto(alice.socket, "x", 1, 0, remote.get(), remote.length), -1);
  EXPECT_EQ(error(), "ENODEV");
  EXPECT_EQ(rconnect(alice.socket, remote.get(), remote.length), -1);
  EXPECT_EQ(rsendto(alice.socket, "x", 1, MSG_OOB, bob.name.get(), bob.name.length), -1);
  EXPECT_EQ(error(), "EOPNOTSUPP");
  EXPECT_EQ(rbind(alice.socket, bob.name.get(), bob.name.length), -1);
  EXPECT_EQ(error(), "EINVAL");
  Post taken(nullptr);
  EXPECT_EQ(rbind(taken.socket, bob.name.get(), bob.name.length), -1);
  EXPECT_EQ(error(), "EADDRINUSE");
  introduce(alice, bob);  // all this has changed nothing
}

TEST(Datagrams, OfNoAddressFamilyAreThoseOfTheSockets) {
  const Post alice, bob;
  Address to = bob.name;
  to.get()->sa_family = AF_UNSPEC;
  EXPECT_EQ(rsendto(alice.socket, "x", 1, 0, to.get(), sizeof(sockaddr_in)), 1);
  EXPECT_EQ(bob.hear(), "x");
  EXPECT_EQ(rsendto(alice.socket, "x", 1, 0, to.get(), sizeof(sockaddr_in) - 1), -1);
  EXPECT_EQ(error(), "EINVAL");
  const Post six("::1", AF_INET6), sixth("::1", AF_INET6);
  EXPECT_EQ(rsendto(six.socket, "x", 1, 0, to.get(), to.length), -1);
  EXPECT_EQ(error(), "EDESTADDRREQ");
  six.connect(sixth.name);
  EXPECT_EQ(rsendto(six.socket, "y", 1, 0, to.get(), to.length), 1);
  EXPECT_EQ(sixth.hear(), "y");
}

TEST(Datagrams, AreReceivedWhateverTheFlagForUrgentBytes) {
  const Post alice, bob;
  for (int i = 0; i < 3; ++i) {
    alice.send("nothing is urgent", bob);
    EXPECT_EQ(bob.hear(nullptr, MSG_OOB), "nothing is urgent");
  }
}

TEST(Datagrams, TheKindsOfSockets) {
  for (const auto& [type, protocol] : {std::pair{SOCK_DGRAM, IPPROTO_TCP}, {SOCK_STREAM, IPPROTO_UDP}}) {
    EXPECT_EQ(rsocket(AF_INET, type, protocol), -1);
    EXPECT_EQ(error(), "EPROTONOSUPPORT");
  }
  EXPECT_EQ(rsocket(AF_INET, SOCK_RAW, 0), -1);
  EXPECT_EQ(error(), "ESOCKTNOSUPPORT");
  const Rsocket socket(rsocket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP));
  EXPECT_EQ(socket.hear(), "<EAGAIN>");
  EXPECT_EQ(rfcntl(socket, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(rfcntl(socket, F_GETFL), O_RDWR | O_NONBLOCK);
  EXPECT_EQ(get_int(socket, SOL_SOCKET, SO_TYPE), SOCK_DGRAM);
  EXPECT_EQ(get_int(socket, SOL_SOCKET, SO_PROTOCOL), IPPROTO_UDP);
  EXPECT_EQ(get_int(socket, SOL_SOCKET, SO_DOMAIN), AF_INET);
}

TEST(DatagramWaits, EndWhenTheTimeIsOver) {
  Post bob;
  const timeval moment{0, 1000};
  ASSERT_EQ(rsetsockopt(bob.socket, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment), 0);
  EXPECT_EQ(bob.hear(), "<EAGAIN>");
}

TEST(DatagramWaits, EndWhenADatagramComes) {
  Post alice, bob;
  for (int round = 0; round < 3; ++round) {  // by the kernel, then by the queue pair
    std::string heard;
    std::atomic<pid_t> number{0};
    std::thread waiter([&] {
      number = gettid();
      heard = bob.hear();
    });
    wait_until_asleep(number);
    alice.send("wake up", bob);
    waiter.join();
    EXPECT_EQ(heard, "wake up");
  }
}

TEST(DatagramWaits, EndWhenAnotherThreadsSendHasFoundTheDatagram) {
  Post alice, bob;
  // Alice has asked Bob for his queue pair, so each of her sends looks for his answer.
  alice.send("hello", bob);
  std::string heard;
  std::atomic<pid_t> number{0};
  std::thread waiter([&] {
    number = gettid();
    heard = alice.hear();
  });
  wait_until_asleep(number);
  EXPECT_EQ(bob.hear(), "hello");  // and answers
  bob.send("welcome", alice);
  alice.send("hello again", bob);
  waiter.join();
  EXPECT_EQ(heard, "welcome");
}

TEST(DatagramWaits, EndWhenTheSocketIsClosed) {
  Post bob;
  std::string heard;
  std::atomic<pid_t> number{0};
  std::thread waiter([&, fd = bob.socket.fd()] {
    number = gettid();
    char byte;
    heard = rrecv(fd, &byte, 1, 0) < 0 ? error() : "something";
  });
  wait_until_asleep(number);
  bob.socket.close();
  waiter.join();
  EXPECT_EQ(heard, "EBADF");
}

short events_of(const Post& post, int timeout = 0) {
  pollfd one{post.socket, POLLIN | POLLOUT | POLLRDHUP, 0};
  EXPECT_GE(rpoll(&one, 1, timeout), 0);
  return one.revents;
}

TEST(DatagramWaits, PollTellsOfDatagramsAndRoom) {
  Post alice, bob;
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(events_of(bob), POLLOUT);
    alice.send("x", bob);
    EXPECT_EQ(events_of(bob), POLLIN | POLLOUT);
    EXPECT_EQ(bob.hear(), "x");
  }
  fd_set readable;
  FD_ZERO(&readable);
  FD_SET(bob.socket.fd(), &readable);
  alice.send("x", bob);
  EXPECT_EQ(rselect(bob.socket + 1, &readable, nullptr, nullptr, nullptr), 1);
  EXPECT_TRUE(FD_ISSET(bob.socket.fd(), &readable));
}

TEST(DatagramWaits, PollSleepsUntilADatagramComes) {
  Post alice, bob;
  introduce(alice, bob);
  for (int round = 0; round < 2; ++round) {
    std::atomic<pid_t> number{0};
    int ready = -1;
    pollfd one{bob.socket, POLLIN, 0};
    std::thread waiter([&] {
      number = gettid();
      ready = rpoll(&one, 1, 10'000);
    });
    wait_until_asleep(number);
    alice.send("x", bob);
    waiter.join();
    EXPECT_EQ(ready, 1);
    EXPECT_EQ(bob.hear(), "x");
  }
}

TEST(DatagramWaits, EdgesOfAnEpollSetAreDatagrams) {
  Post alice, bob;
  const Rsocket set(repoll_create(0));
  epoll_event event{EPOLLIN | EPOLLET, {.u32 = 7}};
  ASSERT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, bob.socket, &event), 0);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(repoll_wait(set, &event, 1, 0), 0);
    alice.send("x", bob);
    ASSERT_EQ(repoll_wait(set, &event, 1, 10'000), 1);
    EXPECT_EQ(event.data.u32, 7u);
    EXPECT_EQ(repoll_wait(set, &event, 1, 0), 0);  // not again
    EXPECT_EQ(bob.hear(), "x");
  }
}

TEST(DatagramShutdown, EndsWhatItNames) {
  Post alice, bob;
  EXPECT_EQ(rshutdown(alice.socket, SHUT_WR), -1);
  EXPECT_EQ(error(), "ENOTCONN");
  EXPECT_EQ(rshutdown(bob.socket, 7), -1);
  EXPECT_EQ(error(), "EINVAL");
  Post carol;
  carol.connect(bob.name);
  ASSERT_EQ(rshutdown(carol.socket, SHUT_WR), 0);
  EXPECT_EQ(rsend(carol.socket, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(error(), "EPIPE");
  ASSERT_EQ(rshutdown(carol.socket, SHUT_RD), 0);
  EXPECT_EQ(carol.hear(), "");
  EXPECT_EQ(events_of(carol), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
}

TEST(DatagramOptions, AreTheKernelsWhereItHasThem) {
  const Post bob;
  set_int(bob.socket, SOL_SOCKET, SO_RCVBUF, 8192);
  EXPECT_EQ(get_int(bob.socket, SOL_SOCKET, SO_RCVBUF), 16384);
  set_int(bob.socket, SOL_SOCKET, SO_SNDBUF, 8192);
  EXPECT_EQ(get_int(bob.socket, SOL_SOCKET, SO_SNDBUF), 16384);
  for (const auto& [level, name, value] :
       {std::tuple{SOL_SOCKET, SO_REUSEADDR, 1}, {SOL_SOCKET, SO_BROADCAST, 1}, {IPPROTO_IP, IP_TOS, 8}}) {
    set_int(bob.socket, level, name, value);
    EXPECT_EQ(get_int(bob.socket, level, name), value);
  }
  EXPECT_EQ(get_int(bob.socket, SOL_SOCKET, SO_ERROR), 0);
  int value = 1;
  socklen_t length = sizeof value;
  for (const auto& [level, name] :
       {std::pair<int, int>{IPPROTO_TCP, 1}, {SOL_SOCKET, SO_TYPE}, {IPPROTO_IP, IP_PKTINFO}}) {
    EXPECT_EQ(rsetsockopt(bob.socket, level, name, &value, length), -1);
    EXPECT_EQ(error(), "ENOPROTOOPT");
  }
  EXPECT_EQ(rgetsockopt(bob.socket, IPPROTO_TCP, 1, &value, &length), -1);
  EXPECT_EQ(error(), "ENOPROTOOPT");
}

TEST(DatagramOptions, OfRdmaAreFixedOnceTheQueuePairIsThere) {
  Post alice, bob;
  set_int(bob.socket, SOL_RDMA, RDMA_RQSIZE, 20);
  EXPECT_EQ(get_int(bob.socket, SOL_RDMA, RDMA_RQSIZE), 20);
  introduce(alice, bob);
  const int other = 30;
  EXPECT_EQ(rsetsockopt(bob.socket, SOL_RDMA, RDMA_RQSIZE, &other, sizeof other), -1);
  EXPECT_EQ(error(), "EINVAL");
  EXPECT_EQ(get_int(bob.socket, SOL_RDMA, RDMA_RQSIZE), 20);
}

TEST(DatagramOptions, TheNextDatagramsSizeIsTold) {
  Post alice, bob;
  const auto unread = [&] { return *runtime::fd_table().find(bob.socket)->unread_bytes(); };
  EXPECT_EQ(unread(), 0);
  alice.send("four", bob);
  alice.send("sixsix", bob);
  EXPECT_EQ(unread(), 4);
  EXPECT_EQ(bob.hear(), "four");
  EXPECT_EQ(unread(), 6);
}

TEST(Datagrams, OfADuplicateAreThoseOfTheOriginal) {
  Post alice, bob;
  const Rsocket copy(rfcntl(bob.socket, F_DUPFD_CLOEXEC, 0));
  ASSERT_GE(copy.fd(), 0);
  introduce(alice, bob);
  bob.socket.close();
  alice.send("to the copy", bob);
  EXPECT_EQ(copy.hear(), "to the copy");
}

TEST(Datagrams, ThreadsMayShareASocket) {
  Post alice, bob;
  introduce(alice, bob);
  constexpr int kEach = 500, kThreads = 3;
  std::atomic<int> heard{0};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) {
        alice.send("x", bob);
        if (bob.hear() == "x") ++heard;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(heard, kEach * kThreads);
}

}  // namespace
}  // namespace ringsock::stories
