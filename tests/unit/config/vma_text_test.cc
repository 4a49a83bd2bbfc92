#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "conf/vma_manual.h"
#include "core/config/vma_banner.h"
#include "core/config/vma_option_table.h"
#include "core/config/vma_rules.h"

namespace ringsock::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kSource = TOP_SRCDIR;

std::string contents(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The listing's line of one variable.
VmaLogText line_of(const std::string& variable, const VmaConfig& config) {
  for (const VmaLogText& line : vma_parameter_lines(config)) {
    if (line.text.ends_with("[" + variable + "]")) return line;
  }
  ADD_FAILURE() << variable;
  return {};
}

TEST(VmaOptionTable, EachVariableStandsThereOnce) {
  std::set<std::string> names;
  for (const VmaOptionRow& row : vma_option_rows()) {
    EXPECT_TRUE(names.insert(row.variable).second) << row.variable;
    EXPECT_TRUE(std::string_view(row.help).ends_with('.')) << row.variable;
  }
  for (const VmaOtherName& name : vma_other_names()) EXPECT_TRUE(names.insert(name.variable).second) << name.variable;
}

TEST(VmaOptionTable, TheEffectHasWords) {
  std::set<std::string> effects;
  for (const VmaOptionRow& row : vma_option_rows()) {
    effects.insert(effect_text(row));
    EXPECT_EQ(row.effect == VmaEffect::always, *row.always != '\0') << row.variable;
  }
  EXPECT_THAT(effects, testing::IsSupersetOf({"yes", "none", "always 0", "always 1"}));
}

TEST(VmaOptionTable, DefaultsAreAllowedAndMeanWhatTheyMean) {
  // Every default, given explicitly, changes nothing and is taken without a word.
  std::vector<std::string> variables;
  for (const VmaOptionRow& row : vma_option_rows()) {
    if (!row.default_value.empty()) variables.push_back(std::string(row.variable) + "=" + row.default_value);
  }
  std::vector<const char*> environment;
  for (const std::string& variable : variables) environment.push_back(variable.c_str());
  environment.push_back(nullptr);
  const VmaConfig config = load_vma_config(environment.data(), [](const std::string& line) { ADD_FAILURE() << line; });
  const VmaConfig defaults;
  for (const VmaOptionRow& row : vma_option_rows()) EXPECT_EQ(row.value(config), row.value(defaults)) << row.variable;
}

TEST(VmaOptionTable, ProfilesCanBeWrittenAsVariables) {
  for (const VmaProfileRow& row : vma_profile_rows()) {
    std::vector<const char*> environment;
    for (const std::string& setting : row.settings) environment.push_back(setting.c_str());
    environment.push_back(nullptr);
    load_vma_config(environment.data(), [&](const std::string& line) { ADD_FAILURE() << row.words << ": " << line; });
  }
}

TEST(VmaHelp, HasLinesThatFitATerminal) {
  std::istringstream lines(vma_help());
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 79u) << line;
  EXPECT_THAT(vma_help(), AllOf(HasSubstr("\nVMA_RX_POLL  (default 100000)\n    How often"),
                                HasSubstr("Allowed: 0..1024 sockets.\n"), HasSubstr("VMA_IPOIB\n    No effect."),
                                HasSubstr("\nlatency, 15  (Latency)\n    VMA_TX_WRE=256 VMA_TX_WRE_BATCHING=4")));
}

TEST(VmaParameterLines, HaveTitleValueAndVariableInTheirColumns) {
  const VmaConfig defaults;
  EXPECT_EQ(line_of("VMA_TRACELEVEL", defaults).text,
            "Log Level                      INFO                       [VMA_TRACELEVEL]");
  EXPECT_EQ(line_of("VMA_RING_ALLOCATION_LOGIC_TX", defaults).text,
            "Ring allocation logic TX       0 (Ring per interface)     [VMA_RING_ALLOCATION_LOGIC_TX]");
  EXPECT_EQ(line_of("VMA_LOG_COLORS", defaults).text,
            "Log Colors                     Enabled                    [VMA_LOG_COLORS]");
}

TEST(VmaParameterLines, NeverShowWhatDoesNotActAsIfItDid) {
  VmaConfig config;
  config.blue_flame = false;
  config.fork_support = false;
  config.tcp_nodelay = true;
  EXPECT_EQ(line_of("VMA_BF", config).level, VmaLogLevel::details);
  EXPECT_THAT(line_of("VMA_BF", config).text, HasSubstr(" Disabled (without effect) "));
  EXPECT_THAT(line_of("VMA_FORK", config).text, HasSubstr(" Disabled (always 1) "));
  EXPECT_THAT(line_of("VMA_TCP_NODELAY", config).text, HasSubstr(" Enabled (without effect) "));
  config.tcp_rings = 1;
  EXPECT_EQ(line_of("VMA_TCP_NODELAY", config).level, VmaLogLevel::info);
  EXPECT_THAT(line_of("VMA_TCP_NODELAY", config).text, Not(HasSubstr("without effect")));
}

TEST(VmaParameterLines, StandOutWhenTheyAreNotTheDefault) {
  VmaConfig config;
  config.rx_poll = -1;
  EXPECT_EQ(line_of("VMA_RX_POLL", config).level, VmaLogLevel::info);
  EXPECT_EQ(line_of("VMA_SELECT_POLL", config).level, VmaLogLevel::details);
  EXPECT_EQ(line_of("VMA_TRACELEVEL", config).level, VmaLogLevel::info) << "always";
  EXPECT_EQ(vma_parameter_lines(config).size(), vma_option_rows().size() + 1);
}

TEST(VmaBanner, TellsTheVersionBetweenRules) {
  const auto banner = vma_banner({.version = "9.8.84-1 Release built on Nov 21 2026",
                                  .git = "",
                                  .command_line = "sockperf sr",
                                  .ofed_version = "",
                                  .current_time = "",
                                  .pid = "77",
                                  .architecture = "",
                                  .node = ""});
  ASSERT_EQ(banner.size(), 5u);
  EXPECT_EQ(banner[0].text, std::string(75, '-'));
  EXPECT_EQ(banner[1].text, "VMA_VERSION: 9.8.84-1 Release built on Nov 21 2026");
  EXPECT_EQ(banner[2].text, "Cmd Line: sockperf sr");
  EXPECT_EQ(banner[3].text, "Pid: 77");
  EXPECT_EQ(banner[3].level, VmaLogLevel::debug);
  EXPECT_EQ(banner[4].text, banner[0].text);
}

TEST(VmaManual, ListsVariablesAndProfilesAsTheTablesDo) {
  const std::string page = contents(kSource + "/man/libvma.7");
  EXPECT_THAT(page, HasSubstr(conf::vma_environment_section())) << "conf/write_vma_manual prints the lists";
  EXPECT_THAT(page, HasSubstr(conf::vma_effects_section()));
  EXPECT_THAT(page, HasSubstr(conf::vma_profiles_section()));
}

TEST(VmaSample, IsTheFileThatVmaShipsAndReadsWithoutAWord) {
  VmaRules rules("app", kDefaultVmaApplicationId);
  rules.load((kSource + "/conf/libvma.conf").c_str(), true, [](const std::string& line) { ADD_FAILURE() << line; });
  EXPECT_EQ(rules.decide(VmaRole::udp_connect, SocketAddress::v4(1, 53)), VmaTransport::os);
  EXPECT_EQ(rules.decide(VmaRole::udp_connect, SocketAddress::v4(1, 54)), VmaTransport::vma);
  EXPECT_EQ(rules.decide(VmaRole::tcp_server, SocketAddress::v4(1, 53)), VmaTransport::vma);
}

}  // namespace
}  // namespace ringsock::config
