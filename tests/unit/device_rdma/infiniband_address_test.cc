// Connections between AF_IB addresses: a GID and a service id in the place of an IP address and a port.
#include <endian.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "core/device/rdma/rdma_provider.h"
#include "tests/unit/device_rdma/rdma_id_fixture.h"

namespace ringsock::rdma {
namespace {

constexpr std::size_t kHeaderBytes = 36;  // struct cma_hdr

sockaddr_ib gid_address(std::uint8_t last_byte, std::uint16_t port) {
  sockaddr_ib out{};
  out.sib_family = AF_IB;
  out.sib_pkey = htobe16(0xffff);
  out.sib_addr.sib_raw[0] = 0xfe;
  out.sib_addr.sib_raw[1] = 0x80;
  out.sib_addr.sib_raw[15] = last_byte;
  out.sib_sid = htobe64(RDMA_IB_IP_PS_TCP | port);
  out.sib_sid_mask = htobe64(~std::uint64_t{0});
  return out;
}

SocketAddress address_of(const sockaddr_ib& from) {
  return *SocketAddress::from_rdma(reinterpret_cast<const sockaddr*>(&from), sizeof from);
}

const SocketAddress kHereIb = address_of(gid_address(1, 7471));
const SocketAddress kThereIb = address_of(gid_address(2, 7471));

// -- the address

TEST(InfiniBandAddress, IsTakenWholeWhereRdmasOwnAddressesAre) {
  const sockaddr_ib raw = gid_address(1, 7471);
  const auto* any = reinterpret_cast<const sockaddr*>(&raw);
  const SocketAddress address = *SocketAddress::from_rdma(any, sizeof raw);
  EXPECT_EQ(std::memcmp(address.get(), &raw, sizeof raw), 0);
  EXPECT_EQ(address.length(), sizeof raw);
  EXPECT_EQ(address.to_string(), "gid [fe80::1]:7471");
  EXPECT_EQ(address.host_to_string(), "fe80::1");
  EXPECT_FALSE(address.is_wildcard() || address.is_loopback() || address.is_unspecified());
  EXPECT_EQ(SocketAddress::from_rdma(any, sizeof raw - 1).error().code, EINVAL);
  EXPECT_EQ(SocketAddress::from(any, sizeof raw).error().code, EAFNOSUPPORT);
}

TEST(InfiniBandAddress, HasItsPortInTheServiceId) {
  SocketAddress address = kHereIb;
  EXPECT_EQ(address.port(), 7471);
  address.set_port(80);
  EXPECT_EQ(address.port(), 80);
  EXPECT_EQ(be64toh(address.ib().sib_sid), RDMA_IB_IP_PS_TCP | 80);
  EXPECT_FALSE(address == kHereIb);
  address.set_port(7471);
  EXPECT_TRUE(address == kHereIb);
  EXPECT_FALSE(kHereIb == kThereIb);
}

TEST(InfiniBandAddress, OfIpIsAnIpAddressToo) {
  const SocketAddress ip = SocketAddress::v4(INADDR_LOOPBACK, 80);
  EXPECT_TRUE(*SocketAddress::from_rdma(ip.get(), ip.length()) == ip);
  EXPECT_EQ(ip.to_string(), "127.0.0.1:80");
  EXPECT_EQ(ip.host_to_string(), "127.0.0.1");
  EXPECT_EQ(SocketAddress::v6(in6addr_loopback, 80).to_string(), "[::1]:80");
  EXPECT_EQ(SocketAddress::from_rdma(nullptr, 0).error().code, EINVAL);
}

TEST(InfiniBandAddress, IsForTheConnectionManagerToJudge) {
  FakeRdma fake;
  auto provider = make_rdma_provider({}, FakeRdma::calls());
  EXPECT_FALSE(provider->reaches(kThereIb)) << "without a device";
  fake.add_device("mlx5_0", "10.7.0.1");
  auto later = make_rdma_provider({}, FakeRdma::calls());
  EXPECT_TRUE(later->reaches(kThereIb));
}

// -- connections

using InfiniBandIdTest = RdmaIdTest;

TEST_F(InfiniBandIdTest, ARequestLeavesRoomForTheHeaderThatTheKernelDoesNotAdd) {
  ASSERT_TRUE(id_->resolve_addr(kThereIb, std::chrono::seconds(1)));
  EXPECT_TRUE(id_->peer_address() == kThereIb);
  Lane lane = make_lane(*id_);
  const auto data = bytes(56);
  ConnectionParameters parameters;
  parameters.private_data = data;
  ASSERT_TRUE(id_->connect(parameters));
  ASSERT_EQ(raw_->private_data.size(), kHeaderBytes + 56);
  EXPECT_TRUE(std::equal(data.begin(), data.end(), raw_->private_data.begin() + kHeaderBytes));
}

TEST_F(InfiniBandIdTest, AListenerSkipsThatHeader) {
  ASSERT_TRUE(id_->bind(kHereIb));
  EXPECT_TRUE(id_->local_address() == kHereIb);
  ASSERT_TRUE(id_->listen(5));
  fake_.request(*raw_, bytes(92));
  ASSERT_EQ(next(*id_), CmEventType::connect_request);
  ASSERT_EQ(last_.private_data_bytes, 56u);
  EXPECT_EQ(last_.data()[0], std::byte{kHeaderBytes});
  // One that is nothing but header, or less, says nothing.
  for (const std::size_t length : {kHeaderBytes, std::size_t{9}}) {
    fake_.request(*raw_, bytes(length));
    ASSERT_EQ(next(*id_), CmEventType::connect_request);
    EXPECT_EQ(last_.private_data_bytes, 0u);
  }
}

// -- routes

TEST_F(InfiniBandIdTest, ARouteThatIsGivenIsNotAskedFor) {
  const auto path_data = bytes(2 * 72);
  id_->use_route(path_data);
  ASSERT_TRUE(id_->resolve_route(std::chrono::seconds(1)));
  EXPECT_EQ(raw_->ib_options.at(RDMA_OPTION_IB_PATH), path_data);
  EXPECT_EQ(raw_->count("resolve_route"), 0);
  fake_.report(*raw_, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(next(*id_), CmEventType::route_resolved);
}

TEST_F(InfiniBandIdTest, ARouteThatTheKernelRefusesIsAnError) {
  id_->use_route(bytes(72));
  fake_.failing = {"set_option"};
  fake_.failure = EINVAL;
  EXPECT_EQ(id_->resolve_route(std::chrono::seconds(1)).error().code, EINVAL);
}

TEST_F(InfiniBandIdTest, TheResolvedRouteIsTold) {
  EXPECT_TRUE(id_->route().empty());
  ibv_sa_path_rec records[2] = {};
  raw_->id.route.path_rec = records;
  raw_->id.route.num_paths = 2;
  EXPECT_EQ(id_->route().size(), 2 * sizeof(ibv_path_data));
}

}  // namespace
}  // namespace ringsock::rdma
