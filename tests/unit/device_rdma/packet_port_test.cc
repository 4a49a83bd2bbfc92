// Raw packet queue pairs of real devices: which interface is whose, what a device can do, and what is asked of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "core/device/rdma/packet_port.h"
#include "core/device/rdma/rdma_devices.h"
#include "tests/unit/device_rdma/fake_rdma.h"

namespace ringsock::rdma {
namespace {

constexpr unsigned kInterface = 7;
constexpr std::uint32_t kForPackets = 1U << IBV_QPT_RAW_PACKET;

class PacketPortTest : public testing::Test {
 protected:
  PacketPortTest() {
    fake_.add_device("mlx5_0", "10.7.0.1");
    fake_.gids = {{{}, 0, 1, 0, 0}, {{}, 1, 2, 0, kInterface}};
    fake_.link_layers = {{1, IBV_LINK_LAYER_ETHERNET}, {2, IBV_LINK_LAYER_ETHERNET}};
    fake_.extended.raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
    fake_.extended.tso_caps = {.max_tso = 262144, .supported_qpts = kForPackets};
    fake_.extended.completion_timestamp_mask = UINT64_MAX;
    fake_.extended.packet_pacing_caps = {
        .qp_rate_limit_min = 100, .qp_rate_limit_max = 1'000'000, .supported_qpts = kForPackets};
  }
  Result<PacketPort> open() { return devices_->open_packet_port(kInterface); }
  /// A queue pair as a ring makes it, and what the device was asked for.
  FakeRdma::QueuePair made_by(RdmaDevice& device, std::uint32_t inline_bytes = 64) {
    auto pd = device.alloc_pd();
    auto cq = device.create_cq(16, nullptr, nullptr, 0);
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq->get();
    attr.cap.max_inline_data = inline_bytes;
    attr.qp_type = IBV_QPT_RAW_PACKET;
    const auto qp = device.create_qp(**pd, attr);
    EXPECT_EQ(attr.cap.max_inline_data, fake_.queue_pair(qp->get()).granted.max_inline_data);
    return fake_.queue_pair(qp->get());
  }

  FakeRdma fake_;
  std::shared_ptr<RdmaDevices> devices_ = std::make_shared<RdmaDevices>(FakeRdma::calls());
};

TEST_F(PacketPortTest, AnInterfaceIsFoundByItsPortsGids) {
  const auto port = open();
  ASSERT_TRUE(port);
  EXPECT_STREQ(port->device->name(), "mlx5_0");
  EXPECT_EQ(port->number, 2);
  EXPECT_TRUE(port->offloads.checksums);
  EXPECT_TRUE(port->offloads.wallclock);
  EXPECT_EQ(port->offloads.max_tso_bytes, 262144u);
  EXPECT_EQ(port->offloads.min_rate_kbps, 100u);
  EXPECT_EQ(port->offloads.max_rate_kbps, 1'000'000u);
  EXPECT_EQ(fake_.live_queue_pairs(), 0u) << "the trial is over";
}

TEST_F(PacketPortTest, OtherInterfacesAreNobodys) {
  EXPECT_EQ(devices_->open_packet_port(kInterface + 1).error().code, ENODEV);
}

TEST_F(PacketPortTest, AnInterfaceOverInfiniBandIsNoEthernet) {
  fake_.link_layers[2] = IBV_LINK_LAYER_INFINIBAND;
  EXPECT_EQ(open().error().code, ENODEV);
}

TEST_F(PacketPortTest, ASoftwareDeviceCannotDoIt) {
  // Soft-RoCE has GIDs and an Ethernet port, and refuses the queue pair.
  fake_.failing = {"create_qp", "create_qp_ex"};
  for (const int code : {EOPNOTSUPP, EINVAL}) {
    fake_.failure = code;
    EXPECT_EQ(open().error().code, EOPNOTSUPP);
  }
  fake_.failing.clear();
  fake_.has_flow_rules = false;
  EXPECT_EQ(open().error().code, EOPNOTSUPP);
}

TEST_F(PacketPortTest, AMissingCapabilityIsOneLine) {
  fake_.failing = {"create_qp", "create_qp_ex"};
  fake_.failure = EPERM;
  testing::internal::CaptureStderr();
  EXPECT_EQ(open().error().code, EPERM);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("mlx5_0: packets need the capability CAP_NET_RAW"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_F(PacketPortTest, QueuePairsSegmentWhereTheDeviceDoes) {
  {
    const auto port = open();
    const auto made = made_by(*port->device);
    EXPECT_EQ(made.type, IBV_QPT_RAW_PACKET);
    EXPECT_GE(made.max_tso_header, 14 + 20 + 20);
  }
  fake_.extended.tso_caps.supported_qpts = 0;
  const auto port = open();
  EXPECT_EQ(port->offloads.max_tso_bytes, 0u);
  EXPECT_EQ(made_by(*port->device).max_tso_header, 0);
}

TEST_F(PacketPortTest, LessInlineDataIsAskedForWhereTheDeviceRefuses) {
  const auto port = open();
  EXPECT_EQ(made_by(*port->device, 1024).granted.max_inline_data, fake_.max_inline);
}

TEST_F(PacketPortTest, WhatADeviceDoesNotTellItDoesNotDo) {
  fake_.failing = {"query_device_ex"};
  const auto port = open();
  ASSERT_TRUE(port);
  EXPECT_FALSE(port->offloads.checksums);
  EXPECT_FALSE(port->offloads.wallclock);
  EXPECT_EQ(port->offloads.max_tso_bytes, 0u);
  EXPECT_EQ(port->offloads.max_rate_kbps, 0u);
}

TEST_F(PacketPortTest, CompletionQueuesTellTimesWhereTheDeviceHasThem) {
  {
    const auto port = open();
    auto cq = port->device->create_cq(16, nullptr, nullptr, 0);
    EXPECT_NE(port->device->with_wallclock(**cq), nullptr);
  }
  // It says that it has them, and then has not.
  fake_.failing = {"create_cq_ex"};
  const auto port = open();
  auto cq = port->device->create_cq(16, nullptr, nullptr, 0);
  ASSERT_TRUE(cq);
  EXPECT_EQ(port->device->with_wallclock(**cq), nullptr);
}

TEST_F(PacketPortTest, RatesAreLimitedWithinWhatTheDeviceCan) {
  const auto port = open();
  auto pd = port->device->alloc_pd();
  auto cq = port->device->create_cq(16, nullptr, nullptr, 0);
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq->get();
  attr.qp_type = IBV_QPT_RAW_PACKET;
  const auto qp = port->device->create_qp(**pd, attr);
  const auto limit = [&](std::uint32_t kbps) {
    const Status set = set_rate_limit(FakeRdma::calls(), **qp, kbps);
    return set ? 0 : set.error().code;
  };
  EXPECT_EQ(limit(5000), 0);
  EXPECT_EQ(fake_.queue_pair(qp->get()).rate_kbps, 5000u);
  EXPECT_EQ(limit(99), EINVAL);
  EXPECT_EQ(limit(1'000'001), EINVAL);
  EXPECT_EQ(fake_.queue_pair(qp->get()).rate_kbps, 5000u);
  EXPECT_EQ(limit(0), 0) << "no limit any more";
  EXPECT_EQ(fake_.queue_pair(qp->get()).rate_kbps, 0u);
  fake_.extended.packet_pacing_caps.supported_qpts = 0;
  EXPECT_EQ(limit(5000), EOPNOTSUPP);
}

}  // namespace
}  // namespace ringsock::rdma
