#include "conf/samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "core/config/rsocket_config.h"

namespace ringsock::config {
namespace {

const std::string kSource = TOP_SRCDIR;

std::string contents(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Samples, AreWhatOptionsDefSays) {
  for (const conf::Sample& sample : conf::samples()) {
    EXPECT_EQ(contents(kSource + "/conf/rsocket/" + sample.name), sample.text) << "run conf/write_samples";
  }
}

TEST(Samples, LoadAsTheDefaultsWithoutAWord) {
  std::vector<std::string> lines;
  const RsocketConfig loaded = load_rsocket_config((kSource + "/conf/rsocket").c_str(), {},
                                                   [&](const std::string& line) { lines.push_back(line); });
  EXPECT_THAT(lines, testing::IsEmpty());
  const RsocketConfig defaults;
#define RSOCKET_NUMBER(name, ...) EXPECT_EQ(loaded.name, defaults.name);
#define RSOCKET_CHOICE(name, ...) EXPECT_EQ(loaded.name, defaults.name);
#include "core/config/options.def"
}

TEST(ManualPage, ListsTheOptionsAsOptionsDefDoes) {
  EXPECT_THAT(contents(kSource + "/man/rsocket.conf.5"), testing::HasSubstr(conf::manual_section()))
      << "conf/write_samples prints the list";
}

}  // namespace
}  // namespace ringsock::config
