// Ports and paths of datagrams on devices that the test plays.
#include "core/device/rdma/rdma_ud_extensions.h"

#include <endian.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/device/rdma/rdma_devices.h"
#include "tests/unit/device_rdma/fake_rdma.h"

namespace ringsock::rdma {
namespace {

const SocketAddress kHere = SocketAddress::v4(0x0a070001, 7471);
const SocketAddress kThere = SocketAddress::v4(0x0a070002, 7471);

ibv_gid_entry gid(std::uint32_t index, const SocketAddress& address, std::uint32_t type, unsigned interface = 3) {
  ibv_gid_entry out{};
  out.gid = gid_of(address);
  out.gid_index = index;
  out.port_num = 1;
  out.gid_type = type;
  out.ndev_ifindex = interface;
  return out;
}

class RdmaDatagrams : public testing::Test {
 protected:
  void start(ibv_transport_type transport = IBV_TRANSPORT_IB) {
    fake_.add_device("rxe0", "10.7.0.1", transport);
    devices_ = std::make_shared<RdmaDevices>(FakeRdma::calls());
    device_ = *devices_->open_first();
  }
  Result<ibv_ah_attr> path(const SocketAddress& local, const SocketAddress& destination) {
    auto port = device_->ud().port_of(local);
    if (!port) return port.error();
    return port->device->ud().path_to(*port, local, destination, search_);
  }

  FakeRdma fake_;
  std::shared_ptr<RdmaDevices> devices_;
  std::unique_ptr<RdmaDevice> device_;
  std::unique_ptr<verbs::UdPathSearch> search_;
};

TEST_F(RdmaDatagrams, LeaveByThePortThatHasTheAddress) {
  fake_.link_layers[1] = IBV_LINK_LAYER_ETHERNET;
  fake_.active_mtu = IBV_MTU_1024;
  start();
  const auto port = device_->ud().port_of(kHere);
  ASSERT_TRUE(port);
  ASSERT_NE(port->device, nullptr);
  EXPECT_STREQ(port->device->name(), "rxe0");
  EXPECT_EQ(port->number, 1);
  EXPECT_EQ(port->mtu, IBV_MTU_1024);
  EXPECT_TRUE(port->is_ethernet);
  EXPECT_EQ(device_->ud().port_of(kThere).error().code, ENODEV);
  EXPECT_TRUE(device_->ud().may_exchange(kHere, kThere));
}

TEST_F(RdmaDatagrams, DoNotExistOnIwarp) {
  start(IBV_TRANSPORT_IWARP);
  EXPECT_EQ(device_->ud().port_of(kHere).error().code, EOPNOTSUPP);
}

TEST_F(RdmaDatagrams, UseThePartitionOfTheInterfaceOnInfiniBand) {
  fake_.link_layers[1] = IBV_LINK_LAYER_INFINIBAND;
  fake_.pkey_index = 5;
  start();
  EXPECT_EQ(device_->ud().port_of(kHere)->pkey_index, 5);
}

TEST_F(RdmaDatagrams, KnowAPortForASecondWithoutAsking) {
  start();
  ASSERT_TRUE(device_->ud().port_of(kHere));
  fake_.failing = {"bind_addr"};
  EXPECT_TRUE(device_->ud().port_of(kHere));
  EXPECT_FALSE(device_->ud().port_of(SocketAddress::v4(0x0a070009, 1)));
}

TEST_F(RdmaDatagrams, OnEthernetAreAddressedByTheGidsOfTheIpAddresses) {
  fake_.link_layers[1] = IBV_LINK_LAYER_ETHERNET;
  fake_.gids = {gid(0, SocketAddress::v4(0x0a070005, 0), IBV_GID_TYPE_ROCE_V2), gid(1, kHere, IBV_GID_TYPE_ROCE_V1),
                gid(2, kHere, IBV_GID_TYPE_ROCE_V2), gid(3, kHere, IBV_GID_TYPE_ROCE_V2)};
  start();
  const auto found = path(kHere, kThere);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->is_global, 1);
  EXPECT_EQ(found->grh.sgid_index, 2) << "the first of RoCE v2";
  EXPECT_GT(found->grh.hop_limit, 1);
  EXPECT_EQ(found->port_num, 1);
  const std::uint8_t wanted[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 7, 0, 2};
  EXPECT_EQ(std::memcmp(found->grh.dgid.raw, wanted, sizeof wanted), 0);
  EXPECT_EQ(search_, nullptr);
}

TEST_F(RdmaDatagrams, OnEthernetUseTheOlderKindWhereThereIsNoOther) {
  fake_.link_layers[1] = IBV_LINK_LAYER_ETHERNET;
  fake_.gids = {gid(1, kHere, IBV_GID_TYPE_ROCE_V1)};
  start();
  EXPECT_EQ(path(kHere, kThere)->grh.sgid_index, 1);
  fake_.gids.clear();
  EXPECT_EQ(path(kHere, kThere).error().code, EADDRNOTAVAIL);
}

TEST(EthernetPath, OfALinkLocalAddressIsThatOfItsInterface) {
  FakeRdma fake;
  in6_addr here{}, there{};
  here.s6_addr[0] = there.s6_addr[0] = 0xfe;
  here.s6_addr[1] = there.s6_addr[1] = 0x80;
  here.s6_addr[15] = 1;
  there.s6_addr[15] = 2;
  const SocketAddress local = SocketAddress::v6(here, 1, 4);
  fake.gids = {gid(1, local, IBV_GID_TYPE_ROCE_V2, 3), gid(2, local, IBV_GID_TYPE_ROCE_V2, 4)};
  ibv_context context{};
  const auto found = ethernet_path(FakeRdma::calls(), context, 1, local, SocketAddress::v6(there, 1, 4));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->grh.sgid_index, 2);
}

// -- InfiniBand: what RDMA CM resolves, without waiting for it

class InfiniBandPath : public RdmaDatagrams {
 protected:
  void SetUp() override {
    fake_.link_layers[1] = IBV_LINK_LAYER_INFINIBAND;
    start();
    EXPECT_EQ(path(kHere, kThere).error().code, EAGAIN);
    ASSERT_NE(search_, nullptr);
    id_ = fake_.ids().back();
  }
  void TearDown() override { search_.reset(); }

  FakeRdma::Id* id_ = nullptr;
};

TEST_F(InfiniBandPath, IsTheOneOfThePathRecord) {
  fake_.path_bits = 2;
  fake_.report(*id_, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(path(kHere, kThere).error().code, EAGAIN);
  EXPECT_EQ(id_->count("resolve_route"), 1);
  ibv_sa_path_rec record{};
  record.dlid = htobe16(0x1234);
  record.slid = htobe16(0x4446);
  record.sl = 3;
  record.rate = 7;
  record.hop_limit = 1;
  id_->id.route.path_rec = &record;
  id_->id.route.num_paths = 1;
  id_->id.port_num = 1;
  id_->id.verbs = &device_->context();
  fake_.report(*id_, RDMA_CM_EVENT_ROUTE_RESOLVED);
  const auto found = path(kHere, kThere);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->dlid, 0x1234);
  EXPECT_EQ(found->src_path_bits, 2);
  EXPECT_EQ(found->sl, 3);
  EXPECT_EQ(found->static_rate, 7);
  EXPECT_EQ(found->port_num, 1);
  EXPECT_EQ(found->is_global, 0);

  // Behind a router the path has a GRH. The GID is found by its value.
  const SocketAddress router = SocketAddress::v6(in6addr_loopback, 0);
  record.hop_limit = 12;
  record.sgid = gid_of(router);
  record.dgid = gid_of(kThere);
  record.flow_label = htobe32(0x54321);
  record.traffic_class = 9;
  fake_.gids = {gid(0, kHere, IBV_GID_TYPE_IB), gid(6, router, IBV_GID_TYPE_IB)};
  const auto far = path(kHere, kThere);
  ASSERT_TRUE(far);
  EXPECT_EQ(far->is_global, 1);
  EXPECT_EQ(far->grh.sgid_index, 6);
  EXPECT_EQ(far->grh.hop_limit, 12);
  EXPECT_EQ(far->grh.flow_label, 0x54321u);
  EXPECT_EQ(far->grh.traffic_class, 9);
  id_->id.route.path_rec = nullptr;
}

TEST_F(InfiniBandPath, IsNoneWhenTheSearchFails) {
  fake_.report(*id_, RDMA_CM_EVENT_ADDR_RESOLVED);
  fake_.report(*id_, RDMA_CM_EVENT_ROUTE_ERROR, -ETIMEDOUT);
  EXPECT_EQ(path(kHere, kThere).error().code, ETIMEDOUT);
  EXPECT_EQ(path(kHere, kThere).error().code, ETIMEDOUT);
  search_.reset();
  EXPECT_EQ(path(kHere, kThere).error().code, EAGAIN) << "another search";
  fake_.report(*fake_.ids().back(), RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH);
  EXPECT_EQ(path(kHere, kThere).error().code, EHOSTUNREACH);
}

TEST_F(InfiniBandPath, IsNotSearchedForByTooManyAtATime) {
  std::vector<std::unique_ptr<verbs::UdPathSearch>> searches;
  const auto port = device_->ud().port_of(kHere);
  for (int i = 0; i < 100; ++i) {
    searches.emplace_back();
    EXPECT_EQ(port->device->ud().path_to(*port, kHere, kThere, searches.back()).error().code, EAGAIN);
  }
  EXPECT_EQ(fake_.ids().size(), static_cast<std::size_t>(CmPathSearch::kMost));
  searches.clear();
  EXPECT_EQ(fake_.ids().size(), 1u);
}

}  // namespace
}  // namespace ringsock::rdma
