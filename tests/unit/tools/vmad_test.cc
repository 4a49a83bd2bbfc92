// vmad without a system: its messages, what it knows, resets in virtual time, its files and its options.
#include <fcntl.h>
#include <getopt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "core/wire/ip.h"
#include "libvmacompat/agent/messages.h"
#include "tools/tcp_reset.h"
#include "tools/vmad_files.h"
#include "tools/vmad_options.h"
#include "tools/vmad_service.h"

namespace ringsock::tools {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
namespace agent = vma::agent;

constexpr std::uint32_t kVersion = agent::library_version(9, 8, 8, 4);

// -- messages

TEST(AgentMessages, HaveTheLengthsAndNumbersOfVma) {
  EXPECT_EQ(agent::encode({.pid = 7, .body = agent::Init{kVersion}}).size, 12u);
  EXPECT_EQ(agent::encode({.pid = 7, .body = agent::State{}}).size, 26u);
  EXPECT_EQ(agent::encode({.pid = 7, .body = agent::Exit{}}).size, 8u);
  EXPECT_EQ(agent::encode({.pid = 7, .body = agent::Flow{}}).size, 30u);
  EXPECT_EQ(agent::accept_init(7, kVersion).size, 12u);
  EXPECT_EQ(agent::refuse_flow(7).size, 8u);
  const auto init = agent::encode({.pid = 0x01020304, .body = agent::Init{kVersion}});
  EXPECT_EQ(init.bytes[0], std::byte{1});
  EXPECT_EQ(init.bytes[1], std::byte{3}) << "the version of the messages";
  EXPECT_EQ(agent::accept_init(7, 1).bytes[0], std::byte{0x81});
  EXPECT_EQ(agent::refuse_flow(7).bytes[0], std::byte{0x84});
  EXPECT_EQ(agent::refuse_flow(7).bytes[2], std::byte{1}) << "the status";
}

TEST(AgentMessages, AreReadAsTheyWereWritten) {
  const agent::State state{.id = 5,
                           .source = {1},
                           .destination = {2},
                           .source_port = 3,
                           .destination_port = 4,
                           .type = 1,
                           .state = agent::State::kEstablished};
  const auto read = agent::parse(agent::encode({.pid = 9, .body = state}).span());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->pid, 9);
  const auto& same = std::get<agent::State>(read->body);
  EXPECT_EQ(same.id, 5u);
  EXPECT_EQ(same.destination.s_addr, 2u);
  EXPECT_EQ(same.destination_port, 4);
  EXPECT_EQ(same.state, agent::State::kEstablished);
  EXPECT_TRUE(
      std::holds_alternative<agent::Exit>(agent::parse(agent::encode({.pid = 1, .body = agent::Exit{}}).span())->body));
  EXPECT_TRUE(std::get<agent::Flow>(agent::parse(agent::encode({.pid = 1, .body = agent::Flow{true}}).span())->body)
                  .wants_answer);
}

TEST(AgentMessages, EveryOtherLengthAndUnknownCodesAreRefused) {
  for (const agent::Message& message :
       {agent::Message{.pid = 1, .body = agent::Init{}}, agent::Message{.pid = 1, .body = agent::State{}},
        agent::Message{.pid = 1, .body = agent::Exit{}}, agent::Message{.pid = 1, .body = agent::Flow{}}}) {
    const auto encoded = agent::encode(message);
    for (std::size_t size = 0; size <= encoded.bytes.size(); ++size) {
      const bool is_right = size == encoded.size;
      EXPECT_EQ(static_cast<bool>(agent::parse(std::span(encoded.bytes).first(size))), is_right) << size;
    }
  }
  auto unknown = agent::encode({.pid = 1, .body = agent::Exit{}});
  for (const int code : {0, 5, 0x7f, 0x81, 0xff}) {
    unknown.bytes[0] = static_cast<std::byte>(code);
    EXPECT_EQ(agent::parse(unknown.span()).error().code, EPROTO) << code;
  }
  EXPECT_FALSE(agent::parse(agent::encode({.pid = 0, .body = agent::Exit{}}).span()));
  EXPECT_FALSE(agent::parse(agent::encode({.pid = -5, .body = agent::Exit{}}).span()));
}

TEST(AgentMessages, AClientRefusesAnOlderServiceAndForeignAnswers) {
  EXPECT_TRUE(agent::parse_init_answer(agent::accept_init(7, kVersion).span(), 7));
  EXPECT_EQ(agent::parse_init_answer(agent::accept_init(8, kVersion).span(), 7).error().code, EPROTO);
  EXPECT_EQ(agent::parse_init_answer(agent::refuse_flow(7).span(), 7).error().code, EPROTO);
  auto older = agent::accept_init(7, kVersion);
  older.bytes[1] = std::byte{2};
  EXPECT_EQ(agent::parse_init_answer(older.span(), 7).error().code, EPROTONOSUPPORT);
}

// -- the service

class FakeSystem final : public VmadSystem {
 public:
  void answer(pid_t pid, std::span<const std::byte> bytes) override { answers.emplace_back(pid, bytes[0]); }
  bool watch(pid_t pid) override { return !dead.contains(pid) && watched.insert(pid).second; }
  void unwatch(pid_t pid) override { watched.erase(pid); }
  bool has_raw_sockets(pid_t pid) override { return privileged.contains(pid); }
  void reset(const TcpPair& pair) override { resets.push_back(pair); }
  void remove_files(pid_t pid) override { removed.push_back(pid); }
  void log(int, const std::string& line) override { lines.push_back(line); }

  std::vector<std::pair<pid_t, std::byte>> answers;
  std::set<pid_t> watched, dead, privileged{100, 101};
  std::vector<TcpPair> resets;
  std::vector<pid_t> removed;
  std::vector<std::string> lines;
};

class VmadServiceTest : public testing::Test {
 protected:
  template <class Body>
  void say(pid_t pid, const Body& body) {
    service_.received(pid, agent::encode({.pid = pid, .body = body}).span());
  }
  static agent::State connection(std::uint32_t id, std::uint8_t state = agent::State::kEstablished) {
    return {.id = id,
            .source = {htonl(0x0a000001)},
            .destination = {htonl(0x0a000002)},
            .source_port = htons(static_cast<std::uint16_t>(id)),
            .destination_port = htons(80),
            .type = 1,
            .state = state};
  }
  FakeSystem system_;
  VmadService service_{system_};
};

TEST_F(VmadServiceTest, AProcessThatDiesHasItsEstablishedConnectionsResetAndItsFilesRemoved) {
  say(100, agent::Init{kVersion});
  EXPECT_THAT(system_.answers, ElementsAre(std::pair(100, std::byte{0x81})));
  say(100, connection(1));
  say(100, connection(2));
  say(100, connection(3, 2));
  say(100, connection(2, agent::State::kClosed));
  EXPECT_EQ(service_.connections(), 2u);

  service_.has_ended(100);
  ASSERT_THAT(system_.resets, SizeIs(1));
  EXPECT_EQ(system_.resets[0].source_port, htons(1));
  EXPECT_THAT(system_.removed, ElementsAre(100));
  EXPECT_EQ(service_.processes(), 0u);
  EXPECT_EQ(service_.connections(), 0u);
}

TEST_F(VmadServiceTest, AProcessThatTakesLeaveLeavesItsPeersAlone) {
  say(100, agent::Init{kVersion});
  say(100, connection(1));
  say(100, agent::Exit{});
  EXPECT_THAT(system_.watched, IsEmpty());
  service_.has_ended(100);
  EXPECT_THAT(system_.resets, IsEmpty());
  EXPECT_THAT(system_.removed, ElementsAre(100));
}

TEST_F(VmadServiceTest, NobodySpeaksForAnother) {
  say(100, agent::Init{kVersion});
  say(100, connection(1));
  const auto of_victim = [](auto body) { return agent::encode({.pid = 100, .body = body}); };
  service_.received(66, of_victim(connection(1, agent::State::kClosed)).span());
  service_.received(66, of_victim(agent::Exit{}).span());
  service_.received(0, of_victim(agent::Exit{}).span());
  EXPECT_EQ(service_.connections(), 1u);
  EXPECT_THAT(system_.lines.back(), HasSubstr("speaks for process 100"));
}

TEST_F(VmadServiceTest, AProcessWithoutRawSocketsHasNothingReset) {
  say(200, agent::Init{kVersion});
  say(200, connection(1));
  service_.has_ended(200);
  EXPECT_THAT(system_.resets, IsEmpty());
  EXPECT_THAT(system_.removed, ElementsAre(200));
}

TEST_F(VmadServiceTest, WhoHasNotBegunIsNotListenedTo) {
  say(100, connection(1));
  say(100, agent::Exit{});
  say(100, agent::Flow{true});
  service_.has_ended(100);
  EXPECT_EQ(service_.connections(), 0u);
  EXPECT_THAT(system_.answers, IsEmpty());
  EXPECT_THAT(system_.removed, IsEmpty());
}

TEST_F(VmadServiceTest, AProgramThatIsExecutedBeginsAnew) {
  say(100, agent::Init{kVersion});
  say(100, connection(1));
  say(100, agent::Init{kVersion});
  EXPECT_EQ(service_.connections(), 0u);
  EXPECT_EQ(service_.processes(), 1u);
  EXPECT_THAT(system_.answers, SizeIs(2));
}

TEST_F(VmadServiceTest, RulesOfTrafficControlAreRefused) {
  say(100, agent::Init{kVersion});
  say(100, agent::Flow{.wants_answer = false});
  say(100, agent::Flow{.wants_answer = true});
  EXPECT_THAT(system_.answers, ElementsAre(std::pair(100, std::byte{0x81}), std::pair(100, std::byte{0x84})));
}

TEST_F(VmadServiceTest, ProcessesAndConnectionsAreBounded) {
  for (pid_t pid = 1000; pid < 1000 + 5000; ++pid) say(pid, agent::Init{kVersion});
  EXPECT_EQ(service_.processes(), VmadService::kMostProcesses);
  for (std::uint32_t id = 0; id < 70'000; ++id) say(1000, connection(id));
  EXPECT_EQ(service_.connections(), VmadService::kMostConnections);
  service_.has_ended(1000);
  EXPECT_EQ(service_.connections(), 0u) << "and their places are free again";
}

TEST_F(VmadServiceTest, OneThatHasEndedBeforeItIsWatchedIsForgotten) {
  system_.dead.insert(100);
  say(100, agent::Init{kVersion});
  EXPECT_EQ(service_.processes(), 0u);
  EXPECT_THAT(system_.answers, IsEmpty());
}

// -- resets

class TcpResetsTest : public testing::Test {
 protected:
  TcpResets resets(bool forced) {
    return {{.interval = 1s, .forced = forced}, [this](const TcpPacket& packet, std::uint32_t to) {
              sent_.push_back(packet);
              EXPECT_EQ(to, pair_.destination);
            }};
  }
  /// The peer's ACK of `number` for our connection.
  TcpPacket ack(std::uint32_t number, std::uint8_t flags = 0x10) const {
    TcpPacket out = make_rst({.source = pair_.destination,
                              .destination = pair_.source,
                              .source_port = pair_.destination_port,
                              .destination_port = pair_.source_port},
                             1);
    const std::uint32_t acknowledged = htonl(number);
    std::memcpy(out.data() + 28, &acknowledged, sizeof acknowledged);
    out[33] = static_cast<std::byte>(flags);
    return out;
  }
  static std::uint8_t flags_of(const TcpPacket& packet) { return std::to_integer<std::uint8_t>(packet[33]); }
  static std::uint32_t sequence_of(const TcpPacket& packet) {
    std::uint32_t network = 0;
    std::memcpy(&network, packet.data() + 24, sizeof network);
    return ntohl(network);
  }
  const TcpPair pair_{.source = htonl(0x0a000001),
                      .destination = htonl(0x0a000002),
                      .source_port = htons(4000),
                      .destination_port = htons(80)};
  std::vector<TcpPacket> sent_;
};

TEST_F(TcpResetsTest, PacketsHaveRightChecksums) {
  for (const TcpPacket& packet : {make_syn(pair_), make_rst(pair_, 77)}) {
    const auto ip = wire::parse_ipv4(packet);
    ASSERT_TRUE(ip) << "the header's checksum";
    auto sum = wire::pseudo_header_sum(ip->header.source, ip->header.destination, 6, 20);
    EXPECT_TRUE(sum.add(ip->payload).is_valid());
  }
  EXPECT_EQ(sequence_of(make_syn(pair_)), 1u);
  EXPECT_EQ(sequence_of(make_rst(pair_, 77)), 77u);
}

TEST_F(TcpResetsTest, ASynIsSentThreeTimesUnlessThePeerAnswers) {
  TcpResets silent = resets(false);
  silent.begin(pair_, 10s);
  EXPECT_EQ(silent.next(), 10s);
  silent.go_on(10s);
  silent.go_on(10500ms);
  EXPECT_THAT(sent_, SizeIs(1));
  for (const Nanos now : {11s, 12s, 13s, 14s}) silent.go_on(now);
  EXPECT_THAT(sent_, SizeIs(3));
  EXPECT_EQ(silent.count(), 0u);
  EXPECT_EQ(silent.next(), Nanos::max());

  sent_.clear();
  TcpResets answered = resets(false);
  answered.begin(pair_, 0s);
  answered.go_on(0s);
  answered.received(ack(1000));
  answered.go_on(1s);
  EXPECT_THAT(sent_, SizeIs(1)) << "the host's kernel answers the ACK";
  EXPECT_EQ(flags_of(sent_[0]), 0x02);
  EXPECT_EQ(answered.count(), 0u);
}

TEST_F(TcpResetsTest, ForcedOnesUseTheNumberThatThePeerExpects) {
  TcpResets forced = resets(true);
  forced.begin(pair_, 0s);
  forced.go_on(0s);
  forced.received(ack(123456));
  ASSERT_THAT(sent_, SizeIs(2));
  EXPECT_EQ(flags_of(sent_[1]), 0x04);
  EXPECT_EQ(sequence_of(sent_[1]), 123456u);

  // A peer that knows no such connection needs none.
  forced.begin(pair_, 5s);
  forced.go_on(5s);
  forced.received(ack(0, 0x14));
  EXPECT_THAT(sent_, SizeIs(3));
  EXPECT_EQ(forced.count(), 0u);
}

TEST_F(TcpResetsTest, ForeignPacketsChangeNothing) {
  TcpResets one = resets(true);
  one.begin(pair_, 0s);
  one.go_on(0s);
  const TcpPacket right = ack(5);
  for (std::size_t size = 0; size < right.size(); ++size) one.received(std::span(right).first(size));
  TcpPacket other_port = right;
  other_port[23] ^= std::byte{1};
  one.received(other_port);
  TcpPacket udp = right;
  udp[9] = std::byte{17};
  one.received(udp);
  one.received(ack(5, 0x02));
  EXPECT_EQ(one.count(), 1u);
  EXPECT_THAT(sent_, SizeIs(1));
}

TEST_F(TcpResetsTest, AreBounded) {
  TcpResets many = resets(false);
  TcpPair pair = pair_;
  for (std::uint32_t i = 0; i < TcpResets::kMost + 10; ++i) {
    pair.source = i;
    many.begin(pair, 0s);
  }
  EXPECT_EQ(many.count(), TcpResets::kMost);
}

// -- files

class VmadFilesTest : public testing::Test {
 protected:
  VmadFilesTest() { EXPECT_NE(::mkdtemp(place_.data()), nullptr); }
  ~VmadFilesTest() override { std::filesystem::remove_all(place_); }
  std::string file(const std::string& name) const { return place_ + "/vma/" + name; }
  static std::string of_us(const char* suffix) { return "vma_agent." + std::to_string(::getpid()) + suffix; }

  std::string place_ = "/tmp/vmad.XXXXXX";
};

TEST_F(VmadFilesTest, TheDirectoryIsMadeForAllUsers) {
  ASSERT_TRUE(VmadFiles::open(place_ + "/vma"));
  struct stat about {};
  ASSERT_EQ(::stat((place_ + "/vma").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 01777u);
  EXPECT_TRUE(VmadFiles::open(place_ + "/vma")) << "one that is there is as good";
}

TEST_F(VmadFilesTest, ALinkIsNoDirectory) {
  std::filesystem::create_directory_symlink("/tmp", place_ + "/vma");
  EXPECT_FALSE(VmadFiles::open(place_ + "/vma"));
}

TEST_F(VmadFilesTest, FilesOfProcessesAreFoundByTheirNamesAndRemoved) {
  const auto files = VmadFiles::open(place_ + "/vma");
  ASSERT_TRUE(files);
  for (const char* const name : {"vma_agent.7.sock", "vma_agent.7.pid", "vma_agent.12.pid", "vma_agent.x.pid", "other"})
    std::ofstream(file(name)).close();
  EXPECT_THAT(files->present(), ElementsAre(7, 12));
  files->remove(7);
  EXPECT_THAT(files->present(), ElementsAre(12));
  EXPECT_TRUE(std::filesystem::exists(file("other")));
}

TEST_F(VmadFilesTest, NamesAreExact) {
  EXPECT_EQ(process_of_file("vma_agent.1.sock"), 1);
  EXPECT_EQ(process_of_file("vma_agent.2147483647.pid"), 2147483647);
  for (const char* const name :
       {"", "vma_agent.", "vma_agent..pid", "vma_agent.0.pid", "vma_agent.01.pid", "vma_agent.-1.pid",
        "vma_agent.2147483648.pid", "vma_agent.1.pid.x", "vma_agent.1", "vma_agent.1/../2.pid"})
    EXPECT_EQ(process_of_file(name), 0) << name;
}

TEST_F(VmadFilesTest, OnlyASocketOfTheClientsUserIsAnswered) {
  const auto files = VmadFiles::open(place_ + "/vma");
  ASSERT_TRUE(files);
  EXPECT_EQ(files->socket_of(::getpid()).error().code, ENOENT);
  const std::string name = file(of_us(".sock"));
  std::ofstream(name).close();
  EXPECT_EQ(files->socket_of(::getpid()).error().code, EPERM) << "a file";
  std::filesystem::remove(name);

  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (place_ + "/real").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  std::filesystem::create_symlink(place_ + "/real", name);
  EXPECT_EQ(files->socket_of(::getpid()).error().code, EPERM) << "a link to a socket";
  std::filesystem::remove(name);
  std::filesystem::rename(place_ + "/real", name);
  EXPECT_TRUE(files->socket_of(::getpid()));
}

// -- options

VmadParsed parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "vmad");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::optind = 0;
  return parse_vmad_options(static_cast<int>(arguments.size()), pointers.data());
}

TEST(VmadOptions, AreThoseOfVma) {
  const auto defaults = parse({});
  ASSERT_TRUE(defaults.options);
  EXPECT_EQ(defaults.options->notify_directory, "/tmp/vma");
  EXPECT_EQ(defaults.options->socket, "/var/run/vma_agent.sock");
  EXPECT_EQ(defaults.options->lock_file, "/var/lock/vmad.lock");
  EXPECT_EQ(defaults.options->retry_interval, 1000ms);
  EXPECT_FALSE(defaults.options->console);

  const auto all =
      parse({"--console", "-n", "/run/vma", "-v", "5", "-p", "499", "-f", "65599", "--force-rst", "-r", "20"});
  ASSERT_TRUE(all.options) << all.problem;
  EXPECT_TRUE(all.options->console);
  EXPECT_EQ(all.options->notify_directory, "/run/vma");
  EXPECT_EQ(all.options->verbosity, 5);
  EXPECT_TRUE(all.options->forced_resets);
  EXPECT_EQ(all.options->retry_interval, 20ms);
}

TEST(VmadOptions, WrongOnesAreNamed) {
  EXPECT_EQ(parse({"-r", "0"}).problem, "wrong value for --retry-interval: 0");
  EXPECT_EQ(parse({"-v", "9"}).problem, "wrong value for --verbose: 9");
  EXPECT_EQ(parse({"-n", "vma"}).problem, "wrong value for --notify-dir: vma")
      << "a service has no directory of its own";
  EXPECT_EQ(parse({"-p", "many"}).problem, "wrong value for --pid: many");
  EXPECT_EQ(parse({"start"}).problem, "what is start?");
}

}  // namespace
}  // namespace ringsock::tools
