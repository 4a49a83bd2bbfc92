// rsstat beside processes that talk over rsockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tests/stories/rsocket_pair.h"
#include "tests/support/child.h"

namespace ringsock::stories {
namespace {

using nlohmann::json;
using ringsock::testing::Channel;
using ringsock::testing::Child;
using ::testing::HasSubstr;

struct Output {
  std::string text;
  int status = -1;
};

Output rsstat(const std::string& arguments) {
  Output out;
  std::FILE* pipe = ::popen((RSSTAT " " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return out;
  std::array<char, 4096> part;
  while (const std::size_t length = std::fread(part.data(), 1, part.size(), pipe)) out.text.append(part.data(), length);
  out.status = WEXITSTATUS(::pclose(pipe));
  return out;
}

std::string only(const Child& process) { return "-p " + std::to_string(process.pid()); }

/// What rsstat says of one process; null when it does not list it.
json seen(const Child& process) {
  const Output out = rsstat("--json " + only(process));
  EXPECT_EQ(out.status, 0) << out.text;
  const json all = json::parse(out.text, nullptr, false);
  EXPECT_FALSE(all.is_discarded()) << out.text;
  return all["processes"].empty() ? json() : all["processes"][0];
}

/// The socket in this state.
json socket_of(const json& process, const std::string& state) {
  for (const json& socket : process["sockets"]) {
    if (socket["state"] == state) return socket;
  }
  return {};
}

/// A server that reads `bytes` from one client and answers with half as many, in messages of 50 bytes; then it waits.
int serve(Channel& channel, int bytes) {
  Rsocket listener(rsocket(AF_INET, SOCK_STREAM, 0));
  Address address = address_of("127.0.0.1");
  if (rbind(listener, address.get(), address.length) != 0 || rlisten(listener, 1) != 0) return 1;
  rgetsockname(listener, address.get(), &address.length);
  channel.send(address.port());
  const Rsocket peer(raccept(listener, nullptr, nullptr));
  std::string data(static_cast<std::size_t>(bytes), '\0');
  if (rrecv(peer, data.data(), data.size(), MSG_WAITALL) != bytes) return 2;
  for (int sent = 0; sent < bytes / 2; sent += 50) {
    if (rsend(peer, data.data(), 50, 0) != 50) return 3;
  }
  channel.send('d');
  return channel.receive<char>() ? 0 : 4;
}

int use(Channel& channel, std::uint16_t port, int bytes) {
  const Rsocket socket(rsocket(AF_INET, SOCK_STREAM, 0));
  Address address = address_of("127.0.0.1", port);
  if (rconnect(socket, address.get(), address.length) != 0) return 1;
  std::string data(static_cast<std::size_t>(bytes), 'x');
  if (rsend(socket, data.data(), data.size(), 0) != bytes) return 2;
  if (rrecv(socket, data.data(), data.size() / 2, MSG_WAITALL) != bytes / 2) return 3;
  channel.send('d');
  return channel.receive<char>() ? 0 : 4;
}

/// A server and a client that have exchanged their bytes and now wait.
class Rsstat : public ::testing::Test {
 protected:
  static constexpr int kBytes = 1000;
  void SetUp() override {
    if (::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "there is no /dev/shm to write to";
    server_.emplace(Child::start([](Channel& channel) { return serve(channel, kBytes); }));
    const auto port = server_->channel().receive<std::uint16_t>();
    ASSERT_TRUE(port);
    client_.emplace(Child::start([port](Channel& channel) { return use(channel, *port, kBytes); }));
    ASSERT_TRUE(server_->channel().receive<char>());
    ASSERT_TRUE(client_->channel().receive<char>());
  }
  std::optional<Child> server_, client_;
};

TEST_F(Rsstat, ListsBothEndsOfAConnectionWithTheirBytes) {
  const json server = seen(*server_), client = seen(*client_);
  ASSERT_TRUE(server.is_object() && client.is_object());
  EXPECT_EQ(server["pid"], server_->pid());
  EXPECT_EQ(server["connections"]["embedded"]["accepted"], 1);
  EXPECT_EQ(client["connections"]["embedded"]["connected"], 1);
  EXPECT_EQ(client["connections"]["kernel"], json::parse(R"({"connected": 0, "accepted": 0, "reasons": {}})"));
  EXPECT_TRUE(socket_of(server, "listening").is_object());

  const json accepted = socket_of(server, "connected"), connected = socket_of(client, "connected");
  ASSERT_TRUE(accepted.is_object() && connected.is_object());
  EXPECT_EQ(accepted["path"], "embedded");
  EXPECT_EQ(accepted["local"], connected["peer"]);
  EXPECT_EQ(accepted["peer"], connected["local"]);
  EXPECT_EQ(accepted["bytes_in"], kBytes);
  EXPECT_EQ(accepted["bytes_out"], kBytes / 2);
  EXPECT_EQ(accepted["messages_out"], kBytes / 2 / 50);
  EXPECT_EQ(connected["bytes_out"], kBytes);
  EXPECT_EQ(connected["bytes_in"], kBytes / 2);
  EXPECT_EQ(client["total"]["bytes_out"], kBytes);
}

TEST_F(Rsstat, TableNamesProgramAndPeer) {
  const json server = seen(*server_);
  const Output table = rsstat(only(*client_));
  EXPECT_EQ(table.status, 0);
  EXPECT_THAT(table.text, HasSubstr("[" + std::to_string(client_->pid()) +
                                    "]: 1 connections by ring (1 embedded, 0 rdma, 0 accepted), 0 by kernel TCP"));
  EXPECT_THAT(table.text, HasSubstr(socket_of(server, "listening")["local"].get<std::string>()));
  EXPECT_THAT(table.text, HasSubstr("all since start"));
}

TEST_F(Rsstat, DeadProcessIsNotListed) {
  client_->kill(SIGKILL);
  const std::string filter = only(*client_);
  client_->wait();
  EXPECT_EQ(rsstat(filter).text, "no such process uses ringsock\n");
}

TEST_F(Rsstat, ChoosesByTheBeginningOfTheProgramsName) {
  const std::string name = ::program_invocation_short_name;
  EXPECT_THAT(rsstat("--json --program " + name.substr(0, 5) + " " + only(*client_)).text, HasSubstr(name));
  EXPECT_EQ(rsstat("--program no-such-program").text, "no such process uses ringsock\n");
}

TEST_F(Rsstat, WatchesUntilNobodyReads) {
  // The second document comes after the pause; then head closes the pipe.
  const Output out = rsstat("--watch=0.01 --json " + only(*server_) + " | head -n 2");
  const std::size_t end = out.text.find('\n');
  ASSERT_NE(end, std::string::npos) << out.text;
  for (const std::string& line : {out.text.substr(0, end), out.text.substr(end + 1)}) {
    const json document = json::parse(line, nullptr, false);
    ASSERT_FALSE(document.is_discarded()) << line;
    EXPECT_EQ(document["processes"][0]["pid"], server_->pid());
  }
}

TEST_F(Rsstat, WatchTakesSecondsAsAWordOfTheirOwn) {
  EXPECT_THAT(rsstat("-w 0.01 " + only(*server_) + " | head -n 20").text, HasSubstr(" messages/s "));
}

TEST(RsstatOptions, MistakesAreTold) {
  for (const std::string arguments : {"--nonsense", "-p x", "-w0", "--watch=soon", "word", "-w 1 word"}) {
    const Output out = rsstat(arguments);
    EXPECT_EQ(out.status, 1) << arguments;
    EXPECT_THAT(out.text, HasSubstr("usage: rsstat")) << arguments;
  }
  const Output help = rsstat("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.text, HasSubstr("--watch [SECONDS]"));
}

}  // namespace
}  // namespace ringsock::stories
