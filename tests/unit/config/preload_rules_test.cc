#include "core/config/preload_rules.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ringsock::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using enum PreloadAction;

SocketAddress address(const std::string& text, std::uint16_t port = 80) {
  in_addr v4;
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) return SocketAddress::v4(ntohl(v4.s_addr), port);
  in6_addr v6;
  EXPECT_EQ(::inet_pton(AF_INET6, text.c_str(), &v6), 1) << text;
  return SocketAddress::v6(v6, port);
}

/// A rule file, and what its reading told.
class PreloadRulesTest : public testing::Test {
 protected:
  PreloadRules rules_for(const std::string& program, const std::string& text) {
    lines_.clear();
    return PreloadRules::parse(text, "FILE", program, [this](const std::string& line) { lines_.push_back(line); });
  }
  PreloadAction tcp_socket(const std::string& program, const std::string& text) {
    return rules_for(program, text).for_socket(AF_INET, SOCK_STREAM, 0);
  }
  std::vector<std::string> lines_;
};

// -- what upstream's files mean

TEST_F(PreloadRulesTest, NoRuleMeansThatEverythingIsTaken) {
  const PreloadRules rules = rules_for("redis-server", "");
  EXPECT_FALSE(rules.process_is_off());
  EXPECT_EQ(rules.for_socket(AF_INET, SOCK_STREAM, IPPROTO_TCP), rdma);
  EXPECT_EQ(rules.for_socket(AF_INET6, SOCK_DGRAM, 0), rdma);
  EXPECT_EQ(rules.for_address(AF_INET, address("10.0.0.1")), rdma);
}

TEST_F(PreloadRulesTest, WithRulesTheFirstMatchTakesAndTheRestIsTheKernels) {
  const std::string file = "redis INET STREAM TCP\n* INET6 * *\n";
  EXPECT_EQ(tcp_socket("redis-server", file), rdma);
  EXPECT_EQ(tcp_socket("nginx", file), tcp);
  EXPECT_EQ(rules_for("nginx", file).for_socket(AF_INET6, SOCK_STREAM, 0), rdma);
  EXPECT_EQ(rules_for("nginx", file).for_address(AF_INET6, address("::1")), rdma);
  EXPECT_EQ(rules_for("nginx", file).for_address(AF_INET, address("127.0.0.1")), tcp);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(PreloadRulesTest, ProgramIsAPrefixInWhateverCase) {
  EXPECT_EQ(tcp_socket("redis-server", "REDIS * * *"), rdma);
  EXPECT_EQ(tcp_socket("Redis", "redis * * *"), rdma);
  EXPECT_EQ(tcp_socket("redis", "redis-server * * *"), tcp);
}

TEST_F(PreloadRulesTest, ConstantsHaveTheirPrefixesOrNot) {
  for (const char* line : {"p INET STREAM TCP", "p af_inet sock_stream ipproto_tcp", "p Pf_Inet Stream IPPROTO_tcp"}) {
    EXPECT_EQ(tcp_socket("p", line), rdma) << line;
    EXPECT_EQ(rules_for("p", line).for_socket(AF_INET6, SOCK_STREAM, 0), tcp) << line;
    EXPECT_EQ(rules_for("p", line).for_socket(AF_INET, SOCK_DGRAM, 0), tcp) << line;
    EXPECT_THAT(lines_, IsEmpty());
  }
  EXPECT_EQ(rules_for("p", "p INET6 DGRAM UDP").for_socket(AF_INET6, SOCK_DGRAM, 0), rdma);
  // A file whose only rule with the action rdma is for datagrams leaves streams to the kernel.
  EXPECT_EQ(tcp_socket("p", "p * DGRAM UDP"), tcp);
  EXPECT_EQ(rules_for("p", "p PF_IB * *").for_socket(27, SOCK_STREAM, 0), rdma);
}

TEST_F(PreloadRulesTest, FlagsInTheTypeDoNotDefeatARule) {
  const PreloadRules rules = rules_for("p", "p INET STREAM TCP");
  EXPECT_EQ(rules.for_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), rdma);
  EXPECT_EQ(rules.for_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP), rdma);
  EXPECT_EQ(rules.for_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), tcp);
}

TEST_F(PreloadRulesTest, CommentsAndBlankLinesDoNotCount) {
  EXPECT_EQ(tcp_socket("p", "# comment\n\n \t \n  # another\np\tINET  STREAM *  # the web\r\n"), rdma);
  EXPECT_EQ(tcp_socket("q", "# comment\n"), rdma) << "a file without a rule takes everything";
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(PreloadRulesTest, LastLineNeedsNoEnd) { EXPECT_EQ(tcp_socket("q", "p * * *"), tcp); }

// -- actions

TEST_F(PreloadRulesTest, FileOfExceptionsTakesTheRest) {
  const std::string file = "postgres * * * tcp\n";
  EXPECT_EQ(tcp_socket("postgres", file), tcp);
  EXPECT_EQ(tcp_socket("redis", file), rdma);
}

TEST_F(PreloadRulesTest, ExceptionsGoBeforeWhatIsTaken) {
  const std::string file = "post * * * tcp\n* INET STREAM *\n";
  EXPECT_EQ(tcp_socket("postgres", file), tcp);
  EXPECT_EQ(tcp_socket("redis", file), rdma);
  EXPECT_EQ(tcp_socket("postgres", "* INET STREAM *\npost * * * tcp\n"), rdma);
}

TEST_F(PreloadRulesTest, OffIsForTheWholeProcess) {
  const std::string file = "java * * * off\n* * * * rdma\n";
  EXPECT_TRUE(rules_for("java", file).process_is_off());
  EXPECT_EQ(tcp_socket("java", file), tcp);
  EXPECT_FALSE(rules_for("redis", file).process_is_off());
}

TEST_F(PreloadRulesTest, OffAfterAnotherLineOfTheProgramIsTcp) {
  const PreloadRules rules = rules_for("java", "java INET6 * *\njava * * * OFF\n");
  EXPECT_FALSE(rules.process_is_off());
  EXPECT_EQ(rules.for_socket(AF_INET6, SOCK_STREAM, 0), rdma);
  EXPECT_EQ(rules.for_socket(AF_INET, SOCK_STREAM, 0), tcp);
  EXPECT_EQ(rules.for_address(AF_INET, address("127.0.0.1")), tcp);
}

// -- addresses and ports

TEST_F(PreloadRulesTest, NetworkDecidesOnceTheAddressIsKnown) {
  const PreloadRules rules = rules_for("p", "p * * * 10.0.0.0/8\np * * * 192.168.1.7\n");
  EXPECT_EQ(rules.for_socket(AF_INET, SOCK_STREAM, 0), rdma) << "it may be one of them";
  EXPECT_EQ(rules.for_address(AF_INET, address("10.255.0.1")), rdma);
  EXPECT_EQ(rules.for_address(AF_INET, address("11.0.0.1")), tcp);
  EXPECT_EQ(rules.for_address(AF_INET, address("192.168.1.7")), rdma);
  EXPECT_EQ(rules.for_address(AF_INET, address("192.168.1.8")), tcp);
  EXPECT_EQ(rules.for_address(AF_INET6, address("::ffff:10.1.1.1")), rdma) << "IPv4 through an IPv6 socket";
  EXPECT_EQ(rules.for_address(AF_INET6, address("::1")), tcp);
}

TEST_F(PreloadRulesTest, PrefixLengthsNeedNotBeWholeBytes) {
  const PreloadRules rules = rules_for("p", "p * * * 172.16.0.0/12\np * * * fe80::/10\np * * * ::ffff:9.0.0.0/104\n");
  EXPECT_EQ(rules.for_address(AF_INET, address("172.31.255.255")), rdma);
  EXPECT_EQ(rules.for_address(AF_INET, address("172.32.0.0")), tcp);
  EXPECT_EQ(rules.for_address(AF_INET6, address("febf::1")), rdma);
  EXPECT_EQ(rules.for_address(AF_INET6, address("fec0::1")), tcp);
  EXPECT_EQ(rules.for_address(AF_INET, address("9.1.2.3")), rdma) << "a mapped network is an IPv4 network";
}

TEST_F(PreloadRulesTest, PrefixOfLengthZeroIsTheWholeFamily) {
  const PreloadRules rules = rules_for("p", "p * * * 0.0.0.0/0\n");
  EXPECT_EQ(rules.for_address(AF_INET, address("255.1.2.3")), rdma);
  EXPECT_EQ(rules.for_address(AF_INET, address("0.0.0.0")), rdma);
  EXPECT_EQ(rules.for_address(AF_INET6, address("::")), tcp);
}

TEST_F(PreloadRulesTest, PortAndRangeOfPorts) {
  const PreloadRules rules = rules_for("p", "p * * * * 5432 tcp\np * * * * 8000-8010\n");
  EXPECT_EQ(rules.for_socket(AF_INET, SOCK_STREAM, 0), rdma);
  EXPECT_EQ(rules.for_address(AF_INET, address("1.2.3.4", 5432)), tcp);
  EXPECT_EQ(rules.for_address(AF_INET, address("1.2.3.4", 7999)), tcp);
  EXPECT_EQ(rules.for_address(AF_INET, address("1.2.3.4", 8000)), rdma);
  EXPECT_EQ(rules.for_address(AF_INET6, address("::1", 8010)), rdma);
  EXPECT_EQ(rules.for_address(AF_INET, address("1.2.3.4", 8011)), tcp);
}

TEST_F(PreloadRulesTest, AddressPortAndActionInOneLine) {
  const PreloadRules rules = rules_for("p", "p INET STREAM TCP 127.0.0.1 5432 tcp");
  EXPECT_EQ(rules.for_socket(AF_INET, SOCK_STREAM, 0), rdma);
  EXPECT_EQ(rules.for_address(AF_INET, address("127.0.0.1", 5432)), tcp);
  EXPECT_EQ(rules.for_address(AF_INET, address("127.0.0.2", 5432)), rdma);
  EXPECT_EQ(rules.for_address(AF_INET, address("127.0.0.1", 5433)), rdma);
}

TEST_F(PreloadRulesTest, SocketThatCannotBecomeOursIsTheKernelsAtOnce) {
  EXPECT_EQ(tcp_socket("p", "p * * * * 80 tcp\np * * * tcp\np * * * * 81 rdma\n"), tcp);
}

// -- built-in rules

TEST_F(PreloadRulesTest, ProgramsThatHandConnectionsOnGoByTcp) {
  for (const char* program :
       {"sshd", "inetd", "xinetd", "bash", "-bash", "sh", "dash", "rsync", "sshd-session", "sshd-auth", "vsftpd"}) {
    EXPECT_EQ(tcp_socket(program, ""), tcp) << program;
    EXPECT_FALSE(rules_for(program, "").process_is_off()) << program;
  }
}

TEST_F(PreloadRulesTest, BuiltInNamesAreWhole) {
  for (const char* program : {"ssh", "shttpd", "rsyncd", "SSHD", "bashful", ""}) {
    EXPECT_EQ(tcp_socket(program, ""), rdma) << program;
  }
}

TEST_F(PreloadRulesTest, TheFileGoesBeforeTheBuiltInRules) {
  EXPECT_EQ(tcp_socket("sshd", "ssh INET STREAM TCP"), rdma);
  EXPECT_EQ(tcp_socket("sshd", "* * * * * 5432 tcp"), tcp) << "a list of exceptions does not take sshd";
}

// -- wrong lines

struct WrongLine {
  const char* description;
  const char* line;
  const char* reason;
};

class WrongLines : public PreloadRulesTest, public testing::WithParamInterface<WrongLine> {};

TEST_P(WrongLines, AreToldWithFileNumberAndReasonAndSkipped) {
  const std::string file = std::string("# first\n") + GetParam().line + "\np INET * *\n";
  const PreloadRules rules = rules_for("p", file);
  EXPECT_THAT(lines_, ElementsAre(AllOf(testing::StartsWith("FILE:2: "), HasSubstr(GetParam().reason),
                                        testing::EndsWith("; the line is skipped"))));
  EXPECT_EQ(lines_.front().find('\n'), std::string::npos);
  // The lines around it count.
  EXPECT_EQ(rules.for_socket(AF_INET, SOCK_STREAM, 0), rdma);
  EXPECT_EQ(rules.for_socket(AF_INET6, SOCK_STREAM, 0), tcp);
}

INSTANTIATE_TEST_SUITE_P(
    PreloadRules, WrongLines,
    testing::Values(WrongLine{"TooShort", "p INET6 STREAM", "needs program, domain, type and protocol"},
                    WrongLine{"Domain", "p INET7 STREAM TCP", "\"INET7\" is no domain"},
                    WrongLine{"PrefixOfAnother", "p SOCK_INET6 * *", "\"SOCK_INET6\" is no domain"},
                    WrongLine{"Type", "p INET6 RAW *", "\"RAW\" is no type"},
                    WrongLine{"Protocol", "p INET6 * SCTP", "\"SCTP\" is no protocol"},
                    WrongLine{"Action", "p INET6 * * deny", "\"deny\" is neither an address"},
                    WrongLine{"ActionNotLast", "p INET6 * * tcp ::1", "\"tcp\" is neither an address"},
                    WrongLine{"Address", "p INET6 * * 10.0.0.256", "\"10.0.0.256\" is neither an address"},
                    WrongLine{"PrefixLength", "p INET6 * * 10.0.0.0/33", "is neither an address"},
                    WrongLine{"EmptyPrefixLength", "p INET6 * * ::/", "is neither an address"},
                    WrongLine{"Port", "p INET6 * * * http", "\"http\" is neither a port"},
                    WrongLine{"PortZero", "p INET6 * * * 0", "\"0\" is neither a port"},
                    WrongLine{"PortTooLarge", "p INET6 * * * 1-65536", "is neither a port"},
                    WrongLine{"OpenRange", "p INET6 * * * 80-", "is neither a port"},
                    WrongLine{"RangeUpsideDown", "p INET6 * * * 81-80", "ends before it begins"},
                    WrongLine{"TooLong", "p INET6 * * * 80 81 rdma", "\"81\" is not an action"},
                    WrongLine{"OffWithDomain", "p INET6 * * off", "\"off\" is for the whole process"},
                    WrongLine{"OffWithPort", "p * * * * 80 off", "\"off\" is for the whole process"},
                    WrongLine{"Garbage", "\x01\xff p q r", "\"p\" is no domain"}),
    [](const auto& info) { return info.param.description; });

TEST_F(PreloadRulesTest, FileOfWrongLinesOnlyIsNoFile) {
  EXPECT_EQ(tcp_socket("p", "one\ntwo words\n"), rdma);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("FILE:1:"), HasSubstr("FILE:2:")));
}

// -- the file

class PreloadFileTest : public testing::Test {
 protected:
  PreloadFileTest() {
    std::string name = testing::TempDir() + "/preload_rules_XXXXXX";
    directory_ = ::mkdtemp(name.data());
  }
  ~PreloadFileTest() override { std::filesystem::remove_all(directory_); }
  [[nodiscard]] std::string file() const { return directory_ + "/preload_config"; }
  PreloadAction load(const std::string& program) {
    return PreloadRules::load(directory_.c_str(), program, [this](const std::string& line) { lines_.push_back(line); })
        .for_socket(AF_INET, SOCK_STREAM, 0);
  }
  std::string directory_;
  std::vector<std::string> lines_;
};

TEST_F(PreloadFileTest, IsReadFromTheDirectory) {
  std::ofstream(file()) << "redis INET STREAM TCP\nwrong\n";
  EXPECT_EQ(load("redis"), rdma);
  EXPECT_EQ(load("nginx"), tcp);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr(file() + ":2: "), HasSubstr(file() + ":2: ")));
}

TEST_F(PreloadFileTest, MayBeMissingWithItsDirectory) {
  EXPECT_EQ(load("redis"), rdma);
  std::filesystem::remove_all(directory_);
  EXPECT_EQ(load("redis"), rdma);
  EXPECT_EQ(load("sshd"), tcp);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(PreloadFileTest, ThatIsNoFileIsReportedAndEverythingIsTaken) {
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_EQ(load("redis"), rdma);
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr(file()), HasSubstr("cannot be read"))));
}

TEST_F(PreloadFileTest, MayBeLongerThanAnOptionFile) {
  std::ofstream(file()) << std::string(100'000, '#') << "\nredis * * *\n";
  EXPECT_EQ(load("nginx"), tcp);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST(PreloadSample, HasNoRuleInForceAndOnlyValidExamples) {
  const std::string path = std::string(TOP_SRCDIR) + "/conf/rsocket/preload_config";
  std::ifstream sample(path);
  ASSERT_TRUE(sample) << path;
  std::vector<std::string> lines;
  const Report report = [&](const std::string& line) { lines.push_back(line); };
  unsigned examples = 0;
  for (std::string line; std::getline(sample, line);) {
    ASSERT_TRUE(line.empty() || line.starts_with('#')) << line;
    if (!line.starts_with("#! ")) continue;
    ++examples;
    [[maybe_unused]] const PreloadRules rules = PreloadRules::parse(line.substr(3), path, "p", report);
  }
  EXPECT_GE(examples, 5u);
  EXPECT_THAT(lines, IsEmpty());
}

}  // namespace
}  // namespace ringsock::config
