// Binding, listening, connecting, names, options, and what wrong calls get.
#include <fcntl.h>
#include <infiniband/ib.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"
#include "tests/stories/rsocket_pair.h"

namespace ringsock::stories {
namespace {

/// Expects `call` to fail with `code`.
#define EXPECT_ERRNO(call, code)                      \
  do {                                                \
    errno = 0;                                        \
    EXPECT_EQ(static_cast<long>(call), -1L) << #call; \
    EXPECT_EQ(errno, code) << #call;                  \
  } while (false)

rlimit limit_before{};

/// No descriptor can be opened any more.
void set_limit_to_what_is_open() {
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit_before), 0);
  const int next = ::dup(0);
  ::close(next);
  const rlimit none{static_cast<rlim_t>(next), limit_before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
}
void restore_limit() { setrlimit(RLIMIT_NOFILE, &limit_before); }

TEST(RsocketSetup, NamesAreThoseOfBothEnds) {
  Listener listener;
  Rsocket client = connect_to(listener);
  Address peer;
  Rsocket server(raccept(listener.socket, peer.get(), &peer.length));
  ASSERT_GE(server.fd(), 0);
  EXPECT_EQ(peer_name(client).port(), listener.name.port());
  EXPECT_EQ(peer_name(client).host(), "127.0.0.1");
  EXPECT_EQ(local_name(server).port(), listener.name.port());
  EXPECT_EQ(peer.host(), "127.0.0.1");
  EXPECT_NE(peer.port(), 0);
  EXPECT_EQ(peer.port(), local_name(client).port());
  EXPECT_EQ(peer.port(), peer_name(server).port());
}

TEST(RsocketSetup, WorksOverIpv6) {
  Pair pair{Listener("::1")};
  EXPECT_EQ(peer_name(pair.alice).host(), "::1");
  pair.alice.say("six");
  EXPECT_EQ(pair.bob.hear(), "six");
}

TEST(RsocketSetup, AWildcardListenerIsReachedByEveryAddress) {
  Listener listener("0.0.0.0");
  for (const char* host : {"127.0.0.1", "127.0.0.2", "0.0.0.0"}) {
    Address to = address_of(host, listener.name.port());
    Rsocket client(rsocket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(rconnect(client, to.get(), to.length), 0) << host << " " << strerror(errno);
    Rsocket server = listener.accept();
    client.say("x");
    EXPECT_EQ(server.hear(), "x");
  }
}

/// Clients that do not block, more than a small backlog holds; when all have begun the server accepts them one by one.
/// @param wait  until one of those that are not connected is: its index, or -1
template <class Wait>
void connect_many_to_a_small_backlog(Wait wait) {
  constexpr std::size_t kClients = 12;
  Listener listener("127.0.0.1", 1);
  Address to = listener.name;
  std::vector<Rsocket> clients;
  for (std::size_t i = 0; i < kClients; ++i) {
    clients.emplace_back(rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    if (rconnect(clients.back(), to.get(), to.length) != 0) {
      ASSERT_EQ(errno, EINPROGRESS);
    }
  }
  std::vector<Rsocket> accepted;
  std::thread server([&] {
    while (accepted.size() < kClients) accepted.emplace_back(raccept(listener.socket, nullptr, nullptr));
  });
  std::size_t connected = 0;
  for (; connected < kClients; ++connected) {
    if (!wait(clients)) break;
  }
  EXPECT_EQ(connected, kClients);
  if (connected < kClients) rshutdown(listener.socket, SHUT_RD);
  server.join();
}

TEST(RsocketSetup, PollTellsOfEachClientOfASmallBacklog) {
  connect_many_to_a_small_backlog([waiting = std::vector<pollfd>()](std::vector<Rsocket>& clients) mutable {
    if (waiting.empty()) {
      for (const Rsocket& client : clients) waiting.push_back({client, POLLOUT, 0});
    }
    if (rpoll(waiting.data(), static_cast<nfds_t>(waiting.size()), 30'000) < 1) return false;
    const auto ready = std::find_if(waiting.begin(), waiting.end(), [](const pollfd& it) { return it.revents != 0; });
    const bool is_connected = ready->revents == POLLOUT;
    waiting.erase(ready);
    return is_connected;
  });
}

TEST(RsocketSetup, EpollTellsOfEachClientOfASmallBacklog) {
  connect_many_to_a_small_backlog([set = -1](std::vector<Rsocket>& clients) mutable {
    epoll_event event{};
    event.events = EPOLLOUT | EPOLLONESHOT;
    if (set < 0) {
      set = repoll_create(0);
      for (const Rsocket& client : clients) EXPECT_EQ(repoll_ctl(set, EPOLL_CTL_ADD, client, &event), 0);
    }
    return repoll_wait(set, &event, 1, 30'000) == 1 && (event.events & EPOLLERR) == 0;
  });
}

TEST(RsocketSetup, ADualStackListenerSeesIpv4ClientsAsMapped) {
  Listener listener("::");
  Address to = address_of("127.0.0.1", listener.name.port());
  Rsocket client(rsocket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(rconnect(client, to.get(), to.length), 0) << strerror(errno);
  Address peer;
  Rsocket server(raccept(listener.socket, peer.get(), &peer.length));
  EXPECT_EQ(peer.host(), "::ffff:127.0.0.1");
  EXPECT_EQ(local_name(server).host(), "::ffff:127.0.0.1");
}

TEST(RsocketSetup, AV6OnlyListenerIsNotThereForIpv4) {
  // Keeps listeners of other programs away from the port, and does not listen.
  const UniqueFd keeper(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Address to = address_of("127.0.0.1");
  ASSERT_EQ(::bind(keeper.get(), to.get(), to.length), 0);
  ASSERT_EQ(::getsockname(keeper.get(), to.get(), &to.length), 0);
  Rsocket listener(rsocket(AF_INET6, SOCK_STREAM, 0));
  set_int(listener, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  Address any = address_of("::", to.port());
  ASSERT_EQ(rbind(listener, any.get(), any.length), 0) << strerror(errno);
  ASSERT_EQ(rlisten(listener, 4), 0);
  Rsocket client(rsocket(AF_INET, SOCK_STREAM, 0));
  EXPECT_ERRNO(rconnect(client, to.get(), to.length), ECONNREFUSED);
}

TEST(RsocketSetup, AnIpv6SocketConnectsToAMappedAddress) {
  Listener listener("127.0.0.1");
  Address to = address_of("::ffff:127.0.0.1", listener.name.port());
  Rsocket client(rsocket(AF_INET6, SOCK_STREAM, 0));
  ASSERT_EQ(rconnect(client, to.get(), to.length), 0) << strerror(errno);
  EXPECT_EQ(peer_name(client).host(), "::ffff:127.0.0.1");
  Rsocket server = listener.accept();
  client.say("mapped");
  EXPECT_EQ(server.hear(), "mapped");
}

TEST(RsocketSetup, NobodyThereIsConnectionRefused) {
  Address to;
  { to = Listener().name; }  // a port that was free a moment ago
  Rsocket client(rsocket(AF_INET, SOCK_STREAM, 0));
  EXPECT_ERRNO(rconnect(client, to.get(), to.length), ECONNREFUSED);
}

TEST(RsocketSetup, ARefusedSocketMayTryAgain) {
  Listener listener;
  Address nowhere;
  { nowhere = Listener().name; }
  Rsocket client(rsocket(AF_INET, SOCK_STREAM, 0));
  EXPECT_ERRNO(rconnect(client, nowhere.get(), nowhere.length), ECONNREFUSED);
  ASSERT_EQ(rconnect(client, listener.name.get(), listener.name.length), 0) << strerror(errno);
  listener.accept();
}

TEST(RsocketSetup, NonblockingConnectGoesThroughPollAndSoError) {
  Listener listener;
  Rsocket client(rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  // The listener's own thread may be quicker than the return.
  const bool is_connected = rconnect(client, listener.name.get(), listener.name.length) == 0;
  EXPECT_TRUE(is_connected || errno == EINPROGRESS);
  pollfd writable{client, POLLOUT, 0};
  ASSERT_EQ(rpoll(&writable, 1, 5000), 1);
  EXPECT_EQ(writable.revents, POLLOUT);
  EXPECT_EQ(get_int(client, SOL_SOCKET, SO_ERROR), 0);
  if (!is_connected) {
    EXPECT_EQ(rconnect(client, listener.name.get(), listener.name.length), 0);
  }
  EXPECT_ERRNO(rconnect(client, listener.name.get(), listener.name.length), EISCONN);
  Rsocket server = listener.accept();
  server.say("x");
  EXPECT_EQ(client.hear(1, MSG_WAITALL) == "x" || errno == EAGAIN, true);
}

TEST(RsocketSetup, AFailedNonblockingConnectIsToldBySoErrorOnce) {
  Address nowhere;
  { nowhere = Listener().name; }
  Rsocket client(rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  const int first = rconnect(client, nowhere.get(), nowhere.length);
  ASSERT_EQ(first, -1);
  if (errno == EINPROGRESS) {
    pollfd any{client, POLLOUT, 0};
    ASSERT_EQ(rpoll(&any, 1, 5000), 1);
    EXPECT_TRUE(any.revents & POLLERR);
    EXPECT_EQ(get_int(client, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
  } else {
    EXPECT_EQ(errno, ECONNREFUSED);
  }
  EXPECT_EQ(get_int(client, SOL_SOCKET, SO_ERROR), 0);
}

TEST(RsocketSetup, ConnectSucceedsWithoutAnAcceptAndTheDataWaits) {
  Listener listener;
  Rsocket client = connect_to(listener);  // nobody has called raccept() yet
  client.say("early");
  Rsocket server = listener.accept();
  EXPECT_EQ(server.hear(), "early");
}

TEST(RsocketSetup, ConnectSucceedsWithoutAnAcceptBehindClientsThatWereAcceptedAtOnce) {
  Listener listener;
  std::thread busy_server([&] {
    for (int i = 0; i < 200; ++i) EXPECT_EQ(listener.accept().hear(), "");
  });
  for (int i = 0; i < 200; ++i) connect_to(listener);
  busy_server.join();
  Rsocket client = connect_to(listener);
  client.say("behind");
  EXPECT_EQ(listener.accept().hear(), "behind");
}

TEST(RsocketSetup, TheBacklogHoldsThoseWhoWait) {
  Listener listener("127.0.0.1", 8);
  std::vector<Rsocket> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(connect_to(listener));
    clients.back().say(std::to_string(i));
  }
  for (int i = 0; i < 8; ++i) {
    Rsocket server = listener.accept();
    EXPECT_EQ(server.hear(), std::to_string(i));
  }
}

TEST(RsocketSetup, AcceptIsPollableAndNonblocking) {
  Listener listener;
  ASSERT_EQ(rfcntl(listener.socket, F_SETFL, O_NONBLOCK), 0);
  EXPECT_ERRNO(raccept(listener.socket, nullptr, nullptr), EAGAIN);
  pollfd readable{listener.socket, POLLIN, 0};
  EXPECT_EQ(rpoll(&readable, 1, 0), 0);
  std::thread connector([&] { Rsocket client = connect_to(listener); });
  ASSERT_EQ(rpoll(&readable, 1, 5000), 1);
  EXPECT_EQ(readable.revents, POLLIN);
  Rsocket server = listener.accept();
  connector.join();
  // As on Linux, the new socket does not inherit O_NONBLOCK.
  EXPECT_EQ(rfcntl(server, F_GETFL) & O_NONBLOCK, 0);
}

TEST(RsocketSetup, TwoListenersCannotHaveOnePort) {
  Listener listener;
  Rsocket second(rsocket(AF_INET, SOCK_STREAM, 0));
  EXPECT_ERRNO(rbind(second, listener.name.get(), listener.name.length), EADDRINUSE);
}

TEST(RsocketSetup, APortIsFreeAgainAfterItsListener) {
  Address name;
  { name = Listener().name; }
  Rsocket again(rsocket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(rbind(again, name.get(), name.length), 0) << strerror(errno);
}

TEST(RsocketSetup, APortOnTheDeviceIsReservedInTheKernel) {
  Listener listener;
  const int kernel = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_ERRNO(::bind(kernel, listener.name.get(), listener.name.length), EADDRINUSE);
  ::close(kernel);
}

TEST(RsocketSetup, BindRefusesAnAddressThatIsNotOurs) {
  Rsocket socket(rsocket(AF_INET, SOCK_STREAM, 0));
  Address far = address_of("192.0.2.1", 5000);
  errno = 0;
  EXPECT_EQ(rbind(socket, far.get(), far.length), -1);
  EXPECT_TRUE(errno == EADDRNOTAVAIL || errno == ENODEV) << strerror(errno);
}

TEST(RsocketSetup, ManyConnectionsComeAndGo) {
  Listener listener("127.0.0.1", 128);
  std::thread server([&] {
    for (int i = 0; i < 500; ++i) {
      Rsocket connection = listener.accept();
      EXPECT_EQ(connection.hear(1), "?");
      connection.say("!");
      EXPECT_EQ(connection.hear(1), "");
    }
  });
  for (int i = 0; i < 500; ++i) {
    Rsocket client = connect_to(listener);
    client.say("?");
    EXPECT_EQ(client.hear(1), "!");
  }
  server.join();
}

// -- wrong calls

TEST(RsocketErrors, UnknownDescriptorsAreEbadfAndForeignOnesEnotsock) {
  char byte = 0;
  for (const int fd : {-1, 5000, 70000, 1 << 30}) {
    EXPECT_ERRNO(rrecv(fd, &byte, 1, 0), EBADF);
    EXPECT_ERRNO(rsend(fd, &byte, 1, 0), EBADF);
    EXPECT_ERRNO(rlisten(fd, 1), EBADF);
    EXPECT_ERRNO(rclose(fd), EBADF);
    EXPECT_ERRNO(rshutdown(fd, SHUT_RDWR), EBADF);
    EXPECT_ERRNO(riowrite(fd, &byte, 1, 0, 0), EBADF);
  }
  const int file = ::open("/dev/null", O_RDWR);
  EXPECT_ERRNO(rrecv(file, &byte, 1, 0), ENOTSOCK);
  ::close(file);
}

TEST(RsocketErrors, UnconnectedSockets) {
  Rsocket socket(rsocket(AF_INET, SOCK_STREAM, 0));
  char byte = 0;
  Address address;
  EXPECT_ERRNO(rrecv(socket, &byte, 1, 0), ENOTCONN);
  EXPECT_ERRNO(rsend(socket, &byte, 1, MSG_NOSIGNAL), EPIPE);
  EXPECT_ERRNO(rshutdown(socket, SHUT_WR), ENOTCONN);
  EXPECT_ERRNO(rgetpeername(socket, address.get(), &address.length), ENOTCONN);
  EXPECT_ERRNO(raccept(socket, nullptr, nullptr), EINVAL);
  EXPECT_ERRNO(riomap(socket, &byte, 1, PROT_WRITE, 0, -1), EINVAL);
  EXPECT_EQ(local_name(socket).port(), 0);
}

TEST(RsocketErrors, InfiniBandAddressesAreForRealDevicesOnly) {
  Rsocket socket(rsocket(AF_IB, SOCK_STREAM, 0));
  ASSERT_GE(socket, 0);
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  ASSERT_EQ(rgetsockname(socket, reinterpret_cast<sockaddr*>(&name), &length), 0);
  EXPECT_EQ(name.ss_family, AF_IB);
  Address four = address_of("127.0.0.1", 1);
  EXPECT_ERRNO(rconnect(socket, four.get(), four.length), EAFNOSUPPORT);
  sockaddr_ib ib{};
  ib.sib_family = AF_IB;
  EXPECT_ERRNO(rconnect(socket, reinterpret_cast<sockaddr*>(&ib), sizeof ib - 1), EINVAL);
  EXPECT_ERRNO(rconnect(socket, reinterpret_cast<sockaddr*>(&ib), sizeof ib), ENODEV);
}

TEST(RsocketErrors, CreationAndAddresses) {
  EXPECT_ERRNO(rsocket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
  EXPECT_ERRNO(rsocket(AF_INET, SOCK_SEQPACKET, 0), ESOCKTNOSUPPORT);
  EXPECT_ERRNO(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
  Rsocket socket(rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP));
  Address four = address_of("127.0.0.1", 1);
  Address six = address_of("::1", 1);
  EXPECT_ERRNO(rconnect(socket, four.get(), 3), EINVAL);
  EXPECT_ERRNO(rconnect(socket, six.get(), six.length), EAFNOSUPPORT);
  EXPECT_ERRNO(rbind(socket, nullptr, 0), EINVAL);
  Pair pair;
  EXPECT_ERRNO(rconnect(pair.alice, four.get(), four.length), EISCONN);
  EXPECT_ERRNO(rsendto(pair.alice, "x", 1, 0, four.get(), four.length), EISCONN);
  EXPECT_ERRNO(rshutdown(pair.alice, 17), EINVAL);
  EXPECT_ERRNO(rfcntl(pair.alice, 12345, 0), EINVAL);
  EXPECT_ERRNO(rreadv(pair.alice, nullptr, -1), EINVAL);
}

TEST(RsocketErrors, AFullDescriptorTableIsToldAndTheClientWaits) {
  Listener listener;
  set_limit_to_what_is_open();
  const pid_t child = fork();
  if (child == 0) {
    // Another process, with room of its own.
    restore_limit();
    Rsocket client(rsocket(AF_INET, SOCK_STREAM, 0));
    if (rconnect(client, listener.name.get(), listener.name.length) != 0) _exit(1);
    _exit(rsend(client, "kept", 4, 0) == 4 && client.hear() == "bye" ? 0 : 2);
  }
  ASSERT_GT(child, 0);
  EXPECT_ERRNO(raccept(listener.socket, nullptr, nullptr), EMFILE);
  restore_limit();
  Rsocket server = listener.accept();
  EXPECT_EQ(server.hear(), "kept");
  server.say("bye");
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// -- options

TEST(RsocketOptions, HaveLinuxDefaultsAndTakeLinuxValues) {
  Rsocket socket(rsocket(AF_INET, SOCK_STREAM, 0));
  const int kernel = ::socket(AF_INET, SOCK_STREAM, 0);
  struct Option {
    int level, name, value;
  };
  for (const Option& o : {Option{SOL_SOCKET, SO_REUSEADDR, 1},
                          {SOL_SOCKET, SO_KEEPALIVE, 7},
                          {SOL_SOCKET, SO_OOBINLINE, 1},
                          {SOL_SOCKET, SO_BROADCAST, 1},
                          {SOL_SOCKET, SO_PRIORITY, 3},
                          {IPPROTO_IP, IP_TOS, 0x10},
                          {IPPROTO_IP, IP_TTL, 9},
                          {IPPROTO_TCP, TCP_NODELAY, 1},
                          {IPPROTO_TCP, TCP_KEEPIDLE, 5},
                          {IPPROTO_TCP, TCP_KEEPINTVL, 6},
                          {IPPROTO_TCP, TCP_KEEPCNT, 7},
                          {IPPROTO_TCP, TCP_CORK, 1},
                          {IPPROTO_TCP, TCP_USER_TIMEOUT, 3000},
                          {IPPROTO_TCP, TCP_SYNCNT, 3}}) {
    int theirs = -1;
    socklen_t length = sizeof theirs;
    ASSERT_EQ(::getsockopt(kernel, o.level, o.name, &theirs, &length), 0);
    EXPECT_EQ(get_int(socket, o.level, o.name), theirs) << o.level << "/" << o.name;
    set_int(socket, o.level, o.name, o.value);
    ASSERT_EQ(::setsockopt(kernel, o.level, o.name, &o.value, sizeof o.value), 0);
    length = sizeof theirs;
    ASSERT_EQ(::getsockopt(kernel, o.level, o.name, &theirs, &length), 0);
    EXPECT_EQ(get_int(socket, o.level, o.name), theirs) << o.level << "/" << o.name;
  }
  ::close(kernel);
}

TEST(RsocketOptions, TellWhatTheSocketIs) {
  Listener listener("::1");
  EXPECT_EQ(get_int(listener.socket, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
  EXPECT_EQ(get_int(listener.socket, SOL_SOCKET, SO_DOMAIN), AF_INET6);
  EXPECT_EQ(get_int(listener.socket, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
  EXPECT_EQ(get_int(listener.socket, SOL_SOCKET, SO_ACCEPTCONN), 1);
  tcp_info info{};
  socklen_t length = sizeof info;
  ASSERT_EQ(rgetsockopt(listener.socket, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  EXPECT_EQ(info.tcpi_state, TCP_LISTEN);
  Pair pair;
  length = sizeof info;
  ASSERT_EQ(rgetsockopt(pair.alice, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  EXPECT_EQ(info.tcpi_state, TCP_ESTABLISHED);
  // Programs that know a newer kernel's structure read what libc's has not.
  std::array<unsigned char, 240> newer;
  newer.fill(0xff);
  length = newer.size();
  ASSERT_EQ(rgetsockopt(pair.alice, IPPROTO_TCP, TCP_INFO, newer.data(), &length), 0);
  EXPECT_EQ(length, newer.size());
  EXPECT_EQ(newer.back(), 0);
  char name[16];
  length = sizeof name;
  ASSERT_EQ(rgetsockopt(pair.alice, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  EXPECT_STREQ(name, "rdma");
}

TEST(RsocketOptions, RefuseWhatLinuxRefuses) {
  Rsocket socket(rsocket(AF_INET, SOCK_STREAM, 0));
  const int one = 1, zero = 0;
  const timeval odd{0, 2000000};
  EXPECT_ERRNO(rsetsockopt(socket, SOL_SOCKET, 9999, &one, sizeof one), ENOPROTOOPT);
  EXPECT_ERRNO(rsetsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &one, 1), EINVAL);
  EXPECT_ERRNO(rsetsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, nullptr, 4), EFAULT);
  EXPECT_ERRNO(rsetsockopt(socket, SOL_SOCKET, SO_ERROR, &one, sizeof one), ENOPROTOOPT);
  EXPECT_ERRNO(rsetsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &odd, sizeof odd), EDOM);
  EXPECT_ERRNO(rsetsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &zero, sizeof zero), EINVAL);
  int value = 0;
  socklen_t length = sizeof value;
  EXPECT_ERRNO(rgetsockopt(socket, 77, 1, &value, &length), ENOPROTOOPT);
}

TEST(RsocketOptions, RdmaSizesAreTakenBeforeTheConnectionAndInherited) {
  Rsocket listener(rsocket(AF_INET, SOCK_STREAM, 0));
  set_int(listener, SOL_RDMA, RDMA_RQSIZE, 16);
  set_int(listener, SOL_RDMA, RDMA_SQSIZE, 20);
  set_int(listener, SOL_RDMA, RDMA_IOMAPSIZE, 300);
  set_int(listener, SOL_SOCKET, SO_RCVBUF, 8192);
  EXPECT_EQ(get_int(listener, SOL_RDMA, RDMA_IOMAPSIZE), 256);
  EXPECT_EQ(get_int(listener, SOL_SOCKET, SO_RCVBUF), 16384);
  Address any = address_of("127.0.0.1");
  ASSERT_EQ(rbind(listener, any.get(), any.length), 0);
  ASSERT_EQ(rlisten(listener, 4), 0);
  Address name = local_name(listener);
  Rsocket client(rsocket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(rconnect(client, name.get(), name.length), 0);
  Rsocket server(raccept(listener, nullptr, nullptr));
  EXPECT_EQ(get_int(server, SOL_RDMA, RDMA_RQSIZE), 16);
  EXPECT_EQ(get_int(server, SOL_RDMA, RDMA_SQSIZE), 20);
  EXPECT_EQ(get_int(server, SOL_RDMA, RDMA_IOMAPSIZE), 256);
  const int queue = 100;
  EXPECT_ERRNO(rsetsockopt(server, SOL_RDMA, RDMA_RQSIZE, &queue, sizeof queue), EINVAL);
  // Small queues and rings carry long streams all the same.
  const std::string text(100000, 'q');
  std::thread writer([&] { client.say(text); });
  EXPECT_EQ(server.hear(text.size(), MSG_WAITALL), text);
  writer.join();
}

TEST(RsocketOptions, FcntlKeepsFlagsAndDuplicates) {
  Pair pair;
  EXPECT_EQ(rfcntl(pair.alice, F_GETFL), O_RDWR);
  ASSERT_EQ(rfcntl(pair.alice, F_SETFL, O_RDWR | O_NONBLOCK), 0);
  EXPECT_EQ(rfcntl(pair.alice, F_GETFL), O_RDWR | O_NONBLOCK);
  ASSERT_EQ(rfcntl(pair.alice, F_SETFD, FD_CLOEXEC), 0);
  EXPECT_EQ(rfcntl(pair.alice, F_GETFD), FD_CLOEXEC);
  Rsocket copy(rfcntl(pair.alice, F_DUPFD_CLOEXEC, 100));
  ASSERT_GE(copy.fd(), 100);
  pair.alice.close();  // the connection lives on in its copy
  copy.say("copy");
  EXPECT_EQ(pair.bob.hear(), "copy");
  copy.close();
  EXPECT_EQ(pair.bob.hear(), "");
}

}  // namespace
}  // namespace ringsock::stories
