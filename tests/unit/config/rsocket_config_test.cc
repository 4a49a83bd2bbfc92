#include "core/config/rsocket_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/config/option_file.h"

namespace ringsock::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A directory of option files that goes away with the test.
class RsocketConfigTest : public testing::Test {
 protected:
  RsocketConfigTest() {
    std::string name = testing::TempDir() + "/rsocket_config_XXXXXX";
    directory_ = ::mkdtemp(name.data());
  }
  ~RsocketConfigTest() override { std::filesystem::remove_all(directory_); }

  [[nodiscard]] std::string path(const std::string& name) const { return directory_ + "/" + name; }
  void write(const std::string& name, const std::string& text) { std::ofstream(path(name)) << text; }
  RsocketConfig load(const RsocketOverrides& overrides = {}) {
    lines_.clear();
    return load_rsocket_config(directory_.c_str(), overrides, [&](const std::string& line) { lines_.push_back(line); });
  }

  std::string directory_;
  std::vector<std::string> lines_;
};

TEST_F(RsocketConfigTest, MissingFilesMeanDefaultsAndNoWord) {
  const RsocketConfig config = load();
  EXPECT_EQ(config.polling_time, 10u);
  EXPECT_EQ(config.wake_up_interval, 500);
  EXPECT_EQ(config.inline_default, 64);
  EXPECT_EQ(config.sqsize_default, 384);
  EXPECT_EQ(config.rqsize_default, 384);
  EXPECT_EQ(config.mem_default, 131072u);
  EXPECT_EQ(config.wmem_default, 131072u);
  EXPECT_EQ(config.iomap_size, 0);
  EXPECT_EQ(config.iomap_share, 0);
  EXPECT_EQ(config.device, DeviceChoice::automatic);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(RsocketConfigTest, MissingDirectoryMeansDefaultsAndNoWord) {
  directory_ += "/absent";
  EXPECT_EQ(load().polling_time, 10u);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(RsocketConfigTest, DirectoryThatIsAFileIsReportedOnce) {
  write("file", "");
  const std::string file = path("file");
  const RsocketConfig config =
      load_rsocket_config(file.c_str(), {}, [&](const std::string& line) { lines_.push_back(line); });
  EXPECT_EQ(config.mem_default, 131072u);
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr(file), HasSubstr("Not a directory"), HasSubstr("defaults"))));
}

TEST_F(RsocketConfigTest, EveryFileIsRead) {
  write("polling_time", "4294967295");
  write("wake_up_interval", "-1\n");
  write("inline_default", " 0 \n");
  write("sqsize_default", "16\n");
  write("rqsize_default", "65534\n");
  write("mem_default", "+4096\n");
  write("wmem_default", "2048\n");
  write("iomap_size", "128\n");
  write("device", "soft\n");
  const RsocketConfig config = load();
  EXPECT_EQ(config.polling_time, 4294967295u);
  EXPECT_EQ(config.wake_up_interval, -1);
  EXPECT_EQ(config.inline_default, 0);
  EXPECT_EQ(config.sqsize_default, 16);
  EXPECT_EQ(config.rqsize_default, 65534);
  EXPECT_EQ(config.mem_default, 4096u);
  EXPECT_EQ(config.wmem_default, 2048u);
  EXPECT_EQ(config.iomap_size, 128);
  EXPECT_EQ(config.device, DeviceChoice::soft);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(RsocketConfigTest, WhatTheEnvironmentSaysGoesBeforeTheFiles) {
  write("device", "soft");
  write("polling_time", "7");
  ::unsetenv("RINGSOCK_POLLING_TIME");
  ::setenv("RINGSOCK_DEVICE", "rdma", 1);
  EXPECT_STREQ(to_string(load(environment_overrides()).device), "rdma");
  EXPECT_EQ(load(environment_overrides()).polling_time, 7u);
  ::setenv("RINGSOCK_DEVICE", "ib", 1);
  ::setenv("RINGSOCK_POLLING_TIME", "20", 1);
  const RsocketConfig config = load(environment_overrides());
  ::unsetenv("RINGSOCK_DEVICE");
  ::unsetenv("RINGSOCK_POLLING_TIME");
  EXPECT_EQ(config.polling_time, 20u);
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr("RINGSOCK_DEVICE"), HasSubstr("using soft"))));
}

TEST_F(RsocketConfigTest, CommentsAndBlankLinesDoNotCount) {
  write("sqsize_default", "# queue length\n\n  100 # messages\n# end");
  EXPECT_EQ(load().sqsize_default, 100);
  EXPECT_THAT(lines_, IsEmpty());
}

struct BadValue {
  const char* description;
  const char* file;
  const char* text;
  const char* expected;  ///< part of the line
};

class BadValues : public RsocketConfigTest, public testing::WithParamInterface<BadValue> {};

TEST_P(BadValues, AreReportedInOneLineWithFileValueAndDefault) {
  write(GetParam().file, GetParam().text);
  const RsocketConfig config = load();
  EXPECT_EQ(config.sqsize_default, 384);
  EXPECT_EQ(config.mem_default, 131072u);
  EXPECT_EQ(config.wmem_default, 131072u);
  EXPECT_EQ(config.device, DeviceChoice::automatic);
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr(path(GetParam().file)), HasSubstr(GetParam().expected),
                                        HasSubstr("using the default"))));
  EXPECT_EQ(lines_.front().find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    RsocketConfig, BadValues,
    testing::Values(BadValue{"Empty", "sqsize_default", "", "is empty; using the default 384"},
                    BadValue{"OnlyAComment", "sqsize_default", "# 12\n", "is empty"},
                    BadValue{"NotANumber", "sqsize_default", "many\n", "\"many\" is not a number"},
                    BadValue{"Garbage", "sqsize_default", "\x01\xff\n", "\"\?\?\" is not a number"},
                    BadValue{"TrailingText", "sqsize_default", "100k\n", "\"100k\" has something after"},
                    BadValue{"TwoNumbers", "sqsize_default", "100\n200\n", "\"100?200\" has something after"},
                    BadValue{"Fraction", "sqsize_default", "100.5", "\"100.5\" has something after"},
                    BadValue{"TooSmall", "sqsize_default", "15", "\"15\" is not within 16..65534"},
                    BadValue{"TooLarge", "sqsize_default", "65535", "\"65535\" is not within 16..65534"},
                    BadValue{"Negative", "mem_default", "-4096", "\"-4096\" is not within 1..4294967294"},
                    BadValue{"Wraps64Bits", "mem_default", "18446744073709551617", "is not within"},
                    BadValue{"SmallSendBuffer", "wmem_default", "2047", "\"2047\" is not within 2048..4294967295"},
                    BadValue{"UnknownDevice", "device", "mlx5_0\n", "\"mlx5_0\" is not one of auto|rdma|soft|none"},
                    BadValue{"EmptyDevice", "device", "\n", "is empty; using the default auto"}),
    [](const auto& info) { return info.param.description; });

TEST_F(RsocketConfigTest, WhatIsNoRegularFileIsReported) {
  std::filesystem::create_directory(path("mem_default"));
  ASSERT_EQ(::mkfifo(path("polling_time").c_str(), 0600), 0);
  load();
  EXPECT_THAT(lines_, testing::UnorderedElementsAre(HasSubstr("mem_default: cannot be read"),
                                                    HasSubstr("polling_time: cannot be read")));
}

TEST_F(RsocketConfigTest, HugeFileIsReported) {
  write("mem_default", std::string(kMaxFileBytes + 1, '1'));
  EXPECT_EQ(load().mem_default, 131072u);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("File too large")));
}

TEST_F(RsocketConfigTest, FileWithoutPermissionIsReported) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
  write("mem_default", "4096");
  ASSERT_EQ(::chmod(path("mem_default").c_str(), 0), 0);
  EXPECT_EQ(load().mem_default, 131072u);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("Permission denied")));
}

TEST_F(RsocketConfigTest, MaxEventsIsAcceptedAndIgnored) {
  write("max_events", "nonsense");
  load();
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(RsocketConfigTest, OddReceiveBufferIsRoundedUp) {
  write("mem_default", "4097");
  EXPECT_EQ(load().mem_default, 4098u);
  write("mem_default", "4294967294");
  EXPECT_EQ(load().mem_default, 4294967294u);
}

TEST_F(RsocketConfigTest, IomapSizeIsRoundedToWhatTheWireCanSay) {
  const std::vector<std::pair<std::string, int>> cases{{"128", 128}, {"129", 128},  {"255", 128},
                                                       {"256", 256}, {"1000", 768}, {"32512", 32512}};
  for (const auto& [text, expected] : cases) {
    write("iomap_size", text);
    EXPECT_EQ(load().iomap_size, expected) << text;
    EXPECT_THAT(lines_, IsEmpty());
  }
}

TEST_F(RsocketConfigTest, OverrideGoesBeforeTheFile) {
  write("device", "rdma");
  EXPECT_EQ(load({.device = "none"}).device, DeviceChoice::none);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(RsocketConfigTest, WrongOverrideIsReportedAndTheFileCounts) {
  write("device", "rdma");
  EXPECT_EQ(load({.device = "fast", .device_name = "RINGSOCK_DEVICE"}).device, DeviceChoice::rdma);
  EXPECT_THAT(lines_, ElementsAre("RINGSOCK_DEVICE: \"fast\" is not one of auto|rdma|soft|none; using rdma"));
}

TEST_F(RsocketConfigTest, PollingTimeCanBeOverridden) {
  write("polling_time", "20");
  EXPECT_EQ(load({.polling_time = "0"}).polling_time, 0u);
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_EQ(load({.polling_time = "long", .polling_time_name = "RINGSOCK_POLLING_TIME"}).polling_time, 20u);
  EXPECT_THAT(lines_, ElementsAre("RINGSOCK_POLLING_TIME: \"long\" is not a number; using 20"));
}

TEST(Printable, CutsLongValues) { EXPECT_EQ(printable(std::string(50, 'x')), "\"" + std::string(40, 'x') + "...\""); }

}  // namespace
}  // namespace ringsock::config
