// What arrives while the program receives nothing.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <thread>

#include "tests/vma/far_socket.h"
#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

class Arrivals : public Udp {
 protected:
  Arrivals() : far_(GetParam().there) {}
  void SetUp() override {
    if (std::getenv("TWO_HOSTS_PEER") == nullptr) GTEST_SKIP() << "needs two hosts";
    bind_anywhere(socket_);
    get_acquainted(socket_);
  }
  FarSocket far_;
};

INSTANTIATE_TEST_SUITE_P(Over, Arrivals, both_versions(), name_of_version);

TEST_P(Arrivals, OfManySocketsWaitAsManyAsOfOne) {
  if (std::getenv("VMA_XDP") != nullptr) GTEST_SKIP() << "such rings hold fewer: it depends on when they are emptied";
  constexpr std::size_t kSockets = 400, kOfEach = 8;
  const Address here(GetParam().here, 0);
  std::vector<Socket> sockets;
  for (std::size_t i = 0; i < kSockets; ++i) {
    sockets.emplace_back(GetParam().family);
    ASSERT_EQ(::bind(sockets.back(), here.get(), here.length()), 0) << std::strerror(errno);
  }
  for (std::size_t round = 0; round < kOfEach; ++round) {
    for (const Socket& socket : sockets) ASSERT_EQ(far_.send(socket.name(), std::to_string(round)), 1);
  }
  for (const Socket& socket : sockets) {
    for (std::size_t round = 0; round < kOfEach; ++round)
      ASSERT_EQ(socket.receive(nullptr, MSG_DONTWAIT), std::to_string(round)) << std::strerror(errno);
  }
}

/// As long as it lives there are no descriptors left.
class FullTable {
 public:
  FullTable() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{100, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (int fd; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) fds_.push_back(fd);
  }
  FullTable(const FullTable&) = delete;
  FullTable& operator=(const FullTable&) = delete;
  ~FullTable() {
    for (const int fd : fds_) ::close(fd);
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<int> fds_;
};

TEST_P(Arrivals, WakeSleepersThoughThereAreNoDescriptorsLeft) {
  const Address here(GetParam().here, 0);
  const Socket ours(GetParam().family);
  ours.limit_waits();
  ASSERT_EQ(::bind(ours, here.get(), here.length()), 0);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {}};
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, ours, &event), 0);
  const FullTable full;
  const auto after_a_while = [&](auto wait) {
    std::thread sender([&] {
      // Longer than a call spins. Nobody can see the sleeper, because a look into /proc takes a descriptor; and it does
      // not sleep long, because without a descriptor for a bell it looks again every 10 ms.
      ::usleep(300'000);
      EXPECT_EQ(far_.send(ours.name(), "wake"), 4);
    });
    EXPECT_EQ(wait(), 1);
    sender.join();
    EXPECT_EQ(ours.receive(nullptr, MSG_DONTWAIT), "wake");
  };
  after_a_while([&] { return ::epoll_wait(set, &event, 1, 5000); });
  pollfd waiting{ours, POLLIN, 0};
  after_a_while([&] { return ::poll(&waiting, 1, 5000); });
  ::close(set);
}

TEST_P(Arrivals, AreFoundBehindWhatCameForOthers) {
  const Address here(GetParam().here, 0);
  const Socket other(GetParam().family), ours(GetParam().family);
  for (const Socket* one : {&other, &ours}) ASSERT_EQ(::bind(*one, here.get(), here.length()), 0);
  const auto come = [&] {
    for (int i = 0; i < 100; ++i) ASSERT_EQ(far_.send(other.name(), "other"), 5);
    ASSERT_EQ(far_.send(ours.name(), "ours"), 4);
  };
  come();
  EXPECT_EQ(ours.receive(nullptr, MSG_DONTWAIT), "ours");
  come();
  int bytes = 0;
  EXPECT_EQ(::ioctl(ours, FIONREAD, &bytes), 0);
  EXPECT_EQ(bytes, 4);
  EXPECT_EQ(ours.receive(nullptr, MSG_DONTWAIT), "ours");
  come();
  pollfd waiting{ours, POLLIN, 0};
  EXPECT_EQ(::poll(&waiting, 1, 0), 1);
  EXPECT_EQ(ours.receive(nullptr, MSG_DONTWAIT), "ours");
}

class ArrivalsOfOnePort : public Arrivals {
 protected:
  [[nodiscard]] Socket bound_to(std::uint16_t port) const {
    Socket socket(GetParam().family);
    socket.limit_waits();
    socket.set(SOL_SOCKET, SO_REUSEADDR, 1);
    const Address here(GetParam().here, port);
    EXPECT_EQ(::bind(socket, here.get(), here.length()), 0) << std::strerror(errno);
    return socket;
  }
  [[nodiscard]] Socket connected_from(std::uint16_t port) const {
    Socket socket = bound_to(port);
    EXPECT_EQ(::connect(socket, far_.name().get(), far_.name().length()), 0) << std::strerror(errno);
    return socket;
  }
  void come(const Socket& to, const std::string& text) const {
    ASSERT_EQ(far_.send(to.name(), text), static_cast<long>(text.size()));
  }
};
INSTANTIATE_TEST_SUITE_P(Over, ArrivalsOfOnePort, both_versions(), name_of_version);

TEST_P(ArrivalsOfOnePort, AreNotForTheNextSocketWhenTheirsWasClosed) {
  Socket socket = bound_to(0);
  const std::uint16_t port = socket.name().port();
  for (const bool is_connected : {false, true, false}) {
    for (int i = 0; i < 40; ++i) come(socket, "unread");
    { const Socket closed = std::move(socket); }
    socket = is_connected ? connected_from(port) : bound_to(port);
    EXPECT_EQ(all_of(socket), Texts());
    come(socket, "read");
    EXPECT_EQ(all_of(socket), Texts{"read"});
  }
}

TEST_P(ArrivalsOfOnePort, AreNotForTheListenerWhenTheConnectedSocketWasClosed) {
  const Socket listener = bound_to(0);
  {
    const Socket connected = connected_from(listener.name().port());
    come(connected, "unread");
  }
  EXPECT_EQ(all_of(listener), Texts());
  come(listener, "for the listener");
  EXPECT_EQ(all_of(listener), Texts{"for the listener"});
}

TEST_P(ArrivalsOfOnePort, AreNotForASocketThatIsBoundAfterThem) {
  const Socket first = bound_to(0);
  come(first, "before");
  const Socket second = bound_to(first.name().port());
  EXPECT_EQ(all_of(second), Texts());
  come(second, "after");
  EXPECT_EQ(all_of(second), Texts{"after"});
  EXPECT_EQ(all_of(first), Texts{"before"});
}

}  // namespace
}  // namespace ringsock::vma_tests
