#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "core/base/unique_fd.h"
#include "tests/support/child.h"
#include "tests/unit/tools/local_port.h"
#include "tools/stream_session.h"

namespace ringsock::tools {
namespace {

using ringsock::testing::Child;
using ringsock::testing::ReservedPort;

std::vector<std::string> names(const std::vector<StreamTest>& tests) {
  std::vector<std::string> out;
  for (const StreamTest& test : tests) out.push_back(test.name);
  return out;
}

TEST(StreamSeries, HasUpstreamsTests) {
  EXPECT_THAT(names(latency_tests(false)), ::testing::ElementsAre("64_lat", "4k_lat", "64k_lat", "1m_lat"));
  const auto all = bandwidth_tests(true);
  ASSERT_EQ(all.size(), 33u);
  EXPECT_EQ(all.front().name, "64_bw");
  EXPECT_EQ(all[8].name, "1.5k_bw");
  EXPECT_EQ(all.back().name, "6m_bw");
  EXPECT_EQ(all.front().transfers, 100'000u);
  EXPECT_EQ(all.back().transfers, 100u);
  EXPECT_EQ(latency_tests(false).front().iterations, 100'000u);
  EXPECT_EQ(latency_tests(false).front().transfers, 1u);
}

/// Both ends of a session over kernel sockets, the server in this process' child.
struct StreamSessionTest : ::testing::Test {
  StreamOptions options() {
    StreamOptions out;
    out.kernel = true;
    out.port = port.text();
    return out;
  }
  StreamOptions client_options() {
    StreamOptions out = options();
    out.server = "127.0.0.1";
    return out;
  }
  ReservedPort port;
};

TEST_F(StreamSessionTest, BytesArriveInEveryMode) {
  using Flag = bool StreamOptions::*;
  for (const Flag mode : {&StreamOptions::blocking, &StreamOptions::async, &StreamOptions::verify}) {
    ReservedPort other;
    StreamOptions serving = options();
    serving.port = other.text();
    serving.*mode = true;
    StreamOptions connecting = serving;
    connecting.server = "127.0.0.1";
    Child server = Child::start([&](ringsock::testing::Channel& parent) {
      StreamSession session(serving);
      if (!session.listen(0) || !parent.send(true)) return 1;
      std::vector<std::byte> data(1 << 20);
      if (!session.open_connection(Optimization::none, 0) || !session.receive_all(data)) return 2;
      return session.send_all(data) ? 0 : 3;
    });
    ASSERT_TRUE(server.channel().receive<bool>());
    StreamSession session(connecting);
    ASSERT_TRUE(session.open_connection(Optimization::none, 0));
    const std::vector<std::byte> sent(1 << 20, std::byte{0x42});
    std::vector<std::byte> received(1 << 20);
    EXPECT_TRUE(session.send_all(sent));
    EXPECT_TRUE(session.receive_all(received));
    EXPECT_EQ(sent, received);
    EXPECT_EQ(server.wait(), 0);
  }
}

TEST_F(StreamSessionTest, APeerThatDiesIsAnErrorInsteadOfAHang) {
  Child server = Child::start([&](ringsock::testing::Channel& parent) {
    StreamSession session(options());
    if (!session.listen(0) || !parent.send(true)) return 1;
    if (!session.open_connection(Optimization::none, 0)) return 2;
    std::byte first{};
    static_cast<void>(session.receive_all({&first, 1}));
    ::raise(SIGKILL);
    return 3;
  });
  ASSERT_TRUE(server.channel().receive<bool>());
  StreamSession session(client_options());
  ASSERT_TRUE(session.open_connection(Optimization::none, 0));
  const std::byte first{1};
  ASSERT_TRUE(session.send_all({&first, 1}));
  std::byte never{};
  EXPECT_EQ(session.receive_all({&never, 1}).error().code, ECONNRESET);
}

TEST_F(StreamSessionTest, NobodyListening) {
  StreamSession session(client_options());
  EXPECT_EQ(session.open_connection(Optimization::none, 0).error().code, ECONNREFUSED);
}

}  // namespace
}  // namespace ringsock::tools
