#include "core/verbs/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "tests/fakes/fake_device.h"

namespace ringsock::verbs {
namespace {

using testing::IsEmpty;

const SocketAddress kNear = SocketAddress::v4(0x7f000001, 80);
const SocketAddress kFar = SocketAddress::v4(0xc0000201, 80);

/// What a test wants to know of a provider that the registry owns.
struct Observed {
  std::atomic<int> opens = 0;
};

struct FakeProvider : DeviceProvider {
  FakeProvider(DeviceKind device_kind, std::vector<SocketAddress> reached, Observed& seen, int open_error = 0)
      : kind_(device_kind), reached_(std::move(reached)), observed_(seen), open_error_(open_error) {}
  [[nodiscard]] const char* name() const override { return kind_ == DeviceKind::rdma ? "hca" : "soft"; }
  [[nodiscard]] DeviceKind kind() const override { return kind_; }
  bool reaches(const SocketAddress& address) override {
    return std::find(reached_.begin(), reached_.end(), address) != reached_.end();
  }
  Result<std::unique_ptr<Device>> open() override {
    ++observed_.opens;
    if (open_error_ != 0) return Error{open_error_, "open"};
    return std::unique_ptr<Device>(std::make_unique<fakes::FakeDevice>(name()));
  }
  [[nodiscard]] bool has_port_unseen(PortSpace space, const SocketAddress& address) override {
    return kind_ == DeviceKind::soft && space == PortSpace::tcp && address == kNear;
  }
  DeviceKind kind_;
  std::vector<SocketAddress> reached_;
  Observed& observed_;
  int open_error_;
};

struct RegistryTest : testing::Test {
  /// A machine with an HCA that reaches `hca_reaches` and the embedded device, which reaches kNear. The order of the
  /// list is the wrong one on purpose.
  DeviceRegistry registry(std::vector<SocketAddress> hca_reaches, AllowedDevices allowed = {}, int hca_error = 0) {
    std::vector<std::unique_ptr<DeviceProvider>> providers;
    providers.push_back(std::make_unique<FakeProvider>(DeviceKind::soft, std::vector{kNear}, soft));
    providers.push_back(std::make_unique<FakeProvider>(DeviceKind::rdma, std::move(hca_reaches), hca, hca_error));
    return DeviceRegistry(std::move(providers), allowed);
  }
  Observed hca;
  Observed soft;
};

std::string name_of(Result<Device*> device) { return device ? (*device)->name() : "none"; }

TEST_F(RegistryTest, HardwareThatReachesTheAddressGoesFirst) {
  auto devices = registry({kNear, kFar});
  EXPECT_EQ(name_of(devices.choose(kNear)), "hca");
  EXPECT_EQ(soft.opens, 0) << "a device that is not needed is not opened";
}

TEST_F(RegistryTest, TheEmbeddedDeviceServesWhatTheHardwareDoesNotReach) {
  auto devices = registry({kFar});
  EXPECT_EQ(name_of(devices.choose(kNear)), "soft");
  EXPECT_EQ(name_of(devices.choose(kFar)), "hca");
}

TEST_F(RegistryTest, NobodyReachesTheAddress) { EXPECT_EQ(registry({}).choose(kFar).error().code, ENODEV); }

TEST_F(RegistryTest, KindsThatAreNotAllowedAreNotThere) {
  EXPECT_EQ(name_of(registry({kNear}, {.rdma = false}).choose(kNear)), "soft");
  EXPECT_EQ(name_of(registry({kNear}, {.soft = false}).choose(kNear)), "hca");
  auto nothing = registry({kNear}, {.rdma = false, .soft = false});
  EXPECT_EQ(nothing.choose(kNear).error().code, ENODEV);
  EXPECT_TRUE(nothing.empty());
}

TEST_F(RegistryTest, DevicesAreOpenedOnceAndKept) {
  auto devices = registry({});
  Device* first = *devices.choose(kNear);
  EXPECT_EQ(*devices.choose(kNear), first);
  EXPECT_EQ(soft.opens, 1);
}

TEST_F(RegistryTest, DeviceThatDoesNotOpenIsPassedOverAndNotTriedAgain) {
  auto devices = registry({kNear, kFar}, {}, EPERM);
  EXPECT_EQ(name_of(devices.choose(kNear)), "soft");
  EXPECT_EQ(devices.choose(kFar).error().code, EPERM);
  EXPECT_EQ(hca.opens, 1);
  EXPECT_FALSE(devices.empty());
}

TEST_F(RegistryTest, ListenersGetEveryDevice) {
  auto devices = registry({kNear, kFar});
  const auto found = devices.all(kNear);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_STREQ(found[0]->name(), "hca");
  EXPECT_STREQ(found[1]->name(), "soft");
  EXPECT_THAT(registry({}).all(kFar), IsEmpty());
}

TEST_F(RegistryTest, ThreadsThatAskAtTheSameTimeGetTheSameDevice) {
  auto devices = registry({});
  std::vector<Device*> found(4);
  {
    std::vector<std::jthread> threads;
    threads.reserve(found.size());
    for (Device*& device : found) threads.emplace_back([&] { device = *devices.choose(kNear); });
  }
  EXPECT_THAT(found, testing::Each(found.front()));
  EXPECT_EQ(soft.opens, 1);
}

TEST_F(RegistryTest, WhoHasAPortIsAskedWithoutADevice) {
  const auto devices = registry({kNear, kFar});
  EXPECT_TRUE(devices.has_port_unseen(PortSpace::tcp, kNear));
  EXPECT_FALSE(devices.has_port_unseen(PortSpace::udp, kNear));
  EXPECT_FALSE(devices.has_port_unseen(PortSpace::tcp, kFar));
  EXPECT_FALSE(registry({kNear}, {.rdma = true, .soft = false}).has_port_unseen(PortSpace::tcp, kNear));
  EXPECT_EQ(hca.opens, 0);
  EXPECT_EQ(soft.opens, 0);
}

}  // namespace
}  // namespace ringsock::verbs
