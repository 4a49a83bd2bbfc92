#include "core/config/vma_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace ringsock::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using enum VmaRole;
using enum VmaTransport;

/// "10.0.0.1" or "2001:db8::1" with a port.
SocketAddress at(const std::string& text, std::uint16_t port) {
  const auto parsed = AddressPattern::parse(text);
  EXPECT_TRUE(parsed) << text;
  SocketAddress out = parsed ? parsed->address : SocketAddress();
  out.set_port(port);
  return out;
}

/// A libvma.conf, and what its reading told.
class VmaRulesTest : public testing::Test {
 protected:
  std::unique_ptr<VmaRules> rules_of(const std::string& text, const std::string& program = "app",
                                     const std::string& id = std::string(kDefaultVmaApplicationId)) {
    lines_.clear();
    auto rules = std::make_unique<VmaRules>(program, id);
    rules->parse(text, "FILE", report_);
    return rules;
  }
  VmaTransport server(const std::string& text, const std::string& program = "app",
                      const std::string& id = std::string(kDefaultVmaApplicationId)) {
    return rules_of(text, program, id)->decide(tcp_server, at("10.0.0.1", 80));
  }
  std::vector<std::string> lines_;
  const Report report_ = [this](const std::string& line) { lines_.push_back(line); };
};

// -- matching

TEST_F(VmaRulesTest, WithoutARuleEverythingIsOurs) {
  const auto rules = rules_of("");
  for (const VmaRole role : {tcp_server, tcp_client, udp_receiver, udp_sender, udp_connect})
    EXPECT_EQ(rules->decide(role, at("10.0.0.1", 80)), vma);
  EXPECT_EQ(rules->decide_socket(SOCK_STREAM), vma);
  EXPECT_EQ(rules->decide_socket(SOCK_DGRAM), vma);
}

TEST_F(VmaRulesTest, TheFileThatVmaShipsLeavesNameServersToTheKernel) {
  const auto rules = rules_of("application-id * *\nuse os udp_connect *:53\n");
  EXPECT_EQ(rules->decide(udp_connect, at("10.0.0.1", 53)), os);
  EXPECT_EQ(rules->decide(udp_connect, at("2001:db8::1", 53)), os);
  EXPECT_EQ(rules->decide(udp_connect, at("10.0.0.1", 54)), vma);
  EXPECT_EQ(rules->decide(udp_sender, at("10.0.0.1", 53)), vma);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(VmaRulesTest, EachRoleHasItsOwnRulesAndTheFirstThatMatchesDecides) {
  const auto rules = rules_of(
      "use os  tcp_server   11.4.3.0/24:5001-5010\n"
      "use vma udp_receiver 224.4.0.0/16:*\n"
      "use os  udp_receiver *:*\n"
      "use os  tcp_client   *:80:10.0.0.5:*\n");
  EXPECT_EQ(rules->decide(tcp_server, at("11.4.3.9", 5001)), os);
  EXPECT_EQ(rules->decide(tcp_server, at("11.4.3.9", 5010)), os);
  EXPECT_EQ(rules->decide(tcp_server, at("11.4.3.9", 5011)), vma);
  EXPECT_EQ(rules->decide(tcp_server, at("11.4.4.9", 5001)), vma);
  EXPECT_EQ(rules->decide(udp_receiver, at("224.4.9.9", 1)), vma);
  EXPECT_EQ(rules->decide(udp_receiver, at("224.5.9.9", 1)), os);
  EXPECT_EQ(rules->decide(udp_sender, at("224.5.9.9", 1)), vma);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(VmaRulesTest, SecondAddressIsAskedForWhereTheRuleHasOne) {
  const auto rules = rules_of("use os tcp_client *:80:10.0.0.5:1000-2000\nuse os udp_connect *:9:*:*\n");
  const SocketAddress peer = at("1.2.3.4", 80), ours = at("10.0.0.5", 1500), other = at("10.0.0.6", 1500);
  EXPECT_EQ(rules->decide(tcp_client, peer, &ours), os);
  EXPECT_EQ(rules->decide(tcp_client, peer, &other), vma);
  EXPECT_EQ(rules->decide(tcp_client, peer), vma) << "not known";
  EXPECT_EQ(rules->decide(udp_connect, at("1.2.3.4", 9)), os) << "any is fine, known or not";
}

TEST_F(VmaRulesTest, AddressesAreMatchedByTheirFamily) {
  const auto rules = rules_of("use os udp_sender 10.1.0.0/16:*\nuse os udp_sender [2001:db8::/32]:5\n");
  EXPECT_EQ(rules->decide(udp_sender, at("10.1.2.3", 7).mapped()), os) << "IPv4 in IPv6 clothes";
  EXPECT_EQ(rules->decide(udp_sender, at("2001:db8:5::1", 5)), os);
  EXPECT_EQ(rules->decide(udp_sender, at("2001:db8:5::1", 6)), vma);
  EXPECT_EQ(rules->decide(udp_sender, at("a01::", 7)), vma);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(VmaRulesTest, PrefixLengthsAreWhatTheySayUpTo32) {
  const auto os_for = [&](const std::string& prefix, const char* address) {
    return rules_of("use os udp_sender 10.1.2.3" + prefix + ":*")->decide(udp_sender, at(address, 1)) == os;
  };
  EXPECT_TRUE(os_for("", "10.1.2.3"));
  EXPECT_FALSE(os_for("", "10.1.2.4"));
  EXPECT_TRUE(os_for("/31", "10.1.2.2"));
  EXPECT_FALSE(os_for("/31", "10.1.2.4"));
  EXPECT_TRUE(os_for("/0", "200.1.1.1"));
  EXPECT_TRUE(os_for("/99", "10.1.2.3"));
  EXPECT_FALSE(os_for("/99", "10.1.2.2"));
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(VmaRulesTest, InheritedTransportsDecideNothingAndStarIsOurs) {
  EXPECT_EQ(server("use * tcp_server *:*\nuse os tcp_server *:*\n"), vma);
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_EQ(server("use sdp tcp_server *:*\nuse sa tcp_server *:*\nuse os tcp_server *:*\n"), os);
  EXPECT_THAT(lines_, ElementsAre(StartsWith("Error (line:1) : FILE: only vma"), StartsWith("Error (line:2)")));
}

TEST_F(VmaRulesTest, SocketIsLeftAloneWhenItCanNeverBeOurs) {
  const auto udp = [&](const std::string& text) { return rules_of(text)->decide_socket(SOCK_DGRAM); };
  EXPECT_EQ(udp("use os udp_receiver *:*\nuse os udp_sender *:*\n"), os);
  EXPECT_EQ(rules_of("use os udp_receiver *:*\nuse os udp_sender *:*\n")->decide_socket(SOCK_STREAM), vma);
  EXPECT_EQ(rules_of("use os tcp_server *:*\nuse os tcp_client *:*:*:*\n")->decide_socket(SOCK_STREAM), os);
  EXPECT_EQ(udp("use os udp_receiver *:*\n"), vma) << "may send";
  EXPECT_EQ(udp("use os udp_receiver *:*\nuse os udp_sender *:1-65535\n"), vma);
  EXPECT_EQ(udp("use vma udp_receiver 10.0.0.1:*\nuse os udp_receiver *:*\nuse os udp_sender *:*\n"), vma);
  EXPECT_EQ(udp("use os udp_receiver 10.0.0.1:*\nuse os udp_receiver *:*\nuse os udp_sender *:*\n"), os);
  EXPECT_EQ(udp("use os udp_receiver *:*\nuse os udp_sender *:*\nuse vma udp_sender *:*\n"), os) << "too late";
}

// -- application-id

TEST_F(VmaRulesTest, BlockIsForTheProgramsThatItsPatternMatches) {
  const std::string file = "application-id redis-* *\nuse os tcp_server *:*\n";
  EXPECT_EQ(server(file, "redis-server"), os);
  EXPECT_EQ(server(file, "redis"), vma);
  EXPECT_EQ(server("application-id [rm]edis? *\nuse os tcp_server *:*\n", "medis2"), os);
}

TEST_F(VmaRulesTest, BlockIsForTheIdThatItNames) {
  const std::string file = "application-id * trading\nuse os tcp_server *:*\n";
  EXPECT_EQ(server(file, "app", "trading"), os);
  EXPECT_EQ(server(file, "app", "*"), os);
  EXPECT_EQ(server(file), vma) << "the default id matches only *";
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_EQ(server(file, "app", "other"), vma);
  EXPECT_THAT(lines_,
              ElementsAre(HasSubstr("no application-id line is for the program \"app\" with the id \"other\"")));
}

TEST_F(VmaRulesTest, OnlyTheFirstBlockForAProgramCountsAndALaterOneIsReported) {
  const std::string file =
      "application-id app *\nuse os tcp_client *:*\n"
      "application-id * *\nuse os tcp_server *:*\n";
  EXPECT_EQ(server(file), vma);
  EXPECT_THAT(lines_, ElementsAre(AllOf(StartsWith("Error (line:3) : FILE:"), HasSubstr("do not count"))));
  EXPECT_EQ(server(file, "another"), os);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(VmaRulesTest, BlocksWithTheSameWordsAreOne) {
  EXPECT_EQ(server("application-id app *\napplication-id other *\napplication-id app *\nuse os tcp_server *:*\n"), os);
  EXPECT_EQ(server("use os tcp_client *:*\napplication-id * *\nuse os tcp_server *:*\n"), os)
      << "the implicit one, too";
  EXPECT_THAT(lines_, IsEmpty());
}

// -- grammar

TEST_F(VmaRulesTest, BlanksCommentsAndLogLinesDoNotMatter) {
  EXPECT_EQ(server("\n  # nothing\n\tuse\tos  tcp_server 10.0.0.1 : 80 # web\r\n"), os);
  rules_of(
      "log min-level 9 destination stderr\nlog destination file /tmp/vma.log\nlog destination syslog\n"
      "log destination file x min-level 1\nlog\n");
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(VmaRulesTest, WrongLineIsReportedWithFileNumberAndReasonAndTheRestCounts) {
  EXPECT_EQ(server("use os tcp_server *:80x\nuse os tcp_server *:80\n"), os);
  EXPECT_THAT(lines_, ElementsAre("Error (line:1) : FILE: \"80x\" is no port (0..65535); the line is skipped"));
}

TEST_F(VmaRulesTest, EveryKindOfWrongLineHasItsReason) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"USE os tcp_server *:*", "\"USE\" is no statement"},
      {"use", "no transport"},
      {"use tcp tcp_server *:*", "\"tcp\" is no transport"},
      {"use os", "no role"},
      {"use os tcp *:*", "\"tcp\" is no role"},
      {"use os tcp_server", "\"\" is no IPv4 address"},
      {"use os tcp_server host:80", "\"host\" is no IPv4 address"},
      {"use os tcp_server 10.0.0.256:80", "no IPv4 address"},
      {"use os tcp_server 10.0.0:80", "no IPv4 address"},
      {"use os tcp_server 2001:db8::1:80", "IPv6 addresses stand in []"},
      {"use os tcp_server [2001:db8::1:80", "no address"},
      {"use os tcp_server []:80", "no address"},
      {"use os tcp_server 10.0.0.1", "followed by a colon"},
      {"use os tcp_server *", "followed by a colon"},
      {"use os tcp_server */8:*", "followed by a colon"},
      {"use os tcp_server 10.0.0.1/:80", "\"\" is no prefix length"},
      {"use os tcp_server 10.0.0.1/08:80", "\"08\" is no prefix length"},
      {"use os tcp_server 10.0.0.1/-1:80", "\"-1\" is no prefix length"},
      {"use os tcp_server *:", "\"\" is no port"},
      {"use os tcp_server *:65536", "\"65536\" is no port"},
      {"use os tcp_server *:080", "\"080\" is no port"},
      {"use os tcp_server *:+80", "\"+80\" is no port"},
      {"use os tcp_server *:80-", "\"\" is no port"},
      {"use os tcp_server *:80-90000", "\"90000\" is no port"},
      {"use os tcp_server *:90-80", "end before they begin"},
      {"use os tcp_server *:80 *:90", "\"*:90\" follows the addresses"},
      {"use os tcp_client *:80:10.0.0.1", "followed by a colon"},
      {"use os tcp_client *:80:*:*:*", "\":*\" follows the addresses"},
      {"application-id", "needs a program and a user id"},
      {"application-id app", "needs a program and a user id"},
      {"application-id app id more", "\"more\" follows the user id"},
      {"log level 3", "\"level\" is neither destination nor min-level"},
      {"log min-level high", "\"high\" is no level"},
      {"log min-level", "\"\" is no level"},
      {"log destination printer", "\"printer\" is no destination"},
      {"log destination file", "needs a name"},
  };
  for (const auto& [line, reason] : cases) {
    EXPECT_EQ(server(line + "\nuse os tcp_server *:*\n"), os) << line;
    EXPECT_THAT(lines_, ElementsAre(AllOf(StartsWith("Error (line:1) : FILE: "), HasSubstr(reason)))) << line;
  }
}

TEST_F(VmaRulesTest, SecondAddressWhereThereIsNoneIsIgnoredAloud) {
  EXPECT_EQ(server("use os tcp_server *:80:10.9.9.9:1\n"), os);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("tcp_server has one address; the second is ignored")));
}

// -- add_conf_rule

TEST_F(VmaRulesTest, AddedRuleGoesBeforeAllOthers) {
  const auto rules = rules_of("use os tcp_server *:*\n");
  ASSERT_TRUE(rules->add("use vma tcp_server *:80", report_));
  EXPECT_EQ(rules->decide(tcp_server, at("10.0.0.1", 80)), vma);
  EXPECT_EQ(rules->decide(tcp_server, at("10.0.0.1", 81)), os);
  ASSERT_TRUE(rules->add("use os tcp_server 10.0.0.1:80\n", report_)) << "with newline";
  EXPECT_EQ(rules->decide(tcp_server, at("10.0.0.1", 80)), os);
  EXPECT_EQ(rules->decide(tcp_server, at("10.0.0.2", 80)), vma);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(VmaRulesTest, AddedRuleIsForThisProcessWhateverBlocksTheFileHas) {
  const auto rules = rules_of("application-id app *\nuse vma tcp_server *:*\napplication-id other *\n");
  ASSERT_TRUE(rules->add("use os tcp_server *:*", report_));
  EXPECT_EQ(rules->decide(tcp_server, at("10.0.0.1", 80)), os);
}

TEST_F(VmaRulesTest, AddedApplicationIdTellsWhomTheNextLinesAreFor) {
  const auto rules = rules_of("");
  ASSERT_TRUE(rules->add("application-id other *", report_));
  ASSERT_TRUE(rules->add("use os tcp_server *:*", report_));
  EXPECT_EQ(rules->decide(tcp_server, at("10.0.0.1", 80)), vma);
  ASSERT_TRUE(rules->add("application-id ap? *", report_));
  ASSERT_TRUE(rules->add("use os tcp_server *:*", report_));
  EXPECT_EQ(rules->decide(tcp_server, at("10.0.0.1", 80)), os);
}

TEST_F(VmaRulesTest, AWrongLineAddedDoesNotSpoilTheNext) {
  const auto rules = rules_of("");
  for (const char* wrong : {"use os", "nonsense", "use os tcp_server *:80\nuse os tcp_server *:81\n"}) {
    const Status added = rules->add(wrong, report_);
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().code, EINVAL);
  }
  EXPECT_THAT(lines_, ElementsAre(StartsWith("Error (line:1) : add_conf_rule: "), StartsWith("Error (line:1) : "),
                                  HasSubstr("more than one line")));
  EXPECT_EQ(rules->decide(tcp_server, at("10.0.0.1", 80)), vma);
  ASSERT_TRUE(rules->add("use os tcp_server *:80", report_));
  EXPECT_EQ(rules->decide(tcp_server, at("10.0.0.1", 80)), os);
  EXPECT_TRUE(rules->add("", report_));
  EXPECT_TRUE(rules->add("# comment\n", report_));
}

TEST_F(VmaRulesTest, RulesAreAddedWhileOthersAsk) {
  const auto rules = rules_of("");
  std::jthread asking([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) EXPECT_EQ(rules->decide(udp_sender, at("10.0.0.1", 1)), vma);
  });
  std::vector<std::jthread> adding;
  for (int thread = 0; thread < 2; ++thread) {
    adding.emplace_back([&rules, thread] {
      for (int i = 0; i < 200; ++i) {
        const std::string port = std::to_string(1000 + 1000 * thread + i);
        EXPECT_TRUE(rules->add("use os udp_sender *:" + port, [](const std::string&) {}));
      }
    });
  }
  adding.clear();
  for (std::uint16_t port = 1000; port < 1200; ++port) {
    EXPECT_EQ(rules->decide(udp_sender, at("10.0.0.1", port)), os);
    EXPECT_EQ(rules->decide(udp_sender, at("10.0.0.1", static_cast<std::uint16_t>(port + 1000))), os);
  }
}

// -- files

class VmaRulesFileTest : public VmaRulesTest {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "vma_rules.XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  VmaTransport load(const std::string& path, bool is_chosen = true) {
    VmaRules rules("app", kDefaultVmaApplicationId);
    rules.load(path.c_str(), is_chosen, report_);
    return rules.decide(tcp_server, at("10.0.0.1", 80));
  }
  std::string directory_;
};

TEST_F(VmaRulesFileTest, FileIsRead) {
  const std::string path = directory_ + "/libvma.conf";
  std::ofstream(path) << "use os tcp_server *:80";
  EXPECT_EQ(load(path), os);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(VmaRulesFileTest, MissingFileIsNewsOnlyWhenSomebodyChoseIt) {
  EXPECT_EQ(load(directory_ + "/none", false), vma);
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_EQ(load(directory_ + "/none", true), vma);
  EXPECT_THAT(lines_, ElementsAre(StartsWith("libvma Error: No access to " + directory_ + "/none")));
}

TEST_F(VmaRulesFileTest, WhatIsNoRegularFileIsReportedAndNeverWaitedFor) {
  const std::string fifo = directory_ + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {directory_, fifo}) {
    lines_.clear();
    EXPECT_EQ(load(path), vma);
    EXPECT_THAT(lines_, ElementsAre("FAILED to read VMA configuration file. " + path + " is not a regular file."));
  }
}

TEST_F(VmaRulesFileTest, UnreadableOrEndlessFileIsReported) {
  const std::string big = directory_ + "/big";
  std::ofstream(big) << std::string(300 * 1024, '\n');
  EXPECT_EQ(load(big), vma);
  const std::string loop = directory_ + "/loop";
  ASSERT_EQ(::symlink("loop", loop.c_str()), 0);
  EXPECT_EQ(load(loop), vma);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("File too large"), HasSubstr("symbolic links")));
}

}  // namespace
}  // namespace ringsock::config
