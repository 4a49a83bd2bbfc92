// Many connections at once, and ids whose link is drained by other threads.
#include <atomic>
#include <thread>

#include "tests/unit/shm_cm/other_process.h"
#include "tests/unit/shm_cm/soft_host.h"

namespace ringsock::tests {
namespace {

TEST(SoftIdThreads, ManyClientsAreServed) {
  constexpr int kClients = 3;
  constexpr int kConnectsEach = 60;
  SoftHost host;
  auto listener = host.listener(kLoopback, 2);
  const SocketAddress address = listener->local_address();

  std::vector<std::thread> clients;
  std::atomic<int> established{0};
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      SoftHost mine;
      for (int round = 0; round < kConnectsEach; ++round) {
        End client = start_connect(mine, address);
        if (next(*client.id).type == CmEventType::established) ++established;
        EXPECT_EQ(next(*client.id).type, CmEventType::disconnected);
        client.close();
      }
    });
  }
  for (int served = 0; served < kClients * kConnectsEach; ++served) {
    End server = take_request(host, *listener);
    ASSERT_TRUE(server.id);
    EXPECT_TRUE(server.id->accept({}));
    EXPECT_TRUE(server.id->disconnect());
    server.close();
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(established, kClients * kConnectsEach);
}

TEST(SoftIdThreads, ADisconnectIsNotLostWhenAPollerDrainsTheLink) {
  SoftHost host(true);
  auto listener = host.listener();
  for (int round = 0; round < 20; ++round) {
    auto [client, server] = connect(host, *listener);
    std::atomic<bool> stop{false};
    // One thread polls completions and the channel all the time; this one only asks for events.
    std::thread poller([&] {
      ibv_wc wc{};
      while (!stop) {
        ibv_poll_cq(host.cq.get(), 1, &wc);
        if (const auto cq = host.device->get_cq_event(*host.channel)) host.device->ack_cq_events(**cq, 1);
      }
    });
    EXPECT_TRUE(client.id->disconnect());
    const Nanos give_up = monotonic_now() + std::chrono::seconds(10);
    CmEventType heard = CmEventType::device_removal;
    while (heard != CmEventType::disconnected && monotonic_now() < give_up) {
      const auto event = server.id->next_event();
      if (event) heard = event->type;
    }
    EXPECT_EQ(heard, CmEventType::disconnected);
    stop = true;
    poller.join();
    server.close();
    client.close();
  }
}

TEST(SoftIdThreads, KillingClientsAtAnyMomentLeavesTheListenerWorking) {
  SoftHost host;
  auto listener = host.listener(kLoopback, 4);
  const SocketAddress address = listener->local_address();
  std::uint32_t seed = 12345;
  for (int round = 0; round < 20; ++round) {
    OtherProcess victim(::geteuid(), [&](Channel parent) {
      SoftHost mine;
      parent.tell(1);
      for (;;) {
        End client = start_connect(mine, address);
        next(*client.id);
        client.close();
      }
      return 0;
    });
    ASSERT_TRUE(victim.channel().hear());
    // The victim dies after a number of the server's steps that differs from round to round.
    seed = seed * 1664525 + 1013904223;
    const std::uint32_t steps = 1 + (seed >> 16) % 40;
    std::vector<End> ends;
    for (std::uint32_t step = 0; step < steps; ++step) {
      auto event = listener->next_event();
      if (!event) continue;
      End server{std::move(event->request), {}};
      server.qp = host.queue_pair(*server.id);
      if (step % 3 != 0) [[maybe_unused]]
        const Status accepted = server.id->accept({});
      ends.push_back(std::move(server));
    }
    victim.signal(SIGKILL);
    victim.wait();
    for (End& end : ends) end.close();
  }
  while (listener->next_event()) {
  }
  auto [client, server] = connect(host, *listener);
  server.close();
  client.close();
}

}  // namespace
}  // namespace ringsock::tests
