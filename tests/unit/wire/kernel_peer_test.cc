// What we write is read by the kernel, and the other way round: packets go through a TUN interface in a namespace of
// the test's own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/wire/emit.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"
#include "tests/unit/net/network_namespace.h"

namespace ringsock::wire {
namespace {

using Buffer = std::vector<std::byte>;

constexpr Be32 kKernel{0x0a090001}, kUs{0x0a090002};
constexpr Ipv6Address kKernel6{0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
constexpr Ipv6Address kUs6{0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
constexpr std::uint16_t kOurPort = 4444;  // nobody else is in the namespace

Buffer numbered(std::size_t count) {
  Buffer out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(i * 13 + i / 251);
  return out;
}

/// UDP header and payload, with the checksum for these addresses.
template <class Address>
Buffer datagram(const Address& from, const Address& to, std::uint16_t to_port, const Buffer& payload) {
  UdpHeader header = make_udp_header(Be16(kOurPort), Be16(to_port), static_cast<std::uint16_t>(payload.size()));
  header.checksum = sent_udp_checksum(pseudo_header_sum(from, to, kIpProtocolUdp, header.bytes.host())
                                          .add(std::as_bytes(std::span(&header, 1)))
                                          .add(payload));
  Buffer out(sizeof header + payload.size());
  std::ranges::copy(payload, emit(out, header).begin());
  return out;
}

class KernelPeer : public testing::Test {
 protected:
  void SetUp() override {
    if (!space_.is_there()) GTEST_SKIP() << "no permission to make a network namespace";
    tun_ = space_.in([] {
      UniqueFd fd(::open("/dev/net/tun", O_RDWR | O_CLOEXEC));
      ifreq request{};
      request.ifr_flags = IFF_TUN | IFF_NO_PI;
      std::strcpy(request.ifr_name, "tun0");
      if (fd && ::ioctl(fd.get(), TUNSETIFF, &request) != 0) fd.reset();
      return fd;
    });
    if (!tun_) GTEST_SKIP() << "no TUN interface can be made";
    space_.run("ip link set tun0 up && ip addr add 10.9.0.1/24 dev tun0 && ip addr add fd09::1/64 dev tun0 nodad");
    wait_for_ipv6();
    socket_ = space_.socket(AF_INET6);
    SocketAddress any = SocketAddress::wildcard(AF_INET6, 0);
    ASSERT_EQ(::bind(socket_.get(), any.get(), any.length()), 0);
    sockaddr_in6 bound{};
    socklen_t length = sizeof bound;
    ASSERT_EQ(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&bound), &length), 0);
    port_ = ntohs(bound.sin6_port);
  }

  /// An IPv6 address that was added receives nothing until the kernel has come to add its local route.
  void wait_for_ipv6() {
    const auto state = space_.state();
    ASSERT_TRUE(state);
    EXPECT_TRUE(net::wait_until(**state, [&] {
      const auto path = (*state)->path_to({.destination = net::ip("fd09::1")});
      return path && path->type == net::PathType::local;
    }));
  }

  static bool readable(int fd) {
    pollfd waiting{fd, POLLIN, 0};
    return ::poll(&waiting, 1, 10000) == 1;
  }
  void to_kernel(const Buffer& packet) {
    ASSERT_EQ(::write(tun_.get(), packet.data(), packet.size()), static_cast<ssize_t>(packet.size()));
  }
  /// What the kernel's socket gets next, and from whom.
  void expect_received(const Buffer& payload, const SocketAddress& from) {
    ASSERT_TRUE(readable(socket_.get()));
    Buffer got(65536);
    sockaddr_in6 source{};
    socklen_t length = sizeof source;
    const ssize_t count =
        ::recvfrom(socket_.get(), got.data(), got.size(), 0, reinterpret_cast<sockaddr*>(&source), &length);
    ASSERT_GE(count, 0);
    got.resize(static_cast<std::size_t>(count));
    EXPECT_EQ(got, payload);
    const auto parsed = SocketAddress::from(reinterpret_cast<sockaddr*>(&source), length);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->unmapped(), from) << parsed->to_string();
  }

  void send4(const Buffer& payload) { send_packet4(datagram(kUs, kKernel, port_, payload)); }
  void send_packet4(const Buffer& udp) {
    send_behind(make_ipv4_header({.payload_bytes = static_cast<std::uint16_t>(udp.size()),
                                  .protocol = kIpProtocolUdp,
                                  .source = kUs,
                                  .destination = kKernel}),
                udp);
  }
  void send6(const Buffer& payload) {
    const Buffer udp = datagram(kUs6, kKernel6, port_, payload);
    send_behind(make_ipv6_header({.payload_bytes = static_cast<std::uint16_t>(udp.size()),
                                  .next_header = kIpProtocolUdp,
                                  .source = kUs6,
                                  .destination = kKernel6}),
                udp);
  }
  template <class Header>
  void send_behind(const Header& header, const Buffer& udp) {
    Buffer packet(sizeof header + udp.size());
    std::ranges::copy(udp, emit(packet, header).begin());
    to_kernel(packet);
  }

  /// The next UDP packet or fragment that the kernel sends over IPv4, its header in `header`. Empty: there was none.
  Buffer from_kernel(Ipv4Header& header) {
    while (readable(tun_.get())) {
      Buffer packet(65536);
      const ssize_t count = ::read(tun_.get(), packet.data(), packet.size());
      if (count < 0) return {};
      packet.resize(static_cast<std::size_t>(count));
      const auto parsed = parse_ipv4(packet);
      if (!parsed || parsed->header.protocol != kIpProtocolUdp) continue;  // the kernel's own, e.g. MLD
      header = parsed->header;
      return {parsed->payload.begin(), parsed->payload.end()};
    }
    return {};
  }

  net::NetworkNamespace space_;
  UniqueFd tun_;
  UniqueFd socket_;
  std::uint16_t port_ = 0;
};

TEST_F(KernelPeer, ReceivesOurDatagrams) {
  const SocketAddress from = SocketAddress::v4(kUs.host(), kOurPort);
  for (const std::size_t bytes : {0u, 1u, 64u, 1472u}) {
    SCOPED_TRACE(bytes);
    send4(numbered(bytes));
    expect_received(numbered(bytes), from);
  }
}

TEST_F(KernelPeer, ReceivesOurDatagramsOverIpv6) {
  in6_addr us;
  std::memcpy(&us, kUs6.data(), sizeof us);
  const SocketAddress from = SocketAddress::v6(us, kOurPort);
  for (const std::size_t bytes : {0u, 1u, 64u, 1452u}) {
    SCOPED_TRACE(bytes);
    send6(numbered(bytes));
    expect_received(numbered(bytes), from);
  }
}

TEST_F(KernelPeer, WouldNotTakeWrongChecksums) {
  Buffer spoiled = datagram(kUs, kKernel, port_, numbered(100));
  spoiled.back() ^= std::byte{1};
  send_packet4(spoiled);
  send4(numbered(7));
  expect_received(numbered(7), SocketAddress::v4(kUs.host(), kOurPort));
}

TEST_F(KernelPeer, SendsDatagramsAndFragmentsThatWeRead) {
  const SocketAddress us = SocketAddress::v4(kUs.host(), kOurPort).mapped();
  for (const std::size_t bytes : {0u, 5u, 1472u, 5000u}) {
    SCOPED_TRACE(bytes);
    const Buffer payload = numbered(bytes);
    ASSERT_EQ(::sendto(socket_.get(), payload.data(), payload.size(), 0, us.get(), us.length()),
              static_cast<ssize_t>(bytes));
    Buffer whole;
    Ipv4Header header;
    do {
      const Buffer piece = from_kernel(header);
      ASSERT_FALSE(piece.empty());
      ASSERT_EQ(header.fragment_offset(), whole.size());
      whole.insert(whole.end(), piece.begin(), piece.end());
    } while ((header.fragment.host() & kIpv4MoreFragments) != 0);
    const auto parsed = parse_udp(whole);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->header.source_port, Be16(port_));
    EXPECT_EQ(parsed->header.destination_port, Be16(kOurPort));
    EXPECT_TRUE(std::ranges::equal(parsed->payload, payload));
    const InternetSum pseudo =
        pseudo_header_sum(header.source, header.destination, header.protocol, parsed->header.bytes.host());
    EXPECT_TRUE(udp_checksum_is_fine(*parsed, pseudo, UdpChecksumRule::ipv4));
  }
}

}  // namespace
}  // namespace ringsock::wire
