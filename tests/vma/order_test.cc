// Datagrams of one sender are received in the order in which they were sent, also those that travel in fragments.
#include <net/if.h>
#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "tests/vma/far_socket.h"
#include "tests/vma/udp_fixture.h"

namespace ringsock::vma_tests {
namespace {

constexpr std::size_t kMoreThanAnMtu = 4000;

/// As long as it lives its thread stays on the CPU where it is.
class OneCpu {
 public:
  OneCpu() {
    ::sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(static_cast<unsigned>(::sched_getcpu()), &only);
    EXPECT_EQ(::sched_setaffinity(0, sizeof only, &only), 0) << std::strerror(errno);
  }
  OneCpu(const OneCpu&) = delete;
  OneCpu& operator=(const OneCpu&) = delete;
  ~OneCpu() { ::sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_{};
};

class Order : public Udp {
 protected:
  Order() : far_(GetParam().there) {}
  void SetUp() override {
    if (std::getenv("TWO_HOSTS_PEER") == nullptr) GTEST_SKIP() << "needs two hosts";
    const int room = 4 << 20;
    ASSERT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room), 0);
  }
  /// Every third one in fragments.
  static std::string numbered(int number) {
    std::string out = std::to_string(number);
    if (number % 3 == 2) out.resize(kMoreThanAnMtu + static_cast<std::size_t>(number), '.');
    return out;
  }
  /// On one CPU: what a thread sends by a veth from two arrives in either order.
  void send(const Address& to, int count) {
    const OneCpu here;
    for (int i = 0; i < count; ++i) {
      const std::string data = numbered(i);
      EXPECT_EQ(far_.send(to, data), static_cast<long>(data.size())) << std::strerror(errno);
    }
  }
  static void expect(const Socket& socket, int count) {
    for (int i = 0; i < count; ++i) ASSERT_EQ(socket.receive(), numbered(i)) << i << ": " << std::strerror(errno);
    EXPECT_EQ(socket.receive(nullptr, MSG_DONTWAIT), "");
  }
  FarSocket far_;
};

INSTANTIATE_TEST_SUITE_P(Over, Order, both_versions(), name_of_version);

TEST_P(Order, OfWhatWaits) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  for (int round = 0; round < 20; ++round) {
    send(Address(GetParam().here, socket_.name().port()), 30);
    expect(socket_, 30);
  }
}

TEST_P(Order, OfWhatIsReceivedMeanwhile) {
  bind_anywhere(socket_);
  get_acquainted(socket_);
  for (int round = 0; round < 10; ++round) {  // each has room in ring and queue
    std::thread sender([&] { send(Address(GetParam().here, socket_.name().port()), 300); });
    expect(socket_, 300);
    sender.join();
  }
}

TEST_P(Order, OfAConnectedSocket) {
  ASSERT_EQ(::connect(socket_, far_.name().get(), far_.name().length()), 0);
  send(socket_.name(), 30);
  expect(socket_, 30);
}

/// eth0's, to set as interface to send by or to be a member on.
int eth0() { return static_cast<int>(::if_nametoindex("eth0")); }
group_req member_of(const char* group) {
  group_req out{};
  out.gr_interface = static_cast<std::uint32_t>(eth0());
  const Address name(group, 0);
  std::memcpy(&out.gr_group, name.get(), name.length());
  return out;
}

TEST_P(Order, OfAGroupOfBothHosts) {
  const bool is_v4 = GetParam().family == AF_INET;
  const int level = is_v4 ? IPPROTO_IP : IPPROTO_IPV6;
  const char* const group = is_v4 ? "239.9.0.33" : "ff15::933";
  bind_anywhere(socket_);
  const group_req member = member_of(group);
  ASSERT_EQ(::setsockopt(socket_, level, MCAST_JOIN_GROUP, &member, sizeof member), 0) << std::strerror(errno);
  const Address to(group, socket_.name().port());
  far_.send_groups_by_eth0();
  send(to, 90);
  expect(socket_, 90);

  const Socket ours(GetParam().family);
  const ip_mreqn by{.imr_multiaddr = {}, .imr_address = {}, .imr_ifindex = eth0()};
  const int index = eth0();
  ASSERT_EQ(is_v4 ? ::setsockopt(ours, level, IP_MULTICAST_IF, &by, sizeof by)
                  : ::setsockopt(ours, level, IPV6_MULTICAST_IF, &index, sizeof index),
            0);
  const OneCpu here;
  for (int i = 0; i < 90; ++i) ASSERT_GT(ours.send_to(to, numbered(i)), 0) << std::strerror(errno);
  expect(socket_, 90);
}

TEST_P(Order, TheKernelSeesNothingOfFragmentsThatRingsCarry) {
  if (!preloaded()) GTEST_SKIP() << "without libvma the kernel carries all";
  bind_anywhere(socket_);
  get_acquainted(socket_);
  const long before = kernels_datagrams(GetParam().family);
  send(Address(GetParam().here, socket_.name().port()), 30);
  expect(socket_, 30);
  EXPECT_LT(kernels_datagrams(GetParam().family) - before, 5);
}

/// No two packets of a run have the same: what is left of one must not fit another's.
std::uint16_t next_number() {
  static auto last = static_cast<std::uint16_t>(::getpid());
  return ++last;
}

/// One fragment of an IPv4 packet, as the other host sends it, from an address that nobody else sends from.
void send_piece(const std::string& packet, std::size_t begin, std::size_t end, std::uint16_t number) {
  const bool is_last = end == packet.size();
  std::string piece(20, '\0');
  piece[0] = 0x45;
  const auto word = [&](std::size_t at, std::size_t value) {
    piece[at] = static_cast<char>(value >> 8);
    piece[at + 1] = static_cast<char>(value);
  };
  word(4, number);
  word(6, begin / 8 | (is_last ? 0 : 0x2000));
  piece[8] = 64;
  piece[9] = IPPROTO_UDP;
  const Address from("10.9.0.99", 0), to("10.9.0.1", 0);
  std::memcpy(&piece[12], &reinterpret_cast<const sockaddr_in*>(from.get())->sin_addr, 4);
  std::memcpy(&piece[16], &reinterpret_cast<const sockaddr_in*>(to.get())->sin_addr, 4);
  piece += packet.substr(begin, end - begin);
  const int fd = over_there([] { return static_cast<int>(raw_syscall(SYS_socket, AF_INET, SOCK_RAW, IPPROTO_RAW)); });
  EXPECT_EQ(raw_syscall(SYS_sendto, fd, piece.data(), piece.size(), 0, to.get(), to.length()),
            static_cast<long>(piece.size()))
      << std::strerror(errno);
  raw_syscall(SYS_close, fd);
}

/// A UDP packet without a checksum.
std::string udp_packet(std::uint16_t port, const std::string& data) {
  std::string out(8, '\0');
  const std::size_t bytes = data.size() + out.size();
  out[0] = out[1] = 9;
  out[2] = static_cast<char>(port >> 8), out[3] = static_cast<char>(port);
  out[4] = static_cast<char>(bytes >> 8), out[5] = static_cast<char>(bytes);
  return out + data;
}

TEST_P(Order, FragmentsThatComeInAnyOrderMakeADatagram) {
  if (GetParam().family != AF_INET) GTEST_SKIP() << "made by hand for IPv4 only";
  bind_anywhere(socket_);
  get_acquainted(socket_);
  const std::string data(1000, 'x'), packet = udp_packet(socket_.name().port(), data);
  std::vector<std::pair<std::size_t, std::size_t>> pieces{{0, 304}, {304, 704}, {704, 1008}};
  do {
    const std::uint16_t number = next_number();
    for (const auto& [begin, end] : pieces) send_piece(packet, begin, end, number);
    EXPECT_EQ(socket_.receive(), data) << number << ": " << std::strerror(errno);
  } while (std::next_permutation(pieces.begin(), pieces.end()));
}

TEST_P(Order, FragmentsThatOverlapMakeNone) {
  if (GetParam().family != AF_INET) GTEST_SKIP() << "made by hand for IPv4 only";
  bind_anywhere(socket_);
  get_acquainted(socket_);
  const std::string packet = udp_packet(socket_.name().port(), std::string(1000, 'x'));
  const std::uint16_t number = next_number();
  send_piece(packet, 0, 304, number);
  send_piece(packet, 296, 704, number);
  send_piece(packet, 704, packet.size(), number);
  send_piece(packet, 304, 704, number);
  get_acquainted(socket_);
  EXPECT_EQ(socket_.receive(nullptr, MSG_DONTWAIT), "");
}

}  // namespace
}  // namespace ringsock::vma_tests
