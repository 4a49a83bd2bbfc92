// What arrives while the program receives nothing.
#include <sys/ioctl.h>

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

}  // namespace
}  // namespace ringsock::vma_tests
