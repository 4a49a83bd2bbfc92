// What rsdevices says about real devices: a test for each sentence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/tools/fake_system.h"

namespace ringsock::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RdmaSurveyTest : public testing::Test {
 protected:
  Survey look() {
    Survey out;
    survey_rdma(system_, settings_, out);
    return out;
  }
  /// The only device's only obstacle.
  Finding obstacle() {
    const Survey survey = look();
    EXPECT_THAT(survey.rdma_obstacles, IsEmpty());
    if (survey.devices.size() != 1 || survey.devices[0].obstacles.size() != 1) {
      ADD_FAILURE() << survey_text(survey);
      return {};
    }
    EXPECT_FALSE(survey.is_any_usable());
    return survey.devices[0].obstacles[0];
  }
  Finding general_obstacle() {
    const Survey survey = look();
    if (survey.rdma_obstacles.size() != 1) {
      ADD_FAILURE() << survey_text(survey);
      return {};
    }
    EXPECT_FALSE(survey.is_any_usable());
    return survey.rdma_obstacles[0];
  }

  FakeSystem system_;
  Settings settings_ = default_settings();
};

TEST_F(RdmaSurveyTest, AWholeDeviceIsUsableAndDescribed) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.host_addresses.push_back({"eth9", "10.9.0.1", "", 0});
  const Survey survey = look();
  EXPECT_TRUE(survey.is_any_usable());
  EXPECT_THAT(survey.rdma_obstacles, IsEmpty());
  EXPECT_THAT(survey.rdma_costs, IsEmpty());
  ASSERT_EQ(survey.devices.size(), 1u);
  const DeviceReport& device = survey.devices[0];
  EXPECT_EQ(device.name, "mlx5_0");
  EXPECT_EQ(device.type, "RoCE");
  EXPECT_EQ(device.driver, "mlx5_core");
  EXPECT_THAT(device.obstacles, IsEmpty());
  ASSERT_EQ(device.ports.size(), 1u);
  EXPECT_EQ(device.ports[0].number, 1u);
  EXPECT_EQ(device.ports[0].state, "active");
  EXPECT_EQ(device.ports[0].physical, "LinkUp");
  EXPECT_EQ(device.ports[0].rate, "100 Gb/sec (4X EDR)");
  EXPECT_EQ(device.ports[0].network, "eth0");
  ASSERT_EQ(device.ports[0].addresses.size(), 1u) << "an address that RDMA CM binds to no device is none of its";
  EXPECT_EQ(device.ports[0].addresses[0].address, "10.7.0.1");
}

TEST_F(RdmaSurveyTest, ACardThatCarriesPacketsIsCalledSo) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.add_device("rxe0", "10.8.0.1");
  system_.verbs[0].carries_packets = true;
  const Survey survey = look();
  EXPECT_TRUE(survey.devices[0].carries_packets);
  EXPECT_FALSE(survey.devices[1].carries_packets);
  EXPECT_THAT(survey_text(survey), HasSubstr("10.7.0.1; libvma's packets, too\n"));
  EXPECT_THAT(survey_text(survey), HasSubstr("10.8.0.1\n"));
  EXPECT_THAT(survey_json(survey), HasSubstr("\"packets\": true"));
}

TEST_F(RdmaSurveyTest, TypesFollowNodeAndLinkLayer) {
  system_.add_device("a", "10.7.0.1");
  system_.add_device("b", "10.8.0.1");
  system_.add_device("c", "10.9.0.1", Transport::iwarp);
  system_.set_port("b", "link_layer", "InfiniBand");
  const Survey survey = look();
  ASSERT_EQ(survey.devices.size(), 3u);
  EXPECT_EQ(survey.devices[0].type, "RoCE");
  EXPECT_EQ(survey.devices[1].type, "InfiniBand");
  EXPECT_EQ(survey.devices[2].type, "iWARP");
}

TEST_F(RdmaSurveyTest, ASoftwareDeviceIsNamedByItsDescription) {
  system_.add_device("rxe0", "10.7.0.1");
  system_.links.clear();
  system_.files["/sys/class/infiniband/rxe0/node_desc"] = "rxe";
  EXPECT_EQ(look().devices.at(0).driver, "rxe");
}

TEST_F(RdmaSurveyTest, WithoutSysfsNothingCanBeFound) {
  system_.files.clear();
  const Finding finding = general_obstacle();
  EXPECT_EQ(finding.id, "no-sysfs");
  EXPECT_EQ(finding.remedy, "mount -t sysfs sysfs /sys");
}

TEST_F(RdmaSurveyTest, AKernelWithoutRdmaIsToldWithTheWayToSoftRoce) {
  const Finding finding = general_obstacle();
  EXPECT_EQ(finding.id, "no-rdma-support");
  EXPECT_THAT(finding.says, HasSubstr("no /sys/class/infiniband"));
  EXPECT_THAT(finding.remedy, HasSubstr("rdma link add rxe0 type rxe netdev INTERFACE"));
}

TEST_F(RdmaSurveyTest, AKernelWithRdmaAndNoDeviceIsTold) {
  system_.files["/sys/class/infiniband/something"] = "not a device";
  const Finding finding = general_obstacle();
  EXPECT_EQ(finding.id, "no-rdma-device");
  EXPECT_THAT(finding.remedy, HasSubstr("rdma dev set DEVICE netns NAME"));
}

TEST_F(RdmaSurveyTest, ASettingThatLeavesThemOutIsNamed) {
  system_.add_device("mlx5_0", "10.7.0.1");
  settings_.config.device = config::DeviceChoice::soft;
  settings_.device_source = "RINGSOCK_DEVICE";
  const Finding finding = general_obstacle();
  EXPECT_EQ(finding.id, "switched-off");
  EXPECT_THAT(finding.says, HasSubstr("RINGSOCK_DEVICE is \"soft\""));
  settings_.config.device = config::DeviceChoice::none;
  EXPECT_THAT(general_obstacle().says, HasSubstr("\"none\""));
  settings_.config.device = config::DeviceChoice::rdma;
  EXPECT_TRUE(look().is_any_usable());
}

TEST_F(RdmaSurveyTest, TheConnectionManagersFileMustBeThere) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.access_errors["/dev/infiniband/rdma_cm"] = ENOENT;
  const Finding finding = general_obstacle();
  EXPECT_EQ(finding.id, "no-device-file");
  EXPECT_EQ(finding.says, "/dev/infiniband/rdma_cm is missing");
  EXPECT_THAT(finding.remedy, HasSubstr("modprobe rdma_ucm"));
  EXPECT_THAT(finding.remedy, HasSubstr("--device=/dev/infiniband/rdma_cm"));
  EXPECT_THAT(look().devices.at(0).obstacles, IsEmpty()) << "whether it has addresses is not known";
}

TEST_F(RdmaSurveyTest, TheConnectionManagersFileMustBePermitted) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.access_errors["/dev/infiniband/rdma_cm"] = EACCES;
  const Finding finding = general_obstacle();
  EXPECT_EQ(finding.id, "no-permission");
  EXPECT_THAT(finding.says, HasSubstr("\"alice\" may not read and write /dev/infiniband/rdma_cm"));
  EXPECT_THAT(finding.remedy, HasSubstr("chmod 666 /dev/infiniband/rdma_cm"));
  EXPECT_THAT(finding.remedy, HasSubstr("docker run --device=/dev/infiniband/rdma_cm"));
}

TEST_F(RdmaSurveyTest, OtherFailuresOfADeviceFileAreTheKernelsWords) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.access_errors["/dev/infiniband/rdma_cm"] = EROFS;
  EXPECT_EQ(general_obstacle().says, "/dev/infiniband/rdma_cm: Read-only file system");
}

TEST_F(RdmaSurveyTest, ADeviceWithoutVerbsEntryWantsTheModule) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.files.erase("/sys/class/infiniband_verbs/uverbs0/ibdev");
  const Finding finding = obstacle();
  EXPECT_EQ(finding.id, "no-verbs");
  EXPECT_EQ(finding.remedy, "modprobe ib_uverbs");
}

TEST_F(RdmaSurveyTest, ADevicesFileMustBeThere) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.access_errors["/dev/infiniband/uverbs0"] = ENOENT;
  const Finding finding = obstacle();
  EXPECT_EQ(finding.id, "no-device-file");
  EXPECT_THAT(finding.remedy, HasSubstr("--device=/dev/infiniband/uverbs0"));
}

TEST_F(RdmaSurveyTest, ADevicesFileMustBePermittedAndOthersGoOn) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.add_device("mlx5_1", "10.8.0.1");
  system_.access_errors["/dev/infiniband/uverbs1"] = EACCES;
  const Survey survey = look();
  EXPECT_TRUE(survey.is_usable(survey.devices.at(0)));
  EXPECT_FALSE(survey.is_usable(survey.devices.at(1)));
  EXPECT_THAT(ids(survey.devices[1].obstacles), ElementsAre("no-permission"));
  EXPECT_THAT(survey.devices[1].obstacles[0].says, HasSubstr("/dev/infiniband/uverbs1"));
}

TEST_F(RdmaSurveyTest, ADeviceThatLibibverbsDoesNotListLacksItsProvider) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.verbs.clear();
  const Finding finding = obstacle();
  EXPECT_EQ(finding.id, "no-provider");
  EXPECT_THAT(finding.says, HasSubstr("mlx5_core"));
  EXPECT_THAT(finding.remedy, HasSubstr("ibverbs-providers"));
}

TEST_F(RdmaSurveyTest, ATransportWithoutConnectionsIsNotUsed) {
  system_.add_device("efa_0", "10.7.0.1", Transport::other);
  EXPECT_EQ(obstacle().id, "no-connections");
}

TEST_F(RdmaSurveyTest, AFailureToOpenIsToldAndAGroupsLimitRecognized) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.verbs[0].open_error = EIO;
  EXPECT_EQ(obstacle().id, "cannot-open");
  EXPECT_THAT(obstacle().says, HasSubstr("Input/output error"));
  EXPECT_THAT(obstacle().remedy, HasSubstr("dmesg"));
  system_.verbs[0].open_error = EAGAIN;
  EXPECT_THAT(obstacle().remedy, HasSubstr("rdma.max"));
}

TEST_F(RdmaSurveyTest, MemoryForAConnectionIsRegisteredAsATrial) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.verbs[0].register_error = ENOMEM;
  settings_.config.mem_default = 65536;
  settings_.config.wmem_default = 32768;
  const Finding finding = obstacle();
  EXPECT_EQ(system_.trial_bytes, 98304u);
  EXPECT_EQ(finding.id, "cannot-register");
  EXPECT_THAT(finding.says, HasSubstr("96 KiB"));
  EXPECT_THAT(finding.remedy, HasSubstr("ulimit -l"));
  system_.verbs[0].register_error = ENOSPC;
  EXPECT_THAT(obstacle().remedy, HasSubstr("rdma.max"));
}

TEST_F(RdmaSurveyTest, ALimitOfLockedMemoryIsSaidInConnections) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.limits[Limit::locked_memory] = 8 << 20;
  const Survey survey = look();
  EXPECT_TRUE(survey.is_any_usable());
  ASSERT_THAT(ids(survey.rdma_costs), ElementsAre("memlock-limited"));
  EXPECT_THAT(survey.rdma_costs[0].says, HasSubstr("is 8192 KiB: a process has room for about 32 connections"));
  EXPECT_THAT(survey.rdma_costs[0].remedy, HasSubstr("LimitMEMLOCK=infinity"));
  system_.limits[Limit::locked_memory] = 300 << 10;
  EXPECT_THAT(look().rdma_costs.at(0).says, HasSubstr("about 1 connection on"));
}

TEST_F(RdmaSurveyTest, ALimitBelowOneConnectionIsTheReasonForAllDevices) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.verbs[0].register_error = ENOMEM;
  system_.limits[Limit::locked_memory] = 64 << 10;
  const Finding finding = general_obstacle();
  EXPECT_EQ(finding.id, "memlock-too-small");
  EXPECT_THAT(finding.says, HasSubstr("is 64 KiB, a connection registers 256 KiB"));
  EXPECT_THAT(look().devices.at(0).obstacles, IsEmpty()) << "it need not be said twice";
}

TEST_F(RdmaSurveyTest, WhoMayLockMemoryHasNoLimit) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.limits[Limit::locked_memory] = 64 << 10;
  system_.set_capabilities("0000000000004000");
  EXPECT_TRUE(look().is_any_usable());
  EXPECT_THAT(look().rdma_costs, IsEmpty());
}

TEST_F(RdmaSurveyTest, ButNotInAContainersUserNamespace) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.limits[Limit::locked_memory] = 64 << 10;
  system_.set_capabilities("000001ffffffffff");
  system_.files["/proc/self/uid_map"] = "         0     100000      65536";
  EXPECT_EQ(general_obstacle().id, "memlock-too-small");
}

TEST_F(RdmaSurveyTest, APortThatIsDownIsSaidWithItsInterface) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.set_port("mlx5_0", "state", "1: DOWN");
  system_.set_port("mlx5_0", "phys_state", "3: Disabled");
  const Finding finding = obstacle();
  EXPECT_EQ(finding.id, "port-not-active");
  EXPECT_EQ(finding.says, "port 1 is not active: down, physical state Disabled");
  EXPECT_THAT(finding.remedy, HasSubstr("ip link set eth0 up"));
}

TEST_F(RdmaSurveyTest, AnUnknownInterfaceIsNotNamed) {
  system_.add_device("siw0", "", Transport::iwarp);
  system_.files.erase("/sys/class/infiniband/siw0/ports/1/gid_attrs/ndevs/0");
  EXPECT_EQ(obstacle().remedy, "ip addr add ADDRESS/BITS dev INTERFACE");
  system_.set_port("siw0", "state", "1: DOWN");
  EXPECT_EQ(obstacle().remedy, "Connect its cable, and set its network interface up");
}

TEST_F(RdmaSurveyTest, AnInfinibandPortWithLinkWaitsForItsSubnetManager) {
  system_.add_device("mlx5_0", "");
  system_.set_port("mlx5_0", "link_layer", "InfiniBand");
  system_.set_port("mlx5_0", "state", "2: INIT");
  EXPECT_THAT(obstacle().remedy, HasSubstr("opensm"));
}

TEST_F(RdmaSurveyTest, OneActivePortOfTwoIsEnough) {
  system_.add_device("mlx5_0", "10.7.0.1");
  system_.files["/sys/class/infiniband/mlx5_0/ports/2/state"] = "1: DOWN";
  const Survey survey = look();
  EXPECT_TRUE(survey.is_any_usable());
  ASSERT_EQ(survey.devices.at(0).ports.size(), 2u);
  EXPECT_EQ(survey.devices[0].ports[1].state, "down");
}

TEST_F(RdmaSurveyTest, ADeviceWithoutPortsIsNotUsed) {
  system_.add_device("mlx5_0", "");
  std::erase_if(system_.files, [](const auto& file) { return file.first.find("/ports/") != std::string::npos; });
  EXPECT_EQ(obstacle().id, "no-port");
}

TEST_F(RdmaSurveyTest, ADeviceWithoutAddressIsToldWhereItGoes) {
  system_.add_device("mlx5_0", "");
  const Finding finding = obstacle();
  EXPECT_EQ(finding.id, "no-address");
  EXPECT_EQ(finding.remedy, "ip addr add ADDRESS/BITS dev eth0");
  system_.set_port("mlx5_0", "link_layer", "InfiniBand");
  EXPECT_THAT(obstacle().remedy, HasSubstr("ib_ipoib"));
}

}  // namespace
}  // namespace ringsock::tools
