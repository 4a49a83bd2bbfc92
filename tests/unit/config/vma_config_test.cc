#include "core/config/vma_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ringsock::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

/// Settings made from an environment, and what their reading told.
class VmaConfigTest : public testing::Test {
 protected:
  VmaConfig load(const std::vector<std::string>& variables) {
    std::vector<const char*> environment;
    for (const std::string& variable : variables) environment.push_back(variable.c_str());
    environment.push_back(nullptr);
    lines_.clear();
    return load_vma_config(environment.data(), [this](const std::string& line) { lines_.push_back(line); });
  }
  /// The one message about `variable`.
  std::string complaint(const std::string& variable) {
    load({variable});
    EXPECT_EQ(lines_.size(), 1u) << variable;
    return lines_.empty() ? "" : lines_.front();
  }
  std::vector<std::string> lines_;
};

TEST_F(VmaConfigTest, DefaultsAreVmas) {
  const VmaConfig config = load({"PATH=/bin", "VMAX=1"});
  EXPECT_EQ(config.log_level, VmaLogLevel::info);
  EXPECT_EQ(config.config_file, "/etc/libvma.conf");
  EXPECT_EQ(config.stats_shmem_dir, "/tmp/");
  EXPECT_EQ(config.rx_poll, 100000);
  EXPECT_EQ(config.select_poll, 100000);
  EXPECT_EQ(config.rx_wre, 16000u);
  EXPECT_EQ(config.tx_wre, 2048u);
  EXPECT_TRUE(config.udp_3t_rules);
  EXPECT_TRUE(config.cq_moderation_enable);
  EXPECT_EQ(config.exception_handling, -1);
  EXPECT_EQ(config.tx_bufs_batch_udp, 8u);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(VmaConfigTest, NoEnvironmentIsAnEmptyOne) {
  const VmaConfig config = load_vma_config(nullptr, [](const std::string& line) { ADD_FAILURE() << line; });
  EXPECT_EQ(config.rx_poll, 100000);
}

TEST_F(VmaConfigTest, VariablesOfEveryKindAreRead) {
  const VmaConfig config = load({"VMA_TRACELEVEL=Warn", "VMA_LOG_COLORS=0", "VMA_RX_POLL=-1", "VMA_TX_BUFS= 77 ",
                                 "VMA_STATS_SHMEM_DIR=", "VMA_RING_ALLOCATION_LOGIC_RX=31",
                                 "VMA_INTERNAL_THREAD_AFFINITY=0,2-4", "VMA_LOG_CB_FUNC_PTR=0x7f00dead",
                                 "VMA_TCP_NODELAY=-5", "VMA_EXCEPTION_HANDLING=-2", "VMA_STATS_FILE=/tmp/a=b"});
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_EQ(config.log_level, VmaLogLevel::warning);
  EXPECT_FALSE(config.log_colors);
  EXPECT_EQ(config.rx_poll, -1);
  EXPECT_EQ(config.tx_bufs, 77u);
  EXPECT_EQ(config.stats_shmem_dir, "");
  EXPECT_EQ(config.ring_allocation_logic_rx, 31);
  EXPECT_EQ(config.internal_thread_affinity, "0,2-4");
  EXPECT_EQ(config.log_callback, 0x7f00deadu);
  EXPECT_TRUE(config.tcp_nodelay) << "any number but 0";
  EXPECT_EQ(config.exception_handling, -2);
  EXPECT_EQ(config.stats_file, "/tmp/a=b");
}

TEST_F(VmaConfigTest, EveryWrongValueHasOneMessageAndTheRestCounts) {
  const VmaConfig config = load({"VMA_RX_POLL=soon", "VMA_TX_BUFS=12x", "VMA_RX_BUFS=99999999999999999999",
                                 "VMA_MTU=", "VMA_LOG_COLORS=yes", "VMA_SELECT_POLL=7"});
  EXPECT_THAT(lines_, testing::UnorderedElementsAre(
                          "VMA_RX_POLL: \"soon\" is not a number; using 100000",
                          "VMA_TX_BUFS: \"12x\" has something after the number; using 200000",
                          "VMA_RX_BUFS: \"99999999999999999999\" is not within 1..2147483647; using 200000",
                          "VMA_MTU: is empty; using 0", "VMA_LOG_COLORS: \"yes\" is not a number; using 1"));
  EXPECT_EQ(config.rx_poll, 100000);
  EXPECT_EQ(config.select_poll, 7);
}

TEST_F(VmaConfigTest, RangesAreKept) {
  EXPECT_EQ(complaint("VMA_RX_POLL=100000001"), "VMA_RX_POLL: \"100000001\" is not within -1..100000000; using 100000");
  EXPECT_THAT(complaint("VMA_RX_POLL=-2"), HasSubstr("not within"));
  EXPECT_THAT(complaint("VMA_STATS_FD_NUM=1025"), HasSubstr("0..1024"));
  EXPECT_THAT(complaint("VMA_TX_WRE_BATCHING=0"), HasSubstr("1..64"));
  EXPECT_THAT(complaint("VMA_CQ_POLL_BATCH_MAX=129"), HasSubstr("1..128"));
  EXPECT_THAT(complaint("VMA_RX_PREFETCH_BYTES=31"), HasSubstr("32..2044"));
  EXPECT_EQ(complaint("VMA_RING_ALLOCATION_LOGIC_TX=11"),
            "VMA_RING_ALLOCATION_LOGIC_TX: 11 is not 0, 1, 10, 20, 30 or 31; using 0");
  EXPECT_THAT(complaint("VMA_MEM_ALLOC_TYPE=3"), HasSubstr("3 is not 0, 1 or 2; using 1"));
  EXPECT_THAT(complaint("VMA_THREAD_MODE=-1"), HasSubstr("-1 is not 0, 1, 2 or 3; using 1"));
}

TEST_F(VmaConfigTest, CpusAreAMaskOrAList) {
  for (const char* good : {"-1", "0", "0x3", "0XfF", "1,3", "0-3,8", "65535"}) {
    EXPECT_EQ(load({std::string("VMA_INTERNAL_THREAD_AFFINITY=") + good}).internal_thread_affinity, good);
    EXPECT_THAT(lines_, IsEmpty()) << good;
  }
  for (const char* wrong : {"", "0x", "0xg", "3-1", "1,", ",1", "1-", "-2", "a", "70000"})
    EXPECT_THAT(complaint(std::string("VMA_INTERNAL_THREAD_AFFINITY=") + wrong),
                HasSubstr("neither a mask 0x... nor a list"))
        << wrong;
}

TEST(VmaCpus, AreReadFromMasksAndLists) {
  EXPECT_THAT(cpus_of("-1"), IsEmpty());
  EXPECT_THAT(cpus_of("3"), ElementsAre(3u));
  EXPECT_THAT(cpus_of("0,2-4"), ElementsAre(0u, 2u, 3u, 4u));
  EXPECT_THAT(cpus_of("0x3"), ElementsAre(0u, 1u));
  EXPECT_THAT(cpus_of("0X80000000000000000000000000000000A"), ElementsAre(1u, 3u, 131u));
  EXPECT_THAT(cpus_of("0x0"), IsEmpty());
  EXPECT_THAT(cpus_of("1-"), IsEmpty());
  EXPECT_THAT(cpus_of("0x" + std::string(100'000, 'f')), testing::SizeIs(65536)) << "no more than there can be";
}

TEST_F(VmaConfigTest, UnknownLevelProfileAndAddressAreReported) {
  EXPECT_EQ(complaint("VMA_TRACELEVEL=loud"), "VMA_TRACELEVEL: \"loud\" is no log level; using INFO");
  EXPECT_EQ(complaint("VMA_SPEC=fast"), "VMA_SPEC: \"fast\" is no profile; using none");
  EXPECT_EQ(complaint("VMA_LOG_CB_FUNC_PTR=main"), "VMA_LOG_CB_FUNC_PTR: \"main\" is no address; using none");
  EXPECT_EQ(complaint("VMA_LOG_CB_FUNC_PTR=0x"), "VMA_LOG_CB_FUNC_PTR: \"0x\" is no address; using none");
}

TEST_F(VmaConfigTest, TcpHasNoSegmentsThatTheKernelDoesNotTakeAndAlwaysCongestionControl) {
  EXPECT_EQ(complaint("VMA_MSS=40"), "VMA_MSS: 40 is not within 88..32767; using 88");
  EXPECT_EQ(complaint("VMA_MSS=65000"), "VMA_MSS: 65000 is not within 88..32767; using 32767");
  EXPECT_EQ(complaint("VMA_TCP_CC_ALGO=2"), "VMA_TCP_CC_ALGO: rings never send without congestion control; using 1");
}

TEST_F(VmaConfigTest, MisspeltAndGoneVariablesAreReported) {
  EXPECT_EQ(complaint("VMA_RX_POL=1"), "\"VMA_RX_POL\" is no variable of this library");
  EXPECT_THAT(complaint("VMA_HUGETBL=1"),
              AllOf(StartsWith("VMA_HUGETBL has no effect"), HasSubstr("VMA_MEM_ALLOC_TYPE")));
}

std::vector<std::string> lines_without_effect(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  std::vector<std::string> lines;
  const VmaConfig config = load_vma_config(environment.data(), [](const std::string&) {});
  report_without_effect(environment.data(), config, [&](const std::string& line) { lines.push_back(line); });
  return lines;
}

TEST(VmaWithoutEffect, WhatIsSetAndDoesNotActIsNamedOnce) {
  EXPECT_THAT(lines_without_effect({"HOME=/", "VMA_RX_POLL=0", "VMA_RX_BUFS=100"}), IsEmpty());
  EXPECT_THAT(lines_without_effect({"VMA_NETLINK_TIMER=1", "VMA_BF=0", "VMA_TCP_NODELAY=1", "VMA_XDP=1"}),
              ElementsAre("no effect here: VMA_BF, VMA_NETLINK_TIMER; while TCP goes through the kernel: "
                          "VMA_TCP_NODELAY"));
  EXPECT_THAT(lines_without_effect({"VMA_TCP_NODELAY=1"}),
              ElementsAre("no effect here: while TCP goes through the kernel: VMA_TCP_NODELAY"));
  EXPECT_THAT(lines_without_effect({"VMA_TCP=on", "VMA_TCP_NODELAY=1", "VMA_TCP_CTL_THREAD=1"}),
              ElementsAre("no effect here: VMA_TCP_CTL_THREAD"));
}

TEST(VmaWithoutEffect, AValueThatAlwaysHoldsIsNoReasonForAWord) {
  EXPECT_THAT(lines_without_effect({"VMA_FORK=1", "VMA_CLOSE_ON_DUP2=2", "VMA_UDP_3T_RULES=0"}), IsEmpty());
  EXPECT_THAT(lines_without_effect({"VMA_FORK=0", "VMA_CLOSE_ON_DUP2=1", "VMA_UDP_3T_RULES=1"}),
              ElementsAre("no effect here: VMA_UDP_3T_RULES, VMA_FORK"));
}

TEST_F(VmaConfigTest, QueueLengthsThatAreTheDefaultCountWhenSomebodySaysSo) {
  EXPECT_FALSE(load({}).tx_wre_is_set);
  EXPECT_TRUE(load({"VMA_TX_WRE=2048"}).tx_wre_is_set);
  EXPECT_TRUE(load({"VMA_RX_WRE=16000"}).rx_wre_is_set);
}

TEST_F(VmaConfigTest, OldNamesCountUnlessTheNewOneIsThere) {
  EXPECT_EQ(load({"VMA_RX_SKIP_OS=7"}).rx_udp_poll_os_ratio, 7u);
  EXPECT_THAT(lines_, ElementsAre("VMA_RX_SKIP_OS is called VMA_RX_UDP_POLL_OS_RATIO now"));
  EXPECT_EQ(load({"VMA_RX_POLL_OS_RATIO=7", "VMA_RX_UDP_POLL_OS_RATIO=8"}).rx_udp_poll_os_ratio, 8u);
  EXPECT_EQ(lines_.size(), 1u);
}

// -- profiles

TEST_F(VmaConfigTest, ProfilesGoByNameOrNumber) {
  for (const char* name : {"latency", "LATENCY", "15"}) {
    const VmaConfig config = load({std::string("VMA_SPEC=") + name});
    EXPECT_EQ(config.spec, VmaProfile::latency) << name;
    EXPECT_EQ(config.rx_poll, -1);
    EXPECT_EQ(config.tx_wre, 256u);
    EXPECT_EQ(config.tx_bufs_batch_udp, 1u);
    EXPECT_EQ(config.internal_thread_affinity, "0");
    EXPECT_FALSE(config.cq_moderation_enable) << "polling never ends";
    EXPECT_EQ(config.cq_aim_max_count, 128u) << "half of the receive queue";
    EXPECT_THAT(lines_, IsEmpty());
  }
  EXPECT_EQ(load({"VMA_SPEC=multi_ring_latency"}).ring_allocation_logic_tx, 20);
  EXPECT_EQ(load({"VMA_SPEC=7750"}).log_level, VmaLogLevel::warning);
  EXPECT_EQ(load({"VMA_SPEC=0"}).spec, VmaProfile::none);
  EXPECT_EQ(load({"VMA_SPEC=-1"}).spec, VmaProfile::none);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("no profile")));
}

TEST_F(VmaConfigTest, VariablesGoBeforeTheProfileAndWrongOnesDoNot) {
  const VmaConfig config = load({"VMA_RX_WRE=512", "VMA_SPEC=ultra-latency", "VMA_SELECT_POLL=0", "VMA_TX_WRE=much"});
  EXPECT_EQ(config.rx_wre, 512u);
  EXPECT_EQ(config.select_poll, 0);
  EXPECT_EQ(config.rx_poll, -1);
  EXPECT_THAT(lines_, ElementsAre("VMA_TX_WRE: \"much\" is not a number; using 256"));
}

// -- what settings imply

TEST_F(VmaConfigTest, DetailsFollowTheLevelUnlessTheyAreChosen) {
  EXPECT_EQ(load({"VMA_TRACELEVEL=details"}).log_details, 0);
  EXPECT_EQ(load({"VMA_TRACELEVEL=4"}).log_details, 2);
  EXPECT_EQ(load({"VMA_TRACELEVEL=debug", "VMA_LOG_DETAILS=1"}).log_details, 1);
}

TEST_F(VmaConfigTest, WhoAsksForADefaultHasAskedForIt) {
  EXPECT_FALSE(load({}).rx_wre_is_set);
  EXPECT_TRUE(load({"VMA_RX_WRE=16000"}).rx_wre_is_set);
  EXPECT_TRUE(load({"VMA_RX_WRE=512"}).rx_wre_is_set);
  EXPECT_FALSE(load({}).rx_poll_is_set);
  EXPECT_TRUE(load({"VMA_RX_POLL=100000"}).rx_poll_is_set);
  EXPECT_FALSE(load({}).select_poll_is_set);
  EXPECT_TRUE(load({"VMA_SELECT_POLL=100000"}).select_poll_is_set);
  EXPECT_TRUE(load({"VMA_SPEC=latency"}).select_poll_is_set);
}

TEST_F(VmaConfigTest, DefaultsThatAreNotOursCountForWhoAsksForThem) {
  const VmaConfig none = load({"VMA_SPEC=rti"});
  EXPECT_FALSE(none.cq_moderation_is_set || none.cq_aim_is_set || none.tx_max_inline_is_set);
  EXPECT_FALSE(none.rx_poll_init_is_set || none.rx_prefetch_bytes_is_set || none.select_skip_os_is_set);
  EXPECT_TRUE(load({"VMA_CQ_MODERATION_COUNT=48"}).cq_moderation_is_set);
  EXPECT_TRUE(load({"VMA_CQ_AIM_INTERVAL_MSEC=250"}).cq_aim_is_set);
  EXPECT_TRUE(load({"VMA_RX_POLL_INIT=0"}).rx_poll_init_is_set);
  EXPECT_TRUE(load({"VMA_RX_PREFETCH_BYTES=256"}).rx_prefetch_bytes_is_set);
  EXPECT_TRUE(load({"VMA_SELECT_SKIP_OS=4"}).select_skip_os_is_set);
  EXPECT_TRUE(load({"VMA_SELECT_POLL_OS_FORCE=1"}).select_poll_os_ratio_is_set);
  EXPECT_TRUE(load({"VMA_SPEC=latency"}).select_skip_os_is_set) << "or whose profile does";
}

TEST_F(VmaConfigTest, SocketXtremeHasItsOwnQueues) {
  const VmaConfig config = load({"VMA_SOCKETXTREME=1", "VMA_RX_WRE=9000"});
  EXPECT_EQ(config.rx_wre, 1024u);
  EXPECT_EQ(config.gro_streams_max, 0u);
  EXPECT_EQ(config.progress_engine_interval, 0u);
}

TEST_F(VmaConfigTest, ForcedKernelPollingMeansAfterEveryLook) {
  const VmaConfig config = load({"VMA_SELECT_POLL_OS_FORCE=1"});
  EXPECT_EQ(config.select_poll_os_ratio, 1u);
  EXPECT_EQ(config.select_skip_os, 1u);
}

TEST_F(VmaConfigTest, ModerationIsOffWherePollingNeverEnds) {
  EXPECT_FALSE(load({"VMA_RX_POLL=-1"}).cq_moderation_enable);
  EXPECT_FALSE(load({"VMA_SELECT_POLL=-1", "VMA_CQ_MODERATION_ENABLE=1"}).cq_moderation_enable);
}

TEST_F(VmaConfigTest, ValuesThatDoNotGoTogetherAreRaisedAloud) {
  EXPECT_EQ(load({"VMA_TX_WRE=100"}).tx_wre, 128u);
  EXPECT_THAT(lines_, ElementsAre("VMA_TX_WRE: 100 is less than twice VMA_TX_WRE_BATCHING; using 128"));
  EXPECT_EQ(load({"VMA_TIMER_RESOLUTION_MSEC=500"}).tcp_timer_resolution_msec, 500u);
  EXPECT_THAT(lines_, ElementsAre(StartsWith("VMA_TCP_TIMER_RESOLUTION_MSEC: 100 is less than")));
}

TEST(VmaPath, HasTheProcessId) {
  EXPECT_EQ(with_process_id("/tmp/vma.%d.log", 77), "/tmp/vma.77.log");
  EXPECT_EQ(with_process_id("/tmp/%dvma%d", 7), "/tmp/7vma%d");
  EXPECT_EQ(with_process_id("/tmp/vma", 7), "/tmp/vma");
}

// -- levels

TEST(VmaLogLevels, HaveNamesAndOldNumbers) {
  const std::vector<std::pair<const char*, int>> cases{
      {"none", -1},   {"panic", 0},   {"0", 0},        {"error", 1},       {"1", 1}, {"warn", 2},
      {"WARNING", 2}, {"2", 2},       {"info", 3},     {"information", 3}, {"3", 3}, {"details", 4},
      {"debug", 5},   {"4", 5},       {"fine", 6},     {"func", 6},        {"5", 6}, {"finer", 7},
      {"func+", 7},   {"funcall", 7}, {"func_all", 7}, {"func-all", 7},    {"6", 7}, {"all", 8}};
  for (const auto& [text, number] : cases) {
    const auto level = parse_vma_log_level(text);
    ASSERT_TRUE(level) << text;
    EXPECT_EQ(static_cast<int>(*level), number) << text;
  }
  for (const char* wrong : {"", "7", "-1", "warnings", "in"}) EXPECT_FALSE(parse_vma_log_level(wrong)) << wrong;
}

}  // namespace
}  // namespace ringsock::config
