#include "core/config/vma_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/base/log.h"

namespace ringsock::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

constexpr VmaLogStamp kStamp{std::chrono::microseconds(1500), 7, 8};

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::pair<int, std::string>> g_taken;
void take_line(int level, const char* line) { g_taken.emplace_back(level, line); }
void take_core_line(LogLevel level, const char* text) { take_line(static_cast<int>(level), text); }

/// A file for the log, and settings that name it.
class VmaLogTest : public testing::Test {
 protected:
  VmaLogTest() {
    std::string name = testing::TempDir() + "vma_log.XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
    config_.log_file = directory_ + "/%d.log";
    path_ = directory_ + "/" + std::to_string(::getpid()) + ".log";
    g_taken.clear();
  }
  ~VmaLogTest() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
  std::string path_;
  VmaConfig config_;
};

TEST(VmaLogLine, BeginsWithWhatIsAskedFor) {
  const auto line = [](int details) { return vma_log_line(VmaLogLevel::warning, "text", details, kStamp, false); };
  EXPECT_EQ(line(0), " VMA WARNING: text\n");
  EXPECT_EQ(line(1), " Tid: 8 VMA WARNING: text\n");
  EXPECT_EQ(line(2), " Pid: 7 Tid: 8 VMA WARNING: text\n");
  EXPECT_EQ(line(3), " Time: 1.500 Pid: 7 Tid: 8 VMA WARNING: text\n");
}

TEST(VmaLogLine, HasColorsBySeverity) {
  EXPECT_EQ(vma_log_line(VmaLogLevel::error, "text", 0, kStamp, true), "\033[0;31m VMA ERROR: text\033[0m\n");
  EXPECT_THAT(vma_log_line(VmaLogLevel::warning, "text", 0, kStamp, true), HasSubstr("35m"));
  EXPECT_EQ(vma_log_line(VmaLogLevel::info, "text", 0, kStamp, true), " VMA INFO: text\n");
}

TEST_F(VmaLogTest, FileIsEmptiedAndGetsWhatTheLevelLetsThrough) {
  std::ofstream(path_) << "old";
  const VmaLog log(config_, monotonic_now());
  log.write(VmaLogLevel::info, "shown");
  log.write(VmaLogLevel::debug, "hidden");
  errno = ENOTTY;
  log.write(VmaLogLevel::error, "no colours in a file");
  EXPECT_EQ(errno, ENOTTY);
  EXPECT_EQ(contents(path_), " VMA INFO: shown\n VMA ERROR: no colours in a file\n");
}

TEST_F(VmaLogTest, LevelAndDetailsChangeWhileItRuns) {
  VmaLog log(config_, monotonic_now());
  log.set_level(VmaLogLevel::debug);
  log.set_details(3);
  EXPECT_TRUE(log.enabled(VmaLogLevel::debug));
  EXPECT_FALSE(log.enabled(VmaLogLevel::fine));
  log.write(VmaLogLevel::debug, "shown");
  EXPECT_THAT(contents(path_), MatchesRegex(" Time: [0-9.]+ Pid: [0-9]+ Tid: [0-9]+ VMA DEBUG: shown\n"));
}

TEST_F(VmaLogTest, LevelNoneIsSilentEvenForPanic) {
  config_.log_level = VmaLogLevel::none;
  const VmaLog log(config_, monotonic_now());
  log.write(VmaLogLevel::panic, "text");
  EXPECT_EQ(contents(path_), "");
}

TEST_F(VmaLogTest, CallbackGetsTheLines) {
  config_.log_callback = reinterpret_cast<VmaCallbackAddress>(&take_line);
  const VmaLog log(config_, monotonic_now());
  log.write(VmaLogLevel::warning, "text");
  EXPECT_THAT(g_taken, ElementsAre(std::pair(2, std::string(" VMA WARNING: text\n"))));
  EXPECT_EQ(contents(path_), "");
}

TEST_F(VmaLogTest, FileThatCannotBeOpenedLeavesStandardError) {
  config_.log_file = directory_ + "/none/log";
  testing::internal::CaptureStderr();
  const VmaLog log(config_, monotonic_now());
  log.write(VmaLogLevel::info, "text");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("cannot be opened (No such file or directory)"));
  EXPECT_TRUE(text.ends_with(" VMA INFO: text\n")) << text;
}

TEST_F(VmaLogTest, NumberThatBelongsToAnotherFileMeanwhileIsLeftAlone) {
  const VmaLog log(config_, monotonic_now());
  // The program closes every descriptor, and opens a file of its own.
  const std::string other = directory_ + "/other";
  const int number = [&] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      if (std::filesystem::read_symlink(entry.path(), error) == path_) return std::stoi(entry.path().filename());
    }
    return -1;
  }();
  ASSERT_GE(number, 0);
  const int theirs = ::creat(other.c_str(), 0600);
  ASSERT_EQ(::dup2(theirs, number), number);
  testing::internal::CaptureStderr();
  log.write(VmaLogLevel::info, "text");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), " VMA INFO: text\n");
  EXPECT_EQ(contents(other), "");
  ::close(theirs);
}

TEST_F(VmaLogTest, LinesOfTheCoreGoToASink) {
  set_log_sink(take_core_line);
  log_warn("%d rings", 3);
  log_debug("below the level");
  set_log_sink(nullptr);
  EXPECT_THAT(g_taken, ElementsAre(std::pair(static_cast<int>(LogLevel::warn), std::string("3 rings"))));
  testing::internal::CaptureStderr();
  log_warn("again");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "ringsock: warning: again\n");
}

}  // namespace
}  // namespace ringsock::config
