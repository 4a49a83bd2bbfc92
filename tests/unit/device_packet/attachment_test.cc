// How the kernel is kept from seeing what a ring takes, and what is left of it when a process is killed: nothing.
#include <gtest/gtest.h>
#include <sys/file.h>

#include <csignal>
#include <vector>

#include "tests/support/child.h"
#include "tests/unit/device_packet/packet_test.h"

namespace ringsock::testing {
namespace {

constexpr const char* kGuardian = "core/device/packet/flow-guardian";  // in the build tree, where tests run

class PacketClsact : public PacketTest {
 protected:
  /// What tc shows at bob's end.
  [[nodiscard]] std::string attached() const {
    const std::string file = "/tmp/device_packet_test." + std::to_string(::getpid());
    world->bob.sh("{ tc filter show dev eth-bob ingress; tc qdisc show dev eth-bob | grep -v noqueue; } > " + file +
                  " 2>&1 || true");
    std::string out;
    if (FILE* stream = std::fopen(file.c_str(), "r")) {
      char line[256];
      while (std::fgets(line, sizeof line, stream) != nullptr) out += line;
      std::fclose(stream);
    }
    ::unlink(file.c_str());
    return out;
  }
  /// Until nothing is attached; the kernel, or the guardian, takes a moment.
  [[nodiscard]] std::string left_after_a_second() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    std::string left;
    do {
      left = attached();
    } while (!left.empty() && std::chrono::steady_clock::now() < end);
    return left;
  }
};

class PacketAttachment : public PacketClsact, public ::testing::WithParamInterface<soft::Attachment> {
 protected:
  [[nodiscard]] RingOptions options() const { return {.device = {.attachment = GetParam(), .guardian = kGuardian}}; }
  /// A process that has a ring with one flow, and tells of what arrives there.
  Child owner(const SocketAddress& port) const {
    return Child::start([this, port](Channel& channel) {
      TestRing ring(world->bob, options());
      const auto flow = ring.take({.protocol = IPPROTO_UDP, .destination = port});
      channel.send(true);
      while (const auto arrival = ring.receive(std::chrono::seconds(30))) channel.send(arrival->payload() == "taken");
      return 1;
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, PacketAttachment, ::testing::Values(soft::Attachment::tcx, soft::Attachment::clsact),
                         [](const auto& info) { return info.param == soft::Attachment::tcx ? "Tcx" : "Clsact"; });

TEST_P(PacketAttachment, AKilledProcessGivesItsFlowsBackAndLeavesNothing) {
  const UniqueFd alice = world->alice.udp_socket(), shadow = world->bob.udp_socket();
  const SocketAddress port = local_address(shadow.get());
  Child process = owner(port);
  ASSERT_EQ(process.channel().receive<bool>(), true);
  send_to(alice, port, "taken");
  ASSERT_EQ(process.channel().receive<bool>(), true);

  process.kill(SIGKILL);
  process.wait();

  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::string got;
  while (got != "back" && std::chrono::steady_clock::now() < end) {
    send_to(alice, port, "back");
    got = receive_from(shadow, 10);
  }
  EXPECT_EQ(got, "back");
  EXPECT_EQ(left_after_a_second(), "");
}

TEST_P(PacketAttachment, AClosedDeviceLeavesNothing) {
  const UniqueFd alice = world->alice.udp_socket(), shadow = world->bob.udp_socket();
  {
    TestRing ring(world->bob, options());
    const auto flow = ring.take({.protocol = IPPROTO_UDP, .destination = local_address(shadow.get())});
    send_to(alice, local_address(shadow.get()), "ring");
    EXPECT_EQ(ring.receive()->payload(), "ring");
  }
  EXPECT_EQ(attached(), "");
  send_to(alice, local_address(shadow.get()), "kernel");
  EXPECT_EQ(receive_from(shadow), "kernel");
}

TEST_P(PacketAttachment, TwoProcessesDoNotDisturbEachOther) {
  const UniqueFd alice = world->alice.udp_socket();
  const UniqueFd one = world->bob.udp_socket(), two = world->bob.udp_socket();
  Child first = owner(local_address(one.get())), second = owner(local_address(two.get()));
  ASSERT_EQ(first.channel().receive<bool>(), true);
  ASSERT_EQ(second.channel().receive<bool>(), true);

  first.kill(SIGKILL);
  first.wait();

  send_to(alice, local_address(two.get()), "taken");
  EXPECT_EQ(second.channel().receive<bool>(), true);
  second.kill(SIGKILL);
  second.wait();
  EXPECT_EQ(left_after_a_second(), "");
}

TEST_P(PacketAttachment, ProcessesThatComeAtOnceLeaveNothing) {
  const UniqueFd socket = world->bob.udp_socket();
  const SocketAddress port = local_address(socket.get());
  for (int round = 0; round < 5; ++round) {
    std::vector<Child> owners;
    for (int i = 0; i < 3; ++i) owners.push_back(owner(port));
    for (Child& one : owners) ASSERT_EQ(one.channel().receive<bool>(), true);
    for (Child& one : owners) {
      one.kill(SIGKILL);
      one.wait();
    }
    ASSERT_EQ(left_after_a_second(), "") << "round " << round;
  }
}

TEST_F(PacketClsact, AQdiscThatWasThereBeforeStays) {
  world->bob.sh("tc qdisc add dev eth-bob clsact");
  { TestRing ring(world->bob, {.device = {.attachment = soft::Attachment::clsact, .guardian = kGuardian}}); }
  EXPECT_NE(attached().find("clsact"), std::string::npos);
}

TEST_F(PacketClsact, OnesOwnQdiscIsKnownAlsoByWhoComesBeforeItIsMarked) {
  const auto with_ring = [&](Channel& channel) {
    TestRing ring(world->bob, {.device = {.attachment = soft::Attachment::clsact, .guardian = kGuardian}});
    channel.send(true);
    return channel.receive<bool>() ? 0 : 1;
  };
  // The first guardian's turn: it has made the qdisc, its filter, which says so by its priority, is still to come.
  ASSERT_EQ(::flock(world->bob.space.get(), LOCK_EX), 0);
  world->bob.sh("tc qdisc add dev eth-bob clsact");
  Child second = Child::start(with_ring);
  // Time enough for who does not wait for his turn.
  for (int looks = 0; looks < 20 && attached().find("filter") == std::string::npos; ++looks) {
  }
  world->bob.sh("tc filter add dev eth-bob ingress prio 42874 protocol all bpf bytecode '1,6 0 0 0'");
  ASSERT_EQ(::flock(world->bob.space.get(), LOCK_UN), 0);
  ASSERT_EQ(second.channel().receive<bool>(), true);

  world->bob.sh("tc filter del dev eth-bob ingress prio 42874");
  second.kill(SIGKILL);
  second.wait();
  EXPECT_EQ(left_after_a_second(), "");
}

TEST_F(PacketClsact, WithoutAGuardianThereIsNoFilter) {
  const auto device =
      open_device(world->bob, {.attachment = soft::Attachment::clsact, .guardian = "/nonexistent/guardian"});
  EXPECT_EQ(device.error().code, EOPNOTSUPP);
}

}  // namespace
}  // namespace ringsock::testing
