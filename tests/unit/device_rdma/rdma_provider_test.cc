// Which addresses the real devices are asked for, and what it costs where there are none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "core/device/rdma/rdma_devices.h"
#include "core/device/rdma/rdma_provider.h"
#include "tests/unit/device_rdma/fake_rdma.h"

namespace ringsock::rdma {
namespace {

const SocketAddress kAnywhere = SocketAddress::wildcard(AF_INET, 80);

class RdmaProviderTest : public testing::Test {
 protected:
  FakeRdma fake_;
  std::unique_ptr<verbs::DeviceProvider> provider_ = make_rdma_provider({}, FakeRdma::calls());
};

TEST_F(RdmaProviderTest, WithoutAConnectionManagerCostsOneLookASecond) {
  fake_.file_errors["/dev/infiniband/rdma_cm"] = ENOENT;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(provider_->reaches(kAnywhere));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "not worth a word";
  EXPECT_LE(fake_.files_tried, 2) << "more than one a second";
  EXPECT_EQ(fake_.list_calls, 0);
}

TEST_F(RdmaProviderTest, WithoutADeviceReachesNothing) {
  EXPECT_FALSE(provider_->reaches(kAnywhere));
  EXPECT_EQ(provider_->open().error().code, ENODEV);
}

TEST_F(RdmaProviderTest, WithoutPermissionReachesNothingAndSaysSoOnce) {
  fake_.add_device("rxe0", "10.7.0.1");
  for (const char* path : {"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"}) {
    for (const int error : {EACCES, EPERM}) {
      fake_.file_errors = {{path, error}};
      RdmaDevices devices(FakeRdma::calls());
      testing::internal::CaptureStderr();
      EXPECT_FALSE(devices.present());
      const std::string said = testing::internal::GetCapturedStderr();
      EXPECT_NE(said.find(std::string("not used: cannot open ") + path + ": "), std::string::npos) << said;
      EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    }
  }
}

TEST_F(RdmaProviderTest, WhereTheyAreRequiredTheirAbsenceIsWorthALine) {
  const auto say_why_not = [](RdmaUse use) {
    RdmaDevices devices(FakeRdma::calls(), std::move(use));
    testing::internal::CaptureStderr();
    EXPECT_FALSE(devices.present());
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(say_why_not({}), "");
  EXPECT_NE(say_why_not({.watch = {}, .required = true}).find("RDMA devices are not used: there is none"),
            std::string::npos);
  fake_.file_errors["/dev/infiniband/rdma_cm"] = ENOENT;
  EXPECT_EQ(say_why_not({}), "");
  EXPECT_NE(say_why_not({.watch = {}, .required = true}).find("/dev/infiniband/rdma_cm: No such file or directory"),
            std::string::npos);
}

TEST_F(RdmaProviderTest, WhereALibraryIsMissingTheirAbsenceIsToldOnce) {
  fake_.add_device("rxe0", "10.7.0.1");
  fake_.missing_library = "librdmacm.so.1: cannot open shared object file: No such file or directory";
  RdmaDevices devices(FakeRdma::calls());
  testing::internal::CaptureStderr();
  EXPECT_FALSE(devices.present());
  EXPECT_EQ(devices.open_packet_port(1).error().code, ELIBACC);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("RDMA devices are not used: " + fake_.missing_library), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_EQ(fake_.list_calls, 0);
}

TEST_F(RdmaProviderTest, WithoutAConnectionManagerNoLibraryIsMissed) {
  fake_.file_errors["/dev/infiniband/rdma_cm"] = ENOENT;
  fake_.missing_library = "librdmacm.so.1: cannot open";
  testing::internal::CaptureStderr();
  EXPECT_FALSE(provider_->reaches(kAnywhere));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(RdmaProviderTest, OneDeviceThatMayNotBeOpenedLeavesTheOthers) {
  fake_.add_device("rxe0", "10.7.0.1");
  fake_.add_device("siw0", "10.8.0.1", IBV_TRANSPORT_IWARP);
  fake_.file_errors["/dev/infiniband/uverbs1"] = EACCES;
  testing::internal::CaptureStderr();
  EXPECT_TRUE(provider_->reaches(kAnywhere));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("RDMA device siw0 is not used"), std::string::npos);
}

TEST_F(RdmaProviderTest, IwarpDevicesAreLeftOutWhereTheirPortsAreTheKernels) {
  fake_.add_device("siw0", "10.8.0.1", IBV_TRANSPORT_IWARP);
  const SocketAddress iwarp = SocketAddress::v4(0x0a080001, 0);
  RdmaDevices all(FakeRdma::calls());
  EXPECT_TRUE(all.present());
  EXPECT_TRUE(all.owns(iwarp));
  RdmaDevices without(FakeRdma::calls(), {.watch = {}, .iwarp = false});
  EXPECT_FALSE(without.present());
  EXPECT_FALSE(without.owns(iwarp));
  EXPECT_EQ(without.open_first().error().code, ENODEV);
  fake_.add_device("rxe0", "10.7.0.1");
  const auto one = std::make_shared<RdmaDevices>(FakeRdma::calls(), RdmaUse{.watch = {}, .iwarp = false});
  EXPECT_TRUE(one->present());
  auto opened = one->open_first();
  ASSERT_TRUE(opened);
  EXPECT_STREQ((*opened)->name(), "rxe0");
}

TEST_F(RdmaProviderTest, ADeviceThatCannotBeOpenedIsPassedOn) {
  fake_.add_device("rxe0", "127.0.0.2");
  fake_.open_error = ENOENT;
  EXPECT_EQ(provider_->open().error().code, ENOENT);
}

TEST_F(RdmaProviderTest, ListensAnywhereButNotOnTheLoopbackAddress) {
  fake_.add_device("rxe0", "127.0.0.1");
  EXPECT_TRUE(provider_->reaches(kAnywhere));
  EXPECT_FALSE(provider_->reaches(SocketAddress::v4(INADDR_LOOPBACK, 80)));
}

TEST_F(RdmaProviderTest, OpensADeviceOnceForAllThatUseIt) {
  fake_.add_device("rxe0", "127.0.0.2");
  auto first = provider_->open();
  auto second = provider_->open();
  ASSERT_TRUE(first && second);
  EXPECT_STREQ((*first)->name(), "rxe0");
  EXPECT_EQ(&(*first)->context(), &(*second)->context());
}

class RdmaDevicesTest : public testing::Test {
 protected:
  FakeRdma fake_;
  std::shared_ptr<RdmaDevices> devices_ = std::make_shared<RdmaDevices>(FakeRdma::calls());
};

TEST_F(RdmaDevicesTest, OwnWhatTheConnectionManagerBindsToADevice) {
  fake_.add_device("rxe0", "10.7.0.1");
  EXPECT_TRUE(devices_->owns(SocketAddress::v4(0x0a070001, 80)));
  EXPECT_FALSE(devices_->owns(SocketAddress::v4(0x0a070002, 80)));
  fake_.failing = {"bind_addr"};
  EXPECT_FALSE(devices_->owns(SocketAddress::v4(0x0a070003, 80)));
  // Nothing stays of the question, and the answer is remembered.
  EXPECT_EQ(fake_.ids().size(), 0u);
  EXPECT_EQ(fake_.live_channels(), 0u);
  EXPECT_TRUE(devices_->owns(SocketAddress::v4(0x0a070001, 81)));
}

TEST_F(RdmaDevicesTest, FindTheDeviceOfAContextByItsName) {
  fake_.add_device("rxe0", "10.7.0.1");
  ibv_device& second = fake_.add_device("siw0", "10.8.0.1", IBV_TRANSPORT_IWARP);
  ibv_context librdmacms{};
  librdmacms.device = &second;
  auto device = devices_->device_of(librdmacms);
  ASSERT_TRUE(device);
  EXPECT_STREQ((*device)->name(), "siw0");
  EXPECT_NE(&(*device)->context(), &librdmacms);
  EXPECT_EQ(*devices_->device_of(librdmacms), *device);
  ibv_device gone{};
  librdmacms.device = &gone;
  EXPECT_EQ(devices_->device_of(librdmacms).error().code, ENODEV);
}

}  // namespace
}  // namespace ringsock::rdma
