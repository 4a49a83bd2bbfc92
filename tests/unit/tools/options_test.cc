#include <getopt.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/stream_arguments.h"

namespace ringsock::tools {
namespace {

/// Parses a command line; what it prints is collected.
class StreamOptionsTest : public testing::Test {
 protected:
  ParsedOptions parse(const StreamTool& tool, std::vector<std::string> words) {
    words.insert(words.begin(), tool.name);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::optind = 0;  // getopt_long(3): start anew
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    ParsedOptions parsed = parse_stream_options(tool, static_cast<int>(words.size()), argv.data());
    out_ = testing::internal::GetCapturedStdout();
    error_ = testing::internal::GetCapturedStderr();
    return parsed;
  }
  std::string out_;
  std::string error_;
};

TEST_F(StreamOptionsTest, DefaultsAreUpstreams) {
  const auto options = parse(kRstream, {}).options;
  ASSERT_TRUE(options);
  EXPECT_FALSE(options->is_client());
  EXPECT_FALSE(options->custom);
  EXPECT_EQ(options->port, "7471");
  EXPECT_EQ(options->buffer_bytes, 524288);
  EXPECT_EQ(options->inline_bytes, 64);
  EXPECT_EQ(options->transfers, 1000u);
  EXPECT_EQ(options->transfer_bytes, 1000u);
  EXPECT_EQ(options->iterations, 1u);
}

TEST_F(StreamOptionsTest, AnyOfTheCountsMakesACustomTest) {
  EXPECT_TRUE(parse(kRstream, {"-I", "3"}).options->custom);
  EXPECT_TRUE(parse(kRstream, {"-C", "3"}).options->custom);
  EXPECT_TRUE(parse(kRstream, {"-S", "3"}).options->custom);
  const auto all = parse(kRstream, {"-S", "all"}).options;
  EXPECT_FALSE(all->custom);
  EXPECT_TRUE(all->all_sizes);
}

TEST_F(StreamOptionsTest, TestWordsOrTheirLettersMayBeRepeated) {
  const auto options = parse(kRstream, {"-T", "s", "-Tverify", "-T", "b"}).options;
  ASSERT_TRUE(options);
  EXPECT_TRUE(options->kernel && options->verify && options->blocking);
  EXPECT_TRUE(parse(kRstream, {"-T", "fork"}).options->kernel) << "fork implies kernel sockets";
}

TEST_F(StreamOptionsTest, HelpIsNoFailure) {
  for (const char* word : {"-h", "--help"}) {
    const auto parsed = parse(kRstream, {word});
    EXPECT_FALSE(parsed.options);
    EXPECT_EQ(parsed.exit_status, 0);
    EXPECT_NE(out_.find("-k keepalive_time"), std::string::npos);
    EXPECT_EQ(error_, "");
  }
  parse(kRiostream, {"--help"});
  EXPECT_EQ(out_.find("keepalive"), std::string::npos) << "riostream has no -k";
}

TEST_F(StreamOptionsTest, MistakesAreNamed) {
  const std::vector<std::vector<std::string>> mistakes{{"-S", "0"},     {"-S", "1k"}, {"-p", "70000"}, {"-T", "x"},
                                                       {"-f", "name2"}, {"-C", "-1"}, {"-k", "0"},     {"extra"}};
  for (const auto& words : mistakes) {
    const auto parsed = parse(kRstream, words);
    EXPECT_FALSE(parsed.options) << words.back();
    EXPECT_NE(parsed.exit_status, 0);
    EXPECT_NE(error_.find(words.back()), std::string::npos) << error_;
  }
  EXPECT_FALSE(parse(kRiostream, {"-T", "s"}).options) << "riostream cannot use kernel sockets";
  EXPECT_FALSE(parse(kRiostream, {"-k", "1"}).options);
}

}  // namespace
}  // namespace ringsock::tools
