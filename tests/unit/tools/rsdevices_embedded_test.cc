// What rsdevices says about the embedded device: a test for each sentence; and the real system's answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit/tools/fake_system.h"

namespace ringsock::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class EmbeddedSurveyTest : public testing::Test {
 protected:
  DeviceReport look() { return survey_embedded(system_, settings_); }
  Finding only(const Findings& findings) {
    if (findings.size() == 1) return findings[0];
    ADD_FAILURE() << findings.size() << " findings";
    return {};
  }
  Finding obstacle() { return only(look().obstacles); }
  Finding cost() {
    EXPECT_THAT(look().obstacles, IsEmpty());
    return only(look().costs);
  }

  FakeSystem system_;
  Settings settings_ = [] {
    Settings settings = default_settings();
    settings.config.iomap_share = 1;
    return settings;
  }();
};

TEST_F(EmbeddedSurveyTest, WithEverythingThereNothingIsToSay) {
  const DeviceReport device = look();
  EXPECT_EQ(device.name, "embedded");
  EXPECT_EQ(device.kind, Kind::soft);
  EXPECT_THAT(device.obstacles, IsEmpty());
  EXPECT_THAT(device.costs, IsEmpty());
}

TEST_F(EmbeddedSurveyTest, ASettingThatLeavesItOutIsNamed) {
  settings_.config.device = config::DeviceChoice::rdma;
  EXPECT_EQ(obstacle().id, "switched-off");
  EXPECT_THAT(obstacle().says, HasSubstr("/etc/rdma/rsocket/device is \"rdma\""));
  settings_.config.device = config::DeviceChoice::none;
  EXPECT_THAT(obstacle().says, HasSubstr("\"none\""));
  settings_.config.device = config::DeviceChoice::soft;
  EXPECT_THAT(look().obstacles, IsEmpty());
}

TEST_F(EmbeddedSurveyTest, ItNeedsSealedMemory) {
  system_.feature_errors[KernelFeature::sealed_memfd] = EPERM;
  EXPECT_EQ(obstacle().id, "no-memfd");
  EXPECT_THAT(obstacle().says, HasSubstr("memfd_create(2), or sealing its files, fails (Operation not permitted)"));
  EXPECT_THAT(obstacle().remedy, HasSubstr("seccomp"));
}

TEST_F(EmbeddedSurveyTest, ItNeedsUnixSockets) {
  system_.feature_errors[KernelFeature::unix_sockets] = EAFNOSUPPORT;
  EXPECT_EQ(obstacle().id, "no-unix-sockets");
}

TEST_F(EmbeddedSurveyTest, WithoutMembarrierMessagesCostAFence) {
  system_.feature_errors[KernelFeature::membarrier] = ENOSYS;
  EXPECT_EQ(cost().id, "no-membarrier");
  EXPECT_THAT(cost().says, HasSubstr("5 to 100 ns"));
}

TEST_F(EmbeddedSurveyTest, WhatSharingNeedsIsOnlyToldToThoseWhoAskForIt) {
  system_.feature_errors[KernelFeature::page_sharing] = EINVAL;
  EXPECT_EQ(cost().id, "no-page-sharing");
  settings_.config.iomap_share = 0;
  EXPECT_THAT(look().costs, IsEmpty());
}

TEST_F(EmbeddedSurveyTest, SharingNeedsAKernelThatPopulates) {
  system_.feature_errors[KernelFeature::page_sharing] = EINVAL;
  system_.feature_errors[KernelFeature::write_protection] = EINVAL;
  EXPECT_EQ(cost().id, "no-page-sharing");
  EXPECT_THAT(cost().remedy, HasSubstr("5.14"));
}

TEST_F(EmbeddedSurveyTest, SharingInThreadedProgramsNeedsUserfaultfd) {
  for (const int refusal : {EPERM, EACCES}) {
    system_.feature_errors[KernelFeature::write_protection] = refusal;
    EXPECT_EQ(cost().id, "no-userfaultfd");
    EXPECT_THAT(cost().says, HasSubstr("; in programs with several threads riowrite()"));
    EXPECT_THAT(cost().remedy, HasSubstr("sysctl vm.unprivileged_userfaultfd=1"));
  }
  system_.feature_errors[KernelFeature::write_protection] = ENOSYS;
  EXPECT_THAT(cost().remedy, HasSubstr("CONFIG_USERFAULTFD"));
}

TEST_F(EmbeddedSurveyTest, StrictOvercommitSwitchesSharingOff) {
  system_.files["/proc/sys/vm/overcommit_memory"] = "2";
  EXPECT_EQ(cost().id, "no-overcommit");
  EXPECT_EQ(cost().remedy, "sysctl vm.overcommit_memory=0");
}

TEST_F(EmbeddedSurveyTest, ALimitOfFileSizesSwitchesSharingOff) {
  system_.limits[Limit::file_size] = 1 << 30;
  EXPECT_EQ(cost().id, "file-size-limited");
}

TEST_F(EmbeddedSurveyTest, YamaKeepsPeersFromWriting) {
  system_.files["/proc/sys/kernel/yama/ptrace_scope"] = "1";
  EXPECT_EQ(cost().id, "ptrace-scope");
  EXPECT_THAT(cost().says, HasSubstr("kernel.yama.ptrace_scope is 1"));
}

TEST_F(EmbeddedSurveyTest, ASandboxMayKeepPeersFromWriting) {
  system_.feature_errors[KernelFeature::peer_writes] = ENOSYS;
  EXPECT_EQ(cost().id, "no-process-vm");
}

TEST_F(EmbeddedSurveyTest, OtherUsersNeedToSeeWhoOwnsAPort) {
  system_.feature_errors[KernelFeature::port_owners] = ENOENT;
  EXPECT_EQ(cost().id, "no-sock-diag");
  EXPECT_THAT(cost().says, HasSubstr("under librspreload go by kernel TCP"));
  EXPECT_THAT(cost().remedy, HasSubstr("modprobe"));
}

TEST_F(EmbeddedSurveyTest, ServersNeedToSeeWhoHasAName) {
  system_.feature_errors[KernelFeature::port_names] = ENOENT;
  EXPECT_EQ(cost().id, "no-unix-diag");
  EXPECT_THAT(cost().says, HasSubstr("SO_REUSEADDR"));
  EXPECT_THAT(cost().remedy, HasSubstr("unix_diag"));
}

TEST_F(EmbeddedSurveyTest, OlderKernelsDoNotShowBoundSockets) {
  system_.release = "6.7.12-amd64";
  EXPECT_EQ(cost().id, "kernel-before-6.8");
  EXPECT_THAT(cost().says, HasSubstr("Linux 6.7.12-amd64"));
  for (const char* release : {"6.8.0", "6.12.1-rc1", "7.0"}) {
    system_.release = release;
    EXPECT_THAT(look().costs, IsEmpty()) << release;
  }
}

TEST_F(EmbeddedSurveyTest, AKernelThatIsTooOldIsNamed) {
  system_.release = "5.4.0";
  EXPECT_THAT(ids(look().costs), ElementsAre("kernel-before-6.8", "kernel-too-old"));
  system_.release = "5.10.0";
  EXPECT_THAT(ids(look().costs), ElementsAre("kernel-before-6.8"));
}

TEST_F(EmbeddedSurveyTest, FewDescriptorsKeepLessMemory) {
  system_.limits[Limit::descriptors] = 256;
  EXPECT_EQ(cost().id, "few-descriptors");
  EXPECT_THAT(cost().says, HasSubstr("256 descriptors"));
  system_.limits[Limit::descriptors] = 1024;
  EXPECT_THAT(look().costs, IsEmpty());
}

TEST_F(EmbeddedSurveyTest, WithoutDevShmRsstatIsBlind) {
  system_.access_errors["/dev/shm"] = ENOENT;
  EXPECT_EQ(cost().id, "no-dev-shm");
  EXPECT_THAT(cost().says, HasSubstr("rsstat"));
}

TEST(RealSystem, ReadsListsAndJudgesFiles) {
  const auto system = real_system();
  EXPECT_EQ(system->read("/proc/sys/kernel/ostype"), "Linux");
  EXPECT_EQ(system->read("/proc/no/such/file"), std::nullopt);
  EXPECT_THAT(system->list("/proc/self"), testing::IsSupersetOf({"exe", "fd", "status"}));
  EXPECT_THAT(system->list("/proc/no/such/directory"), IsEmpty());
  EXPECT_THAT(system->link_name("/proc/self/exe"), HasSubstr("tools_test"));
  EXPECT_EQ(system->link_name("/proc/self/status"), "");
  EXPECT_EQ(system->access_error("/dev/null"), 0);
  EXPECT_EQ(system->access_error("/dev/no-such-device"), ENOENT);
  EXPECT_FALSE(system->kernel_release().empty());
  EXPECT_FALSE(system->user().empty());
}

/// As in a container, whose control group refuses a device that everybody may open by its mode.
TEST(RealSystem, OpensADeviceFileToKnow) {
  if (::access("/dev/tty", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/tty that everybody may open";
  const auto without_terminal = [] {
    ::setsid();
    ::_exit(real_system()->access_error("/dev/tty") == ENXIO ? 0 : 1);
  };
  EXPECT_EXIT(without_terminal(), testing::ExitedWithCode(0), "");
}

TEST(RealSystem, TellsLimits) {
  const auto system = real_system();
  rlimit saved{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &saved), 0);
  rlimit lower = saved;
  lower.rlim_cur = 200;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  EXPECT_EQ(system->limit(Limit::descriptors), 200u);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &saved), 0);
}

/// What the tests of the embedded device need anyway.
TEST(RealSystem, TheKernelHasWhatTheEmbeddedDeviceNeeds) {
  EXPECT_EQ(ask_kernel(KernelFeature::sealed_memfd), 0);
  EXPECT_EQ(ask_kernel(KernelFeature::unix_sockets), 0);
}

TEST(RealSystem, AFeatureThatCannotBeTriedIsRefusedWithItsError) {
  rlimit saved{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &saved), 0);
  rlimit none = saved;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const int memfd = ask_kernel(KernelFeature::sealed_memfd);
  const int socket = ask_kernel(KernelFeature::unix_sockets);
  const int sharing = ask_kernel(KernelFeature::page_sharing);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &saved), 0);
  EXPECT_EQ(memfd, EMFILE);
  EXPECT_EQ(socket, EMFILE);
  EXPECT_EQ(sharing, EMFILE);
}

}  // namespace
}  // namespace ringsock::tools
