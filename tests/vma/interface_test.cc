// The interface between the two hosts goes, and comes again under the same name, while sockets use it
// (interface_vma.sh). TWO_HOSTS_PEER: the name of the other host's network namespace.
#include <net/if.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "tests/support/thread_status.h"
#include "tests/vma/shell.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

using std::chrono::steady_clock;

class Interface : public ::testing::Test {
 protected:
  void SetUp() override { peer = std::getenv("TWO_HOSTS_PEER"); }
  void TearDown() override {
    if (::if_nametoindex("eth0") == 0) add();
  }
  static void remove() { sh("ip link delete eth0"); }
  void add() const {
    const std::string there = "ip -n " + peer;
    sh("ip link add eth0 type veth peer name eth0 netns " + peer +
       "; ip address add 10.9.0.1/24 dev eth0; ip address add fd09::1/64 dev eth0 nodad; ip link set eth0 up; " +
       there + " address add 10.9.0.2/24 dev eth0; " + there + " address add fd09::2/64 dev eth0 nodad; " + there +
       " link set eth0 up");
  }
  void set_mtu(int bytes) const {
    const std::string mtu = std::to_string(bytes);
    sh("ip link set eth0 mtu " + mtu + "; ip -n " + peer + " link set eth0 mtu " + mtu);
  }
  /// New entries are asked for again within some seconds; else it is a minute.
  static void age_neighbours_fast() {
    sh("cd /proc/sys/net/ipv4/neigh/eth0; echo 1000 >base_reachable_time_ms; echo 1 >delay_first_probe_time; "
       "echo 200 >retrans_time_ms; ip neighbour flush dev eth0");
  }
  /// Whether the other host answers, within 10 s: an interface that is new needs a moment.
  static bool reaches_peer(const Socket& socket) {
    socket.limit_waits(100);
    for (const auto end = steady_clock::now() + std::chrono::seconds(10); steady_clock::now() < end;) {
      if (socket.send_to(echo, "hello") == 5 && socket.receive() == "hello") return true;
    }
    return false;
  }
  /// What comes behind late answers to reaches_peer().
  static std::string next_but_hello(const Socket& socket) {
    std::string got;
    do {
      got = socket.receive();
      // The commands' ends are signals, which end a receive that has a limit.
    } while (got == "hello" || (got.empty() && errno == EINTR));
    return got;
  }
  /// Whether an answer comes by a ring, within 10 s: the library hears of interfaces by a thread of its own, and what
  /// is under way while it takes one is lost.
  static bool uses_a_ring(const Socket& socket) {
    if (!preloaded()) return true;
    socket.limit_waits(1000);
    const auto end = steady_clock::now() + std::chrono::seconds(10);
    for (int i = 0; steady_clock::now() < end; ++i) {
      const std::string question = std::to_string(i);
      const long before = kernels_datagrams(AF_INET);
      socket.send_to(echo, question);
      std::string answer = socket.receive();
      while (!answer.empty() && answer != question) answer = socket.receive();
      if (answer == question && kernels_datagrams(AF_INET) == before) return true;
    }
    return false;
  }

  static inline const Address echo{"10.9.0.2", kEchoPort};
  std::string peer;
};

TEST_F(Interface, SocketsGoOnByTheKernelAndByTheRingOnceItIsBack) {
  const Socket socket(AF_INET);
  ASSERT_EQ(::bind(socket, Address("0.0.0.0", 0).get(), sizeof(sockaddr_in)), 0);
  ASSERT_TRUE(reaches_peer(socket));
  ASSERT_TRUE(uses_a_ring(socket));
  for (int round = 0; round < 3; ++round) {
    remove();
    // On this host it is reached all the same, and the other one is not.
    EXPECT_EQ(socket.send_to(Address("127.0.0.1", socket.name().port()), "to myself"), 9);
    // An answer that came by the kernel while the others came by the ring may still be queued.
    EXPECT_EQ(next_but_hello(socket), "to myself");
    EXPECT_EQ(socket.send_to(echo, "nobody"), -1);
    EXPECT_EQ(errno, ENETUNREACH);

    add();
    EXPECT_TRUE(reaches_peer(socket));
    EXPECT_TRUE(uses_a_ring(socket)) << "the new interface has none";
  }
}

TEST_F(Interface, WhoSleepsIsWokenByWhatComesByTheKernelAfterwards) {
  const Socket socket(AF_INET), other(AF_INET);
  ASSERT_EQ(::bind(socket, Address("0.0.0.0", 0).get(), sizeof(sockaddr_in)), 0);
  ASSERT_TRUE(reaches_peer(socket));
  socket.limit_waits(20'000);
  std::promise<pid_t> receiver;
  auto received = std::async(std::launch::async, [&] {
    receiver.set_value(::gettid());
    return next_but_hello(socket);
  });
  remove();
  EXPECT_TRUE(support::falls_asleep(receiver.get_future().get())) << "he still waits: that is no error of his socket";
  EXPECT_EQ(other.send_to(Address("127.0.0.1", socket.name().port()), "wake up"), 7);
  EXPECT_EQ(received.get(), "wake up");
}

TEST_F(Interface, WhoSleepsIsWokenByWhatComesByTheNewOne) {
  const Socket socket(AF_INET), other(AF_INET);
  ASSERT_EQ(::bind(socket, Address("0.0.0.0", 0).get(), sizeof(sockaddr_in)), 0);
  ASSERT_TRUE(reaches_peer(socket));
  socket.limit_waits(20'000);
  auto received = std::async(std::launch::async, [&] { return next_but_hello(socket); });
  remove();
  add();
  ASSERT_TRUE(reaches_peer(other));
  other.send_to(echo, "to 10.9.0.1 " + std::to_string(socket.name().port()) + " wake up");
  EXPECT_EQ(received.get(), "wake up");
}

TEST_F(Interface, ALinkThatIsDownAWhileChangesNothing) {
  const Socket socket(AF_INET);
  ASSERT_EQ(::bind(socket, Address("0.0.0.0", 0).get(), sizeof(sockaddr_in)), 0);
  ASSERT_TRUE(reaches_peer(socket));
  sh("ip link set eth0 down");
  EXPECT_EQ(socket.send_to(echo, "nobody"), -1);
  sh("ip link set eth0 up; ip address replace fd09::1/64 dev eth0 nodad");
  EXPECT_TRUE(reaches_peer(socket));
  EXPECT_TRUE(uses_a_ring(socket));
}

TEST_F(Interface, LargeDatagramsComeOnceTheMtuHasGrown) {
  const Socket socket(AF_INET);
  ASSERT_EQ(::bind(socket, Address("0.0.0.0", 0).get(), sizeof(sockaddr_in)), 0);
  ASSERT_TRUE(reaches_peer(socket));
  ASSERT_TRUE(uses_a_ring(socket));
  const auto echoes = [&](std::size_t bytes) {
    const std::string question(bytes, static_cast<char>('a' + bytes % 26));
    EXPECT_EQ(socket.send_to(echo, question), static_cast<ssize_t>(bytes));
    // A call that waits for readiness has the datagram put into a buffer first.
    pollfd one{socket, POLLIN, 0};
    EXPECT_EQ(::poll(&one, 1, 5000), 1) << bytes;
    return socket.receive(nullptr, MSG_DONTWAIT) == question;
  };
  for (const int mtu : {9000, 60'000, 4000, 1500}) {
    set_mtu(mtu);
    ASSERT_TRUE(uses_a_ring(socket)) << mtu;
    for (const int bytes : {100, mtu / 2, mtu - 28, mtu / 2}) {
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(echoes(static_cast<std::size_t>(bytes))) << bytes << " of " << mtu;
    }
    const long before = kernels_datagrams(AF_INET);
    EXPECT_TRUE(echoes(static_cast<std::size_t>(mtu - 28)));
    EXPECT_TRUE(!preloaded() || kernels_datagrams(AF_INET) == before) << mtu;
  }
}

// The kernel notices when its entry has aged and nobody answers; then it asks again.
TEST_F(Interface, APeerWithAnotherMacAddressIsReachedAgain) {
  age_neighbours_fast();
  const Socket socket(AF_INET);
  ASSERT_EQ(::bind(socket, Address("0.0.0.0", 0).get(), sizeof(sockaddr_in)), 0);
  ASSERT_TRUE(reaches_peer(socket));
  ASSERT_TRUE(uses_a_ring(socket));
  sh("ip -n " + peer + " link set eth0 address 02:00:00:00:00:51");
  EXPECT_TRUE(reaches_peer(socket));
  EXPECT_TRUE(uses_a_ring(socket));
  sh("ip link set eth0 address 02:00:00:00:00:52");
  EXPECT_TRUE(reaches_peer(socket));
  EXPECT_TRUE(uses_a_ring(socket));
}

TEST_F(Interface, APeerWithAnotherMacAddressIsReachedAgainByWhoHasNoPrivilegesLeft) {
  age_neighbours_fast();
  const Socket socket(AF_INET);
  ASSERT_EQ(::bind(socket, Address("0.0.0.0", 0).get(), sizeof(sockaddr_in)), 0);
  ASSERT_TRUE(reaches_peer(socket));
  ASSERT_TRUE(uses_a_ring(socket));
  sh("ip -n " + peer + " link set eth0 address 02:00:00:00:00:53");
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(::seteuid(kNobody), 0);
  EXPECT_TRUE(reaches_peer(socket));
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_TRUE(uses_a_ring(socket));
}

/// How many packets the kernel has dropped because they were for an address that is not this host's.
long for_others() {
  std::ifstream file("/proc/net/snmp");
  std::string line;
  std::getline(file, line);
  std::getline(file, line);  // "Ip: Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors"
  std::istringstream words(line);
  std::string name;
  long value = 0;
  words >> name;
  for (int i = 0; i < 5; ++i) words >> value;
  return value;
}

TEST_F(Interface, AnAddressThatIsDeletedReceivesNothingUntilItIsBack) {
  // The other host keeps the MAC address: what it sends still comes to the interface.
  sh("ip address replace 10.9.0.3/24 dev eth0; mac=$(cat /sys/class/net/eth0/address); ip -n " + peer +
     " neighbour replace 10.9.0.3 lladdr $mac dev eth0");
  const Socket named(AF_INET), unnamed(AF_INET), other(AF_INET);
  ASSERT_EQ(::bind(named, Address("10.9.0.3", 0).get(), sizeof(sockaddr_in)), 0);
  ASSERT_EQ(::bind(unnamed, Address("0.0.0.0", 0).get(), sizeof(sockaddr_in)), 0);
  ASSERT_TRUE(reaches_peer(other));
  other.limit_waits();
  // Datagrams that were sent while the way changed, or from another CPU, may be received behind later ones, so those
  // that are not waited for are passed over. But the one that nobody should have is never among them.
  const std::string nobodys = "to nobody";
  const auto receives = [&](const Socket& socket, const std::string& text, int flags) {
    std::string got;
    do {
      got = socket.receive(nullptr, flags);
      EXPECT_NE(got, nobodys);
      // The commands' ends are signals, which end a receive that has a limit.
    } while (got.empty() ? errno == EINTR : got != text);
    return got == text;
  };
  // Sent when this returns.
  const auto send_to = [&](const Socket& socket, const std::string& text) {
    const std::string order = "to 10.9.0.3 " + std::to_string(socket.name().port()) + " " + text;
    ASSERT_GT(other.send_to(echo, order), 0);
    ASSERT_GT(other.send_to(echo, "sent?"), 0);
    ASSERT_TRUE(receives(other, "sent?", 0)) << std::strerror(errno);
  };
  // Sends until the kernel has dropped one of them.
  const auto is_refused = [&](const Socket& socket, const std::string& text) {
    const long before = for_others();
    const auto end = steady_clock::now() + std::chrono::seconds(10);
    while (for_others() == before && steady_clock::now() < end) send_to(socket, text);
    return for_others() > before;
  };
  for (int round = 0; round < 3; ++round) {
    for (const Socket* const socket : {&named, &unnamed}) {
      const std::string number = std::to_string(round);
      socket->limit_waits();
      for (int i = 0; i < 1000 && !receives(*socket, "before " + number, MSG_DONTWAIT); ++i)
        send_to(*socket, "before " + number);
      send_to(*socket, "still " + number);
      EXPECT_TRUE(receives(*socket, "still " + number, 0)) << std::strerror(errno);
    }
    sh("ip address del 10.9.0.3/24 dev eth0");
    // The program receives nothing meanwhile: nobody but the library hears of it.
    for (const Socket* const socket : {&named, &unnamed})
      EXPECT_TRUE(is_refused(*socket, "on the way")) << "the kernel sees nothing";
    for (const Socket* const socket : {&named, &unnamed}) {
      EXPECT_TRUE(is_refused(*socket, nobodys));
      for (const std::string& text : all_of(*socket)) EXPECT_NE(text, nobodys);
    }
    sh("ip address add 10.9.0.3/24 dev eth0");
  }
}

// What is under way is lost, whoever waits for whom.
TEST_F(Interface, GoesDownAndAwayUnderSendersThatGoOn) {
  const Socket socket(AF_INET);
  ASSERT_EQ(::bind(socket, Address("0.0.0.0", 0).get(), sizeof(sockaddr_in)), 0);
  ASSERT_TRUE(reaches_peer(socket));
  std::atomic<bool> done{false};
  std::vector<std::thread> senders;
  for (int i = 0; i < 2; ++i) {
    senders.emplace_back([&] {
      const Socket own(AF_INET);
      const Address nobody("10.9.0.2", 9);
      while (!done) own.send_to(nobody, "burst");
    });
  }
  for (int round = 0; round < 3; ++round) {
    sh("ip link set eth0 down");
    sh("ip link set eth0 up; ip address replace fd09::1/64 dev eth0 nodad");
    EXPECT_TRUE(reaches_peer(socket));
    remove();
    add();
    EXPECT_TRUE(reaches_peer(socket));
  }
  done = true;
  for (std::thread& one : senders) one.join();
  EXPECT_TRUE(reaches_peer(socket));
}

}  // namespace
}  // namespace ringsock::vma_tests
