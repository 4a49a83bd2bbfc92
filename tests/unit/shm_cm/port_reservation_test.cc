#include "core/device/shm/names/port_reservation.h"

#include <gtest/gtest.h>

#include "core/device/shm/cm/acceptor.h"
#include "tests/unit/shm_cm/other_process.h"

namespace ringsock::soft {
namespace {

using tests::kAlice;
using verbs::PortSpace;

const auto kLoopback = SocketAddress::v4(INADDR_LOOPBACK, 0);
const auto kAny4 = SocketAddress::wildcard(AF_INET, 0);
const auto kAny6 = SocketAddress::wildcard(AF_INET6, 0);
constexpr PortReservation::Options kPlain{};
constexpr PortReservation::Options kReuse{.reuse_address = true};
constexpr PortReservation::Options kV6Only{.v6_only = true};

SocketAddress with_port(SocketAddress address, std::uint16_t port) {
  address.set_port(port);
  return address;
}
std::uint16_t port_of(const UniqueFd& socket) {
  sockaddr_in name{};
  socklen_t length = sizeof name;
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
  return ntohs(name.sin_port);
}
int error_of(const Status& status) { return status ? 0 : status.error().code; }

class Reservation : public ::testing::TestWithParam<PortSpace> {
 protected:
  int bind(PortReservation& port, const SocketAddress& address, PortReservation::Options options = kPlain) {
    return error_of(port.bind(GetParam(), address, options));
  }
  /// A kernel socket of the space, bound.
  UniqueFd kernel_socket(const SocketAddress& address) {
    UniqueFd out(::socket(address.family(), GetParam() == PortSpace::tcp ? SOCK_STREAM : SOCK_DGRAM, 0));
    EXPECT_EQ(::bind(out.get(), address.get(), address.length()), 0);
    return out;
  }
};

TEST_P(Reservation, Port0PicksOneAndTheKernelHoldsIt) {
  PortReservation port;
  ASSERT_EQ(bind(port, kLoopback), 0);
  const std::uint16_t number = port.binding().address.port();
  ASSERT_NE(number, 0);
  const SocketAddress address = with_port(kLoopback, number);
  const UniqueFd rival(::socket(AF_INET, GetParam() == PortSpace::tcp ? SOCK_STREAM : SOCK_DGRAM, 0));
  EXPECT_EQ(::bind(rival.get(), address.get(), address.length()), -1);
  EXPECT_EQ(errno, EADDRINUSE);
}

TEST_P(Reservation, TwoRsocketsCannotHaveOverlappingPorts) {
  PortReservation first;
  ASSERT_EQ(bind(first, kLoopback), 0);
  const std::uint16_t number = first.binding().address.port();
  for (const auto& address : {kLoopback, kAny4, kAny6}) {
    PortReservation second;
    EXPECT_EQ(bind(second, with_port(address, number)), EADDRINUSE) << address.to_string();
  }
  PortReservation elsewhere;
  EXPECT_EQ(bind(elsewhere, SocketAddress::v4(0x7f000002, number)), 0);
}

TEST_P(Reservation, TheV6OnlyWildcardLeavesIpv4Free) {
  // Free for both: other programs of the host have ports of IPv4 only, too.
  const std::uint16_t number = port_of(kernel_socket(kAny4));
  PortReservation v6;
  ASSERT_EQ(bind(v6, with_port(kAny6, number), kV6Only), 0);
  PortReservation v4;
  EXPECT_EQ(bind(v4, with_port(kAny4, number)), 0);
}

TEST_P(Reservation, BindingTwiceIsInvalid) {
  PortReservation port;
  ASSERT_EQ(bind(port, kLoopback), 0);
  EXPECT_EQ(bind(port, kLoopback), EINVAL);
}

TEST_P(Reservation, AnAddressOfAnotherHostIsNotAvailable) {
  PortReservation port;
  EXPECT_EQ(bind(port, SocketAddress::v4(0xc0000201, 0)), EADDRNOTAVAIL);
  EXPECT_FALSE(port.is_bound());
  EXPECT_EQ(bind(port, kLoopback), 0);  // and nothing is left behind
}

TEST_P(Reservation, WithReuseAddressTwoMayBindWhileNobodyListens) {
  PortReservation first;
  ASSERT_EQ(bind(first, kLoopback, kReuse), 0);
  const SocketAddress address = first.binding().address;
  {
    PortReservation second;
    EXPECT_EQ(bind(second, address, kReuse), 0);
    PortReservation strict;
    EXPECT_EQ(bind(strict, address), EADDRINUSE);
  }
  auto listener = Acceptor::open(first.binding(), 1, {});
  ASSERT_TRUE(listener);
  PortReservation third;
  EXPECT_EQ(bind(third, with_port(kAny4, address.port()), kReuse), EADDRINUSE);
}

TEST_P(Reservation, APortThatAKernelSocketOfTheSameUserHoldsIsFine) {
  const UniqueFd kernel = kernel_socket(kLoopback);
  const SocketAddress address = with_port(kLoopback, port_of(kernel));
  PortReservation port;
  EXPECT_EQ(bind(port, address), 0);
  PortReservation second;
  EXPECT_EQ(bind(second, address), EADDRINUSE);
  PortReservation wide;
  EXPECT_EQ(bind(wide, with_port(kAny6, address.port())), EADDRINUSE);
}

TEST_P(Reservation, APortThatAnotherUserHoldsIsNot) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  const UniqueFd kernel = kernel_socket(kLoopback);
  const SocketAddress address = with_port(kLoopback, port_of(kernel));
  tests::OtherProcess alice(kAlice, [&](auto) {
    PortReservation port;
    return bind(port, address);
  });
  EXPECT_EQ(alice.wait(), EADDRINUSE);
}

TEST_P(Reservation, APrivilegedPortNeedsPrivilege) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  tests::OtherProcess alice(kAlice, [&](auto) {
    PortReservation port;
    return bind(port, with_port(kLoopback, 1));
  });
  EXPECT_EQ(alice.wait(), EACCES);
}

TEST_P(Reservation, BindsTheCallersSocketWhenItHasOne) {
  const UniqueFd visible(::socket(AF_INET, GetParam() == PortSpace::tcp ? SOCK_STREAM : SOCK_DGRAM, 0));
  PortReservation port;
  port.share_with(visible.get());
  ASSERT_EQ(bind(port, kLoopback), 0);
  EXPECT_EQ(port_of(visible), port.binding().address.port());
}

TEST_P(Reservation, BindsAnIpv6SocketToTheMappedAddress) {
  const UniqueFd visible(::socket(AF_INET6, GetParam() == PortSpace::tcp ? SOCK_STREAM : SOCK_DGRAM, 0));
  PortReservation port;
  port.share_with(visible.get());
  ASSERT_EQ(bind(port, kLoopback.mapped()), 0);
  EXPECT_EQ(port.binding().address.family(), AF_INET);
  // A second try of the caller's with another id finds the socket bound, which is as good.
  PortReservation again;
  again.share_with(visible.get());
  EXPECT_EQ(error_of(again.bind_ephemeral(GetParam(), kLoopback)), 0);
  EXPECT_EQ(again.binding().address, port.binding().address);
}

TEST(ConnectingNumber, IsOneThatConnectPrefersAndIsTakenAsLongAsItsName) {
  const UniqueFd visible(::socket(AF_INET, SOCK_STREAM, 0));
  SocketAddress address = kLoopback;
  {
    PortReservation port;
    port.share_with(visible.get());
    ASSERT_EQ(error_of(port.bind_ephemeral(PortSpace::tcp, kLoopback)), 0);
    address = port.binding().address;
    EXPECT_EQ(port_of(visible), 0) << "the kernel's socket stays as it is";
    const UniqueFd kernels(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(kernels.get(), kLoopback.get(), kLoopback.length()), 0);
    EXPECT_NE(address.port() % 2, port_of(kernels) % 2) << "bind(2) chooses among the others";
    for (const SocketAddress& same :
         {address, address.mapped(), with_port(kAny4, address.port()), with_port(kAny6, address.port())})
      EXPECT_TRUE(is_number_taken(PortSpace::tcp, same)) << same.to_string();
    EXPECT_FALSE(is_number_taken(PortSpace::udp, address));
  }
  EXPECT_FALSE(is_number_taken(PortSpace::tcp, address));
}

INSTANTIATE_TEST_SUITE_P(Spaces, Reservation, ::testing::Values(PortSpace::tcp, PortSpace::udp),
                         [](const auto& space) { return space.param == PortSpace::tcp ? "tcp" : "udp"; });

}  // namespace
}  // namespace ringsock::soft
