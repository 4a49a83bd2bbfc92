// What a sender is told when changes and questions cross.
#include "core/net/network_state.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/unit/net/fake_kernel.h"

namespace ringsock::net {
namespace {

const IpAddress kDestination = IpAddress::v4(0xc0000201);  // 192.0.2.1
const IpAddress kOther = IpAddress::v4(0xc6336401);        // 198.51.100.1
constexpr MacAddress kMac = {2, 0, 0, 0, 0, 2};
constexpr MacAddress kOtherMac = {2, 0, 0, 0, 0, 3};
constexpr int kLink = 2;

Link some_link(std::uint32_t mtu = 1500) {
  Link link;
  link.index = kLink;
  link.name = "eth0";
  link.type = 1;
  link.mtu = mtu;
  return link;
}

class NetworkStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    script.tables = {LinkEvent{some_link()}};
    script.path.type = PathType::unicast;
    script.path.oif = kLink;
    auto opened = NetworkState::open(std::make_unique<FakeKernel>(script));
    ASSERT_TRUE(opened);
    state = *opened;
  }

  Path path(const IpAddress& destination = kDestination) {
    auto answer = state->path_to({.destination = destination});
    EXPECT_TRUE(answer);
    return answer ? *answer : Path{};
  }
  static PathQuery flow_to(std::uint16_t port) {
    return {.destination = kDestination, .protocol = IPPROTO_UDP, .source_port = 123, .destination_port = port};
  }
  /// The kernel tells of `events`, and they are processed.
  void tell(std::vector<KernelEvent> events) {
    script.events.push_back({std::move(events)});
    state->process_events();
  }
  static NeighbourEvent neighbour_is(NeighbourState what, const MacAddress& mac = kMac) {
    return {kLink, kDestination, {what, mac}};
  }
  static RouteEvent route_to(const IpAddress& destination) { return {{destination, 32}}; }

  KernelScript script;
  std::shared_ptr<NetworkState> state;
};

// -- paths

TEST_F(NetworkStateTest, KernelIsAskedOncePerAddress) {
  for (std::uint16_t port = 1; port < 100; ++port) EXPECT_FALSE(state->path_to(flow_to(port))->depends_on_ports);
  EXPECT_EQ(script.questions, 1);
  EXPECT_EQ(script.questions_about_ports, 1);
  path(kOther);
  EXPECT_EQ(script.questions, 2);
}

TEST_F(NetworkStateTest, KernelIsAskedOncePerFlowWhilePortsDecide) {
  script.ports_decide = true;
  EXPECT_TRUE(state->path_to(flow_to(53))->depends_on_ports);
  EXPECT_TRUE(state->path_to(flow_to(54))->depends_on_ports);
  EXPECT_TRUE(state->path_to(flow_to(53))->depends_on_ports);
  EXPECT_EQ(script.questions, 2);
  EXPECT_EQ(script.questions_about_ports, 1);
}

TEST_F(NetworkStateTest, ANewRuleMayMakePortsDecideAndItsEndEndsThat) {
  EXPECT_FALSE(state->path_to(flow_to(53))->depends_on_ports);
  script.ports_decide = true;
  const auto before = state->generation();
  tell({RoutingEvent{AF_INET}});
  EXPECT_GT(state->generation(), before);
  EXPECT_TRUE(state->path_to(flow_to(53))->depends_on_ports);
  EXPECT_TRUE(state->path_to(flow_to(54))->depends_on_ports);
  script.ports_decide = false;
  tell({RoutingEvent{AF_INET6}});  // concerns no IPv4 flow
  EXPECT_TRUE(state->path_to(flow_to(54))->depends_on_ports);
  tell({RoutingEvent{AF_INET}});
  EXPECT_FALSE(state->path_to(flow_to(54))->depends_on_ports);
  EXPECT_EQ(script.questions, 4);
}

TEST_F(NetworkStateTest, ARuleThatCrossesTheQuestionAboutPortsCounts) {
  script.before_answer = [&] {
    script.before_answer = [] {};
    script.ports_decide = true;
    tell({RoutingEvent{AF_INET}});
  };
  EXPECT_TRUE(state->path_to(flow_to(53))->depends_on_ports);
  EXPECT_EQ(script.questions_about_ports, 2);
}

TEST_F(NetworkStateTest, TenThousandPeersAreAskedAboutOnceEach) {
  constexpr std::uint32_t kPeers = 10'000;
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < kPeers; ++i) path(IpAddress::v4(0x0a000000 + i));
  }
  EXPECT_EQ(script.questions, static_cast<int>(kPeers));
}

TEST_F(NetworkStateTest, PathIsCompletedFromItsLink) {
  EXPECT_EQ(path().mtu, 1500u);
  EXPECT_EQ(path().hop_limit, 64);
}

TEST_F(NetworkStateTest, RouteEventMovesTheGenerationOnlyOfWhomItConcerns) {
  path();
  const auto before = state->generation();
  tell({route_to(kOther)});
  EXPECT_EQ(state->generation(), before);
  path();
  EXPECT_EQ(script.questions, 1);
  tell({route_to(kDestination)});
  EXPECT_GT(state->generation(), before);
  path();
  EXPECT_EQ(script.questions, 2);
}

TEST_F(NetworkStateTest, AnswerThatAChangeOvertookIsAskedAgain) {
  script.before_answer = [&] {
    script.before_answer = [] {};
    script.path.next_hop = kOther;  // what the kernel says from now on
    tell({route_to(kDestination)});
  };
  EXPECT_EQ(path().next_hop, kOther);
  EXPECT_EQ(script.questions, 2);
  EXPECT_EQ(path().next_hop, kOther);
  EXPECT_EQ(script.questions, 2);
}

TEST_F(NetworkStateTest, ChangesWithoutEndStillGiveAnAnswerButOneThatIsAskedAgain) {
  script.before_answer = [&] { tell({route_to(kDestination)}); };
  const auto before = state->generation();
  EXPECT_EQ(path().type, PathType::unicast);
  EXPECT_GT(state->generation(), before);
  script.before_answer = [] {};
  const int questions = script.questions;
  path();
  EXPECT_EQ(script.questions, questions + 1);
}

TEST_F(NetworkStateTest, RuleOfAnotherFamilyConcernsNobody) {
  path();
  const auto before = state->generation();
  tell({RoutingEvent{AF_INET6}});
  EXPECT_EQ(state->generation(), before);
  tell({RoutingEvent{AF_INET}});
  EXPECT_GT(state->generation(), before);
}

TEST_F(NetworkStateTest, OtherFiltersConcernSendersAndListeners) {
  std::vector<NetworkChange::What> told;
  state->add_listener([&](const NetworkChange& change) { told.push_back(change.what); });
  const auto before = state->generation();
  tell({FiltersEvent{}});
  EXPECT_GT(state->generation(), before);
  EXPECT_EQ(told, std::vector{NetworkChange::What::filters});
}

TEST_F(NetworkStateTest, AddressConcernsItsFamilyAndIsToldOnce) {
  path();
  std::vector<NetworkChange::What> told;
  state->add_listener([&](const NetworkChange& change) { told.push_back(change.what); });
  const AddressEvent event{{.ifindex = kLink, .address = kOther, .peer = kOther, .broadcast = {}, .prefix_length = 24}};
  tell({event});
  tell({event});  // the kernel repeats itself
  EXPECT_EQ(told, (std::vector{NetworkChange::What::address, NetworkChange::What::paths}));
}

TEST_F(NetworkStateTest, AnswerExpiresWhenTheKernelSaidSo) {
  script.path_valid_for = std::chrono::seconds(5);
  path();
  EXPECT_EQ(script.wake_at, script.now + std::chrono::seconds(5));
  const auto before = state->generation();
  script.now += std::chrono::seconds(4);
  state->process_events();
  EXPECT_EQ(state->generation(), before);
  script.now += std::chrono::seconds(1);
  state->process_events();
  EXPECT_GT(state->generation(), before);
  path();
  EXPECT_EQ(script.questions, 2);
}

TEST_F(NetworkStateTest, TooBigIsLookedAtTwiceSinceTheKernelMayBeSlower) {
  path();
  tell({PathMtuEvent{kDestination}});
  EXPECT_EQ(path().mtu, 1500u);  // the kernel has not acted yet
  script.path.mtu = 1300;
  EXPECT_EQ(path().mtu, 1500u);
  ASSERT_GT(script.wake_at, script.now);
  script.now = script.wake_at;
  state->process_events();
  EXPECT_EQ(path().mtu, 1300u);
}

TEST_F(NetworkStateTest, FloodOfTooBigEndsAndForgetsAll) {
  path();
  for (std::uint32_t i = 0; i < 2000; ++i) tell({PathMtuEvent{IpAddress::v4(0x0a000000 + i)}});
  const auto before = state->generation();
  script.now += std::chrono::seconds(1);
  state->process_events();
  EXPECT_EQ(state->generation(), before + 1);
  EXPECT_LT(script.wake_at, script.now) << "nothing is left to look at";
}

TEST_F(NetworkStateTest, ForgottenPathIsAskedAgain) {
  path();
  path(kOther);
  const auto before = state->generation();
  state->forget_paths_to(kDestination);
  EXPECT_GT(state->generation(), before);
  path();
  path(kOther);
  EXPECT_EQ(script.questions, 3);
}

TEST_F(NetworkStateTest, MoreFlowsThanAreKeptAreStillTold) {
  for (std::uint32_t i = 0; i < 20000; ++i) path(IpAddress::v4(0x0a000000 + i));
  const auto before = state->generation();
  tell({route_to(IpAddress::v4(0x0a000000))});  // long dropped, and somebody may use it
  EXPECT_GT(state->generation(), before);
}

TEST_F(NetworkStateTest, UnknownLinkIsReadWhenAPathLeadsThere) {
  script.path.oif = 7;
  Link link = some_link(1234);
  link.index = 7;
  script.tables.push_back(LinkEvent{link});
  EXPECT_EQ(path().mtu, 1234u);
}

TEST_F(NetworkStateTest, TablesThatAnEventOvertookAreReadAgain) {
  script.path.oif = 7;
  Link unknown = some_link(1234);
  unknown.index = 7;
  script.tables.push_back(LinkEvent{unknown});
  script.while_tables_are_read = [&] {
    script.tables[0] = LinkEvent{some_link(1400)};
    tell({LinkEvent{some_link(1400)}});
  };
  EXPECT_EQ(path().mtu, 1234u);
  EXPECT_EQ(state->link(kLink)->mtu, 1400u) << "not what was read before the event";
}

// -- neighbours

TEST_F(NetworkStateTest, EventsThatNobodyAskedForDoNothing) {
  const auto before = state->generation();
  tell({neighbour_is(NeighbourState::reachable)});
  EXPECT_EQ(state->generation(), before);
}

TEST_F(NetworkStateTest, NeighbourEventOvertakesTheAnswer) {
  script.neighbour = {NeighbourState::reachable, kMac};
  script.before_answer = [&] {
    script.before_answer = [] {};
    script.neighbour.mac = kOtherMac;
    tell({neighbour_is(NeighbourState::reachable, kOtherMac)});
  };
  EXPECT_EQ(state->neighbour(kLink, kDestination)->facts().mac, kOtherMac);
}

TEST_F(NetworkStateTest, WhoFindsANeighbourBeforeTheAnswerToAnotherThreadAsksToo) {
  script.neighbour = {NeighbourState::reachable, kMac};
  NeighbourFacts of_the_other;
  script.before_answer = [&] {
    script.before_answer = [] {};
    of_the_other = state->neighbour(kLink, kDestination)->facts();
  };
  EXPECT_TRUE(state->neighbour(kLink, kDestination)->facts().is_usable());
  EXPECT_EQ(of_the_other, (NeighbourFacts{NeighbourState::reachable, kMac}));
}

TEST_F(NetworkStateTest, OnlyWhatASenderNeedsMovesTheGeneration) {
  script.neighbour = {NeighbourState::reachable, kMac};
  const auto neighbour = state->neighbour(kLink, kDestination);
  const auto moves = [&](const NeighbourEvent& event) {
    const auto before = state->generation();
    tell({event});
    return state->generation() > before;
  };
  EXPECT_FALSE(moves(neighbour_is(NeighbourState::stale)));
  EXPECT_FALSE(moves(neighbour_is(NeighbourState::probe)));
  EXPECT_FALSE(moves(neighbour_is(NeighbourState::reachable)));
  EXPECT_TRUE(moves(neighbour_is(NeighbourState::reachable, kOtherMac)));
  EXPECT_TRUE(moves(neighbour_is(NeighbourState::failed)));
  EXPECT_TRUE(moves(neighbour_is(NeighbourState::incomplete)));
  EXPECT_TRUE(moves(neighbour_is(NeighbourState::reachable)));
  EXPECT_EQ(neighbour->facts(), (NeighbourFacts{NeighbourState::reachable, kMac}));
}

TEST_F(NetworkStateTest, StaleInUseIsConfirmedStaleUnusedIsNot) {
  script.neighbour = {NeighbourState::reachable, kMac};
  const auto neighbour = state->neighbour(kLink, kDestination);
  tell({neighbour_is(NeighbourState::stale)});
  EXPECT_TRUE(script.used.empty());
  EXPECT_TRUE(neighbour->needs_refresh());
  tell({neighbour_is(NeighbourState::reachable)});
  EXPECT_FALSE(neighbour->needs_refresh());
  tell({neighbour_is(NeighbourState::stale)});
  EXPECT_EQ(script.used, (std::vector<std::pair<int, IpAddress>>{{kLink, kDestination}}));
}

TEST_F(NetworkStateTest, NeighboursNobodyHoldsAreDroppedTheOthersStay) {
  const auto held = state->neighbour(kLink, kDestination);
  const std::weak_ptr dropped = state->neighbour(kLink, IpAddress::v4(0x0a000000));
  for (std::uint32_t i = 1; i < 20'000; ++i) state->neighbour(kLink, IpAddress::v4(0x0a000000 + i));
  EXPECT_TRUE(dropped.expired());
  EXPECT_EQ(state->neighbour(kLink, kDestination), held);
  tell({neighbour_is(NeighbourState::reachable)});
  EXPECT_TRUE(held->facts().is_usable());
}

TEST_F(NetworkStateTest, HeldNeighbourOutlivesItsState) {
  script.neighbour = {NeighbourState::reachable, kMac};
  const auto held = state->neighbour(kLink, kDestination);
  state.reset();
  EXPECT_EQ(held->facts().mac, kMac);
}

// -- lost events

TEST_F(NetworkStateTest, AfterLossWhatIsOldIsTakenBeforeTheTablesAreRead) {
  script.neighbour = {NeighbourState::reachable, kMac};
  const auto neighbour = state->neighbour(kLink, kDestination);
  path();
  // The event of the newest MAC and MTU is lost; those before it are still in the queue.
  script.neighbour.mac = kOtherMac;
  script.tables = {LinkEvent{some_link(1300)}};
  script.events.push_back({{}, false, true});
  script.events.push_back({{neighbour_is(NeighbourState::reachable, {9, 9, 9, 9, 9, 9}), LinkEvent{some_link(1400)}}});
  const auto before = state->generation();
  state->process_events();
  EXPECT_EQ(neighbour->facts().mac, kOtherMac);
  EXPECT_EQ(state->link(kLink)->mtu, 1300u);
  EXPECT_GT(state->generation(), before);
  path();
  EXPECT_EQ(script.questions, 2);
}

TEST_F(NetworkStateTest, LinkThatWentUnnoticedIsGone) {
  script.tables.clear();
  script.events.push_back({{}, false, true});
  state->process_events();
  EXPECT_FALSE(state->link(kLink));
}

TEST_F(NetworkStateTest, TablesThatCannotBeReadAreTriedAgain) {
  script.tables_fail = true;
  script.events.push_back({{}, false, true});
  state->process_events();
  EXPECT_TRUE(state->link(kLink)) << "what was known stays";
  ASSERT_GT(script.wake_at, script.now);
  script.now = script.wake_at;
  script.tables_fail = false;
  script.tables = {LinkEvent{some_link(1300)}};
  state->process_events();
  EXPECT_EQ(state->link(kLink)->mtu, 1300u);
  const int reads = script.table_reads;
  script.now += std::chrono::seconds(10);
  state->process_events();
  EXPECT_EQ(script.table_reads, reads);
}

TEST_F(NetworkStateTest, TablesMustBeThereToBegin) {
  script.tables_fail = true;
  EXPECT_EQ(NetworkState::open(std::make_unique<FakeKernel>(script)).error().code, ENOMEM);
}

// -- listeners

TEST_F(NetworkStateTest, ListenerMayRemoveItselfAndAsk) {
  int calls = 0;
  NetworkState::ListenerId self = 0;
  self = state->add_listener([&](const NetworkChange& change) {
    ++calls;
    EXPECT_EQ(state->link(change.ifindex)->mtu, 1400u) << "tables are up to date by then";
    state->process_events();  // does nothing from within
    state->remove_listener(self);
  });
  tell({LinkEvent{some_link(1400)}});
  tell({LinkEvent{some_link(1300)}});
  EXPECT_EQ(calls, 1);
}

TEST_F(NetworkStateTest, RemovedLinkIsToldAndGone) {
  std::vector<int> told;
  state->add_listener([&](const NetworkChange& change) { told.push_back(change.ifindex); });
  tell({LinkEvent{some_link(), true}});
  EXPECT_EQ(told, std::vector{kLink});
  EXPECT_FALSE(state->link(kLink));
}

}  // namespace
}  // namespace ringsock::net
