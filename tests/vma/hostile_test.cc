// A network that sends anything at UDP sockets: the generator is a thread in the other host's namespace that writes
// frames onto the cable (hostile_vma.sh). HOSTILE_PACKETS: how many.
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "tests/support/sanitizers.h"
#include "tests/vma/udp_world.h"

namespace ringsock::vma_tests {
namespace {

constexpr const char* kGroup = "239.9.9.9";

std::string bytes_of(std::initializer_list<int> values) {
  std::string out;
  for (const int value : values) out.push_back(static_cast<char>(value));
  return out;
}
std::string be16(std::size_t value) {
  return bytes_of({static_cast<int>(value >> 8 & 255), static_cast<int>(value & 255)});
}

/// RFC 1071.
std::uint16_t checksum(const std::string& bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    sum += std::uint32_t{static_cast<std::uint8_t>(bytes[i])} << (i % 2 == 0 ? 8 : 0);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

std::string address_bytes(const char* text) {
  std::array<char, 16> bytes{};
  if (::inet_pton(AF_INET, text, bytes.data()) == 1) return {bytes.data(), 4};
  ::inet_pton(AF_INET6, text, bytes.data());
  return {bytes.data(), 16};
}

/// Frames for one port of this host. Whatever is not valid here becomes so by chance.
class Frames {
 public:
  Frames(std::string ours, std::string theirs, std::uint16_t port)
      : ours_(std::move(ours)), theirs_(std::move(theirs)), port_(port), random_(4711) {}

  std::string next() {
    std::string frame = kinds_[below(kinds_.size())]();
    const std::size_t changes = below(4);
    for (std::size_t i = 0; i < changes; ++i) frame[12 + below(frame.size() - 12)] = static_cast<char>(below(256));
    if (below(8) == 0) frame.resize(14 + below(1400), 'm');
    // What a wrong sum would hide is to be looked at, too.
    if (below(2) == 0) mend_v4_sum(frame);
    return frame;
  }

 private:
  std::size_t below(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_); }

  std::string ethernet(std::size_t type, const std::string& packet) const {
    return ours_ + theirs_ + be16(type) + packet;
  }
  std::string datagram() {
    const std::string data(below(64), 'd');
    // Without a sum, which IPv4 allows.
    return be16(40000) + be16(port_) + be16(sizeof(udphdr) + data.size()) + be16(0) + data;
  }
  static std::string v4(int protocol, std::size_t offset_field, const std::string& options, const std::string& payload,
                        const char* to = "10.9.0.1") {
    const std::size_t length = 20 + options.size();
    const std::string header = bytes_of({static_cast<int>(0x40 | length / 4), 0}) + be16(length + payload.size()) +
                               be16(7) + be16(offset_field) + bytes_of({64, protocol}) + be16(0) +
                               address_bytes("10.9.0.2") + address_bytes(to) + options;
    std::string packet = header + payload;
    set_v4_sum(packet, 0, length);
    return packet;
  }
  static std::string v6(int next_header, const std::string& payload) {
    return bytes_of({0x60, 0, 0, 0}) + be16(payload.size()) + bytes_of({next_header, 64}) + address_bytes("fd09::2") +
           address_bytes("fd09::1") + payload;
  }
  static void set_v4_sum(std::string& bytes, std::size_t at, std::size_t length) {
    bytes.replace(at + 10, 2, be16(0));
    bytes.replace(at + 10, 2, be16(checksum(bytes.substr(at, length))));
  }
  static void mend_v4_sum(std::string& frame) {
    const std::size_t length = frame.size() > 14 ? std::size_t{static_cast<std::uint8_t>(frame[14])} % 16 * 4 : 0;
    if (length >= 20 && frame.size() >= 14 + length && frame.substr(12, 2) == be16(ETHERTYPE_IP))
      set_v4_sum(frame, 14, length);
  }
  /// With its sum, which IPv6 demands.
  std::string datagram_v6() {
    std::string datagram = this->datagram();
    const std::string pseudo = address_bytes("fd09::2") + address_bytes("fd09::1") + be16(0) + be16(datagram.size()) +
                               be16(0) + be16(IPPROTO_UDP);
    datagram.replace(6, 2, be16(checksum(pseudo + datagram)));
    return datagram;
  }
  /// An error about something that this port has sent.
  std::string icmp(int type, int code) {
    std::string message = bytes_of({type, code, 0, 0, 0, 0}) + be16(below(65536));
    message += v4(IPPROTO_UDP, 0, "", be16(port_) + be16(40000) + be16(8) + be16(0));
    message.replace(2, 2, be16(checksum(message)));
    return v4(IPPROTO_ICMP, 0, "", message);
  }
  std::string fragment_v4() {
    // Overlaps, gaps, ends beyond 65535, and now and then pieces that fit.
    const std::size_t more = below(2) << 13, offset = below(4) == 0 ? 8100 + below(92) : below(12);
    return v4(IPPROTO_UDP, more | offset, "", datagram() + std::string(8 * below(8), 'f'));
  }
  std::string fragment_v6() {
    const std::size_t offset = below(12) * 8 | below(2);
    return v6(IPPROTO_FRAGMENT, bytes_of({IPPROTO_UDP, 0}) + be16(offset) + be16(0) + be16(below(3)) + datagram_v6());
  }

  const std::string ours_, theirs_;
  const std::uint16_t port_;
  std::mt19937 random_;
  const std::vector<std::function<std::string()>> kinds_{
      [this] { return ethernet(ETHERTYPE_IP, v4(IPPROTO_UDP, 0, "", datagram())); },
      [this] { return ethernet(ETHERTYPE_IP, v4(IPPROTO_UDP, 0, std::string(4 * (1 + below(10)), 1), datagram())); },
      [this] { return ethernet(ETHERTYPE_IP, v4(IPPROTO_UDP, 0, "", datagram(), kGroup)); },
      [this] { return ethernet(ETHERTYPE_IP, fragment_v4()); },
      [this] { return ethernet(ETHERTYPE_IP, icmp(3, static_cast<int>(below(5)))); },
      [this] { return ethernet(ETHERTYPE_IP, v4(IPPROTO_TCP, 0, "", datagram())); },
      [this] { return ethernet(ETHERTYPE_IPV6, v6(IPPROTO_UDP, datagram_v6())); },
      [this] { return ethernet(ETHERTYPE_IPV6, fragment_v6()); },
      [this] {
        return ethernet(ETHERTYPE_IPV6,
                        v6(IPPROTO_HOPOPTS, bytes_of({IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}) + datagram_v6()));
      },
      [this] { return ethernet(ETHERTYPE_VLAN, be16(5) + be16(ETHERTYPE_IP) + v4(IPPROTO_UDP, 0, "", datagram())); },
      [this] { return ethernet(below(65536), std::string(below(60), 'x')); },
  };
};

std::string hardware_address(int socket) {
  ifreq request{};
  std::strcpy(request.ifr_name, "eth0");
  EXPECT_EQ(::ioctl(socket, SIOCGIFHWADDR, &request), 0) << std::strerror(errno);
  return {request.ifr_hwaddr.sa_data, ETH_ALEN};
}

/// In the other host's namespace, on a thread of its own.
void generate(const std::string& peer, const std::string& ours, std::uint16_t port, long packets) {
  const int space = ::open(("/run/netns/" + peer).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::setns(space, CLONE_NEWNET), 0) << std::strerror(errno);
  ::close(space);
  const int wire = ::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  ASSERT_GE(wire, 0) << std::strerror(errno);
  sockaddr_ll to{};
  to.sll_family = AF_PACKET;
  to.sll_ifindex = static_cast<int>(::if_nametoindex("eth0"));
  to.sll_halen = ETH_ALEN;
  Frames frames(ours, hardware_address(wire), port);
  long sent = 0;
  for (long i = 0; i < packets; ++i) {
    const std::string frame = frames.next();
    sent += ::sendto(wire, frame.data(), frame.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) > 0;
  }
  EXPECT_GT(sent, packets * 9 / 10);
  ::close(wire);
}

constexpr long kSlowness = support::kHasThreadSanitizer ? 20 : support::kHasAddressSanitizer ? 5 : 1;

// AddressSanitizer keeps what was freed for a while.
constexpr long kMostGrowthKilobytes = (support::kHasAddressSanitizer ? 512L : 64L) * 1024;

long resident_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stol(line.substr(6));
  }
  return -1;
}

/// Reads what it can, into rooms of every size, with all that a program may ask for.
void receive_anything(const std::vector<std::unique_ptr<Socket>>& sockets, const std::atomic<bool>& ended) {
  std::array<char, 2048> room{};
  std::array<char, 512> control{};
  for (std::size_t turn = 0; !ended.load(); ++turn) {
    for (const auto& socket : sockets) {
      sockaddr_storage from{};
      iovec part{room.data(), turn % room.size()};
      msghdr message{};
      message.msg_name = &from;
      message.msg_namelen = sizeof from;
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t got = ::recvmsg(*socket, &message, MSG_DONTWAIT | (turn % 16 == 0 ? MSG_PEEK : 0));
      if (got < 0 && errno != EAGAIN && errno != ECONNREFUSED && errno != EHOSTUNREACH && errno != ENETUNREACH &&
          errno != EPROTO && errno != EOPNOTSUPP && errno != EMSGSIZE && errno != ENOPROTOOPT && errno != EACCES)
        ADD_FAILURE() << std::strerror(errno);
    }
  }
}

TEST(Hostile, SocketsOutliveMutatedPacketsAndGoOnReceivingGoodOnes) {
  std::vector<std::unique_ptr<Socket>> sockets;
  const auto add = [&](int family, const char* host, std::uint16_t port) -> Socket& {
    auto socket = std::make_unique<Socket>(family);
    socket->set(SOL_SOCKET, SO_REUSEADDR, 1);
    EXPECT_EQ(::bind(*socket, Address(host, port).get(), Address(host, port).length()), 0) << std::strerror(errno);
    socket->set(SOL_SOCKET, SO_TIMESTAMPNS, 1);
    sockets.push_back(std::move(socket));
    return *sockets.back();
  };
  Socket& any = add(AF_INET, "0.0.0.0", 0);
  const std::uint16_t port = any.name().port();
  any.set(IPPROTO_IP, IP_PKTINFO, 1);
  any.set(IPPROTO_UDP, UDP_GRO, 1);
  Socket& member = add(AF_INET, kGroup, port);
  ip_mreqn group{};
  ::inet_pton(AF_INET, kGroup, &group.imr_multiaddr);
  group.imr_ifindex = static_cast<int>(::if_nametoindex("eth0"));
  ASSERT_EQ(::setsockopt(member, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group), 0) << std::strerror(errno);
  auto v6_only = std::make_unique<Socket>(AF_INET6);
  v6_only->set(IPPROTO_IPV6, IPV6_V6ONLY, 1);
  v6_only->set(IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
  ASSERT_EQ(::bind(*v6_only, Address("::", port).get(), sizeof(sockaddr_in6)), 0) << std::strerror(errno);
  const Socket& v6 = *sockets.emplace_back(std::move(v6_only));
  // Rings are taken with the first use.
  any.send_to(Address("10.9.0.2", kEchoPort), "hello");
  v6.send_to(Address("fd09::2", kEchoPort), "hello");

  const char* const wanted = std::getenv("HOSTILE_PACKETS");
  const long packets = (wanted != nullptr ? std::atol(wanted) : 100'000) / kSlowness;
  const std::string ours = hardware_address(any);
  const long before = resident_kilobytes();
  std::atomic<bool> ended{false};
  std::thread receiver([&] { receive_anything(sockets, ended); });
  std::thread(generate, std::string(std::getenv("TWO_HOSTS_PEER")), ours, port, packets).join();
  ended = true;
  receiver.join();
  EXPECT_LT(resident_kilobytes() - before, kMostGrowthKilobytes);

  const Messenger messenger(Address("10.9.0.2", kEchoPort));
  const auto hears = [&](const Socket& socket, const char* host) {
    socket.limit_waits(2000);
    messenger.send("good", host, port);
    // Behind what is left of the flood.
    std::array<char, 2048> room{};
    for (;;) {
      const ssize_t got = ::recv(socket, room.data(), room.size(), 0);
      if (got == 4 && std::memcmp(room.data(), "good", 4) == 0) return true;
      if (got < 0 && errno == EAGAIN) break;
    }
    return false;
  };
  EXPECT_TRUE(hears(any, "10.9.0.1"));
  EXPECT_TRUE(hears(member, kGroup));
  EXPECT_TRUE(hears(v6, "fd09::1"));
  if (preloaded()) {
    const long by_the_kernel = kernels_datagrams(AF_INET);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(hears(any, "10.9.0.1"));
    EXPECT_LT(kernels_datagrams(AF_INET) - by_the_kernel, 20 * 2) << "no ring is used any more";
  }
}

}  // namespace
}  // namespace ringsock::vma_tests
