// SocketXtreme for programs of rsockets, which get VMA's table by rgetsockopt(-1) (VMA_SOCKETXTREME=1).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <rdma/rsocket.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/stories/rsocket_pair.h"
#include "tests/support/ring_program.h"

namespace ringsock::stories {
namespace {

using support::api;
using support::ring_of;
using support::RingProgram;

constexpr std::uint64_t kNew = VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED;

class PolledRsockets : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("VMA_SOCKETXTREME", "1", 1);
    socklen_t length = sizeof(void*);
    ASSERT_EQ(rgetsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &support::own_table, &length), 0);
  }
};

TEST_F(PolledRsockets, AServerAcceptsReceivesAndAnswers) {
  Listener listener;
  RingProgram program(ring_of(listener.socket));
  const Rsocket client = connect_to(listener);
  const auto accepted = program.accept();
  const Rsocket server(accepted.fd);
  EXPECT_EQ(accepted.listener, listener.socket.fd());
  EXPECT_EQ(ntohs(accepted.from.sin_port), local_name(client).port());
  client.say("question");
  ASSERT_TRUE(program.until([&] { return program[server].bytes == "question"; }));
  server.say("answer");
  EXPECT_EQ(client.hear(), "answer");
  EXPECT_EQ(program[server].events, std::vector<std::uint64_t>{kNew});
}

TEST_F(PolledRsockets, ALongStreamArrivesAsItWas) {
  Listener listener;
  RingProgram program(ring_of(listener.socket));
  const Rsocket client = connect_to(listener);
  const Rsocket server(program.accept().fd);
  std::string sent(5'000'000, '\0');
  std::uint32_t seed = 7;
  for (char& one : sent) one = static_cast<char>((seed = seed * 1'664'525 + 1'013'904'223) >> 24);
  std::thread sends([&] {
    client.say(sent);
    rshutdown(client, SHUT_WR);
  });
  EXPECT_TRUE(program.until([&] { return (program[server].all() & EPOLLRDHUP) != 0; }));
  sends.join();
  EXPECT_TRUE(program[server].bytes == sent);
}

TEST_F(PolledRsockets, AConnectThatDoesNotBlockIsToldWhenItIsMade) {
  Listener listener;
  RingProgram program(ring_of(listener.socket));
  const Rsocket client(rsocket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(rfcntl(client, F_SETFL, O_NONBLOCK), 0);
  const int connected = rconnect(client, listener.name.get(), listener.name.length);
  ASSERT_TRUE(connected == 0 || errno == EINPROGRESS);
  const Rsocket server(program.accept().fd);
  EXPECT_TRUE(program.until([&] { return !program[client].events.empty(); }));
  EXPECT_EQ(program[client].events, std::vector<std::uint64_t>{EPOLLOUT});
  client.say("hello");
  EXPECT_TRUE(program.until([&] { return program[server].bytes == "hello"; }));
}

TEST_F(PolledRsockets, AConnectToNobodyIsAnErrorOnce) {
  Listener listener;
  RingProgram program(ring_of(listener.socket));
  Listener gone;
  Address nobody = gone.name;
  gone.socket.close();
  const Rsocket client(rsocket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(rfcntl(client, F_SETFL, O_NONBLOCK), 0);
  if (rconnect(client, nobody.get(), nobody.length) != 0 && errno != EINPROGRESS) return;  // it is known at once
  EXPECT_TRUE(program.until([&] { return !program[client].events.empty(); }));
  EXPECT_EQ(program[client].all() & (EPOLLERR | EPOLLHUP), std::uint64_t{EPOLLERR | EPOLLHUP});
  program.poll_for(std::chrono::milliseconds(20));
  EXPECT_EQ(program[client].events.size(), 1U);
}

TEST_F(PolledRsockets, UserDataNamesASocket) {
  Listener listener;
  RingProgram program(ring_of(listener.socket));
  const Rsocket client = connect_to(listener);
  const Rsocket server(program.accept().fd);
  void* data = reinterpret_cast<void*>(std::uintptr_t{0xABC00000003});
  ASSERT_EQ(rsetsockopt(server, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), 0);
  client.say("named");
  EXPECT_TRUE(program.until([&] { return program.told[0xABC00000003].bytes == "named"; }));
}

TEST_F(PolledRsockets, ASocketMayHaveARingOfItsOwn) {
  Listener listener;
  RingProgram program(ring_of(listener.socket));
  const Rsocket client(rsocket(AF_INET, SOCK_STREAM, 0));
  vma_ring_alloc_logic_attr wish{};
  wish.comp_mask = VMA_RING_ALLOC_MASK_RING_INGRESS;
  wish.ring_alloc_logic = RING_LOGIC_PER_SOCKET;
  wish.ingress = 1;
  ASSERT_EQ(rsetsockopt(client, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &wish, sizeof wish), 0);
  ASSERT_EQ(rconnect(client, listener.name.get(), listener.name.length), 0);
  RingProgram own(ring_of(client));
  EXPECT_NE(ring_of(client), ring_of(listener.socket));
  const Rsocket server(program.accept().fd);
  EXPECT_EQ(ring_of(server), ring_of(listener.socket));
  server.say("to its own ring");
  ASSERT_TRUE(own.until([&] { return own[client].bytes == "to its own ring"; }));
  client.say("to the process's");
  ASSERT_TRUE(program.until([&] { return program[server].bytes == "to the process's"; }));
  EXPECT_EQ(own.told.size(), 1U);
}

TEST_F(PolledRsockets, ClosedSocketsLeaveTheRing) {
  Listener listener;
  RingProgram program(ring_of(listener.socket));
  for (int i = 0; i < 200; ++i) {
    const Rsocket client = connect_to(listener);
    const Rsocket server(program.accept().fd);
    client.say("short");
    ASSERT_TRUE(program.until([&] { return program[server].bytes == "short"; })) << i;
    program[server] = {};
    program[client] = {};
  }
}

}  // namespace
}  // namespace ringsock::stories
