#include "tools/vma_stats_options.h"

#include <getopt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ringsock::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

VmaStatsParsed parse(std::vector<std::string> words) {
  words.insert(words.begin(), "vma_stats");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::optind = 0;  // getopt_long(3): start anew
  testing::internal::CaptureStderr();
  auto parsed = parse_vma_stats_options(static_cast<int>(words.size()), argv.data(), "/default");
  testing::internal::GetCapturedStderr();
  return parsed;
}

TEST(VmaStatsOptions, DefaultsAreVmas) {
  const auto options = parse({}).options;
  ASSERT_TRUE(options);
  EXPECT_FALSE(options->pid);
  EXPECT_EQ(options->directory, "/default");
  EXPECT_TRUE(options->clean);
  EXPECT_EQ(options->interval, std::chrono::seconds(1));
  EXPECT_EQ(options->cycles, 0u);
  EXPECT_EQ(options->view, VmaView::basic);
  EXPECT_EQ(options->counting, runtime::VmaCounting::totals);
  EXPECT_FALSE(options->changes_process());
}

TEST(VmaStatsOptions, ShortAndLongNames) {
  const auto options = parse({"-p", "7", "--directory", "/x", "-n", "app", "-f", "-F", "-i2", "--cycles=3", "-v", "5",
                              "--details=2", "--sockets", "4-6,9"})
                           .options;
  ASSERT_TRUE(options);
  EXPECT_EQ(options->pid, 7);
  EXPECT_EQ(options->directory, "/x");
  EXPECT_EQ(options->program, "app");
  EXPECT_FALSE(options->clean);
  EXPECT_EQ(options->interval, std::chrono::seconds(2));
  EXPECT_EQ(options->cycles, 3u);
  EXPECT_EQ(options->view, VmaView::netstat);
  EXPECT_EQ(options->counting, runtime::VmaCounting::per_second);
  EXPECT_THAT(*options->sockets, ElementsAre(4, 5, 6, 9));
}

TEST(VmaStatsOptions, WhatTheProcessIsToDo) {
  const auto options = parse({"-z", "-l", "debug", "-D", "3", "-S", "5", "details"}).options;
  ASSERT_TRUE(options);
  EXPECT_TRUE(options->changes_process() && options->zero);
  EXPECT_EQ(options->request.log_level, config::VmaLogLevel::debug);
  EXPECT_EQ(options->request.log_details, 3);
  EXPECT_EQ(options->request.dump_fd, 5);
  EXPECT_EQ(options->request.dump_level, config::VmaLogLevel::details);
  EXPECT_EQ(parse({"-S", "0"}).options->request.dump_level, config::VmaLogLevel::info);
}

TEST(VmaStatsOptions, AConnectionToTrace) {
  const auto options = parse({"-T", "5", "200"}).options;
  ASSERT_TRUE(options);
  EXPECT_TRUE(options->changes_process());
  EXPECT_EQ(options->request.trace_fd, 5);
  EXPECT_EQ(options->request.trace_segments, 200);
  EXPECT_EQ(parse({"--trace", "0"}).options->request.trace_segments, 1000);
  EXPECT_EQ(parse({"-T", "5", "0"}).problem, "-T: no number of segments: 0");
  EXPECT_EQ(parse({"-T", "5", "100001"}).problem, "-T: no number of segments: 100001");
}

TEST(VmaStatsOptions, MistakesAreNamed) {
  for (const auto& words : std::vector<std::vector<std::string>>{{"-p", "0"},
                                                                 {"-p", "x"},
                                                                 {"-v", "6"},
                                                                 {"-d", "3"},
                                                                 {"-i", "0"},
                                                                 {"-c", "-1"},
                                                                 {"-D", "4"},
                                                                 {"-l", "loud"},
                                                                 {"-S", "5", "loud"},
                                                                 {"-s", "4-"},
                                                                 {"-s", "6-4"},
                                                                 {"-s", "1,,2"},
                                                                 {"-k", ""}}) {
    const auto parsed = parse(words);
    EXPECT_FALSE(parsed.options) << words[0] << " " << words[1];
    EXPECT_THAT(parsed.problem, HasSubstr(words[0])) << words[1];
  }
  EXPECT_THAT(parse({"what"}).problem, HasSubstr("what"));
  EXPECT_FALSE(parse({"--nonsense"}).options);
}

}  // namespace
}  // namespace ringsock::tools
