// What a UDP socket leaves to the kernel and what to a ring, with a card and tables of routes that are the test's. The
// kernel's socket under it is a real one; what it sends goes to another socket of this process.
#include "libvmacompat/udp/udp_socket.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/posix_edge.h"
#include "core/base/unique_fd.h"
#include "core/ethernet/ring_events.h"
#include "core/extra_api/lent_packets.h"
#include "core/extra_api/packet_list.h"
#include "core/runtime/due_calls.h"
#include "core/runtime/library_call.h"
#include "core/wire/ethernet_frame.h"
#include "core/wire/frame_ends.h"
#include "core/wire/frame_parse.h"
#include "tests/support/packets.h"
#include "tests/unit/vma/fake_ethernet.h"

namespace ringsock::vma {
namespace {

const SocketAddress kCard = SocketAddress::v4(0x0a000001, 0);  ///< no interface of this host has it
const SocketAddress kAnywhere = SocketAddress::v4(INADDR_ANY, 0);
const SocketAddress kFar = SocketAddress::v4(0x0a000002, 5000);

SocketAddress with_port(SocketAddress address, std::uint16_t port) {
  address.set_port(port);
  return address;
}

/// A socket of the kernel only, on the loopback address.
class KernelsSocket {
 public:
  KernelsSocket() : fd_(::socket(AF_INET, SOCK_DGRAM, 0)) {
    const SocketAddress loopback = SocketAddress::v4(INADDR_LOOPBACK, 0);
    EXPECT_EQ(::bind(fd_.get(), loopback.get(), loopback.length()), 0);
  }
  [[nodiscard]] SocketAddress name() const {
    sockaddr_in name{};
    socklen_t length = sizeof name;
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
    return *SocketAddress::from(reinterpret_cast<const sockaddr*>(&name), length);
  }
  void send_to(std::uint16_t port, const std::string& text) const {
    const SocketAddress to = SocketAddress::v4(INADDR_LOOPBACK, port);
    EXPECT_EQ(::sendto(fd_.get(), text.data(), text.size(), 0, to.get(), to.length()),
              static_cast<ssize_t>(text.size()));
  }
  /// Everything that has come. The kernel delivers a datagram to this host before its sender's call returns.
  [[nodiscard]] std::vector<std::string> heard() const {
    std::vector<std::string> out;
    char text[64];
    for (ssize_t got = 0; (got = ::recv(fd_.get(), text, sizeof text, MSG_DONTWAIT)) >= 0;)
      out.emplace_back(text, static_cast<std::size_t>(got));
    return out;
  }

 private:
  UniqueFd fd_;
};

class UdpSocketTest : public testing::Test {
 protected:
  explicit UdpSocketTest(const SocketAddress& address = kCard)
      : world_(address), fd_(::socket(AF_INET, SOCK_DGRAM, 0)) {
    const int on = 1;  // so that it can be bound to the card's address
    EXPECT_EQ(::setsockopt(fd_.get(), IPPROTO_IP, IP_FREEBIND, &on, sizeof on), 0);
    socket_ = new UdpSocket(AF_INET, fd_.get());
    socket_->set_nonblocking(true);
  }
  ~UdpSocketTest() override {
    socket_->retire();
    socket_->drop_ref();
    EXPECT_EQ(card().flows, 0) << "no rule stays in the card";
    EXPECT_EQ(world_.interface->pool().statistics().in_use, 0U) << "all buffers have come back";
  }

  [[nodiscard]] fakes::FakeCard& card() const { return *world_.card; }
  void bind(const SocketAddress& local) { ASSERT_TRUE(socket_->bind(local.get(), local.length())); }
  [[nodiscard]] std::uint16_t port() const { return socket_->local_name()->port(); }

  /// Returns 0 or an errno value.
  int send(const SocketAddress& to, std::string text, int flags = 0) {
    iovec part{text.data(), text.size()};
    msghdr message{};
    sockaddr_in name = to.in4();
    message.msg_name = &name;
    message.msg_namelen = sizeof name;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const auto sent = socket_->send(message, flags);
    return sent ? 0 : sent.error().code;
  }
  /// Nothing when nothing has come.
  std::optional<std::string> receive(SocketAddress* from = nullptr) {
    std::string text(64, '\0');
    iovec part{text.data(), text.size()};
    msghdr message{};
    sockaddr_in name{};
    message.msg_name = &name;
    message.msg_namelen = sizeof name;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const auto got = socket_->receive(message, 0);
    if (!got) {
      EXPECT_EQ(got.error().code, EAGAIN);
      return std::nullopt;
    }
    if (from != nullptr) *from = *SocketAddress::from(reinterpret_cast<const sockaddr*>(&name), message.msg_namelen);
    text.resize(static_cast<std::size_t>(*got));
    return text;
  }
  /// A packet comes from the wire to an address of the card.
  void comes(const std::string& text, std::uint16_t to_port, const SocketAddress& from = kFar,
             const SocketAddress& at = kCard) {
    const SocketAddress to = with_port(at, to_port);
    ASSERT_TRUE(card().receive(support::packet_bytes(IPPROTO_UDP, from, to, text), IBV_WC_IP_CSUM_OK));
  }
  /// The payloads of what has left by the card.
  [[nodiscard]] std::vector<std::string> on_line() const {
    std::vector<std::string> out;
    for (const auto& [frame, flags] : card().line) {
      const auto layout = wire::parse_headers(frame, frame.size());
      out.emplace_back(reinterpret_cast<const char*>(frame.data()) + layout->payload, layout->payload_bytes);
    }
    return out;
  }

  using Texts = std::vector<std::string>;
  fakes::FakeEthernet world_;
  UniqueFd fd_;
  UdpSocket* socket_;
  KernelsSocket peer_;
};

// -- receiving -----------------------------------------------------------------------------------

TEST_F(UdpSocketTest, APacketForItsAddressComesByTheRing) {
  bind(kCard);
  EXPECT_EQ(card().flows, 1);
  comes("hello", port());
  SocketAddress from;
  EXPECT_EQ(receive(&from), "hello");
  EXPECT_EQ(from, kFar);
  EXPECT_EQ(receive(), std::nullopt);
}

TEST_F(UdpSocketTest, APacketForAnotherPortIsNotItsOwn) {
  bind(kCard);
  comes("for somebody else", static_cast<std::uint16_t>(port() ^ 1U));
  EXPECT_EQ(receive(), std::nullopt);
}

TEST_F(UdpSocketTest, BothWaysLeadToASocketOfAllAddresses) {
  bind(kAnywhere);
  comes("from the wire", port());
  peer_.send_to(port(), "from this host");
  Texts got;
  for (int looks = 0; got.size() < 2 && looks < 1000; ++looks) {  // it looks at the kernel's socket now and then
    if (auto text = receive()) got.push_back(*text);
  }
  EXPECT_EQ(got, (Texts{"from this host", "from the wire"}));
}

TEST_F(UdpSocketTest, ACardWithoutPlaceForARuleLeavesReceivingToTheKernel) {
  card().most_flows = 0;
  bind(kAnywhere);
  EXPECT_EQ(card().flows, 0);
  peer_.send_to(port(), "from this host");
  EXPECT_EQ(receive(), "from this host");
}

// -- sending -------------------------------------------------------------------------------------

TEST_F(UdpSocketTest, TheFirstDatagramIsTheKernelsAndOthersLeaveByTheRing) {
  for (const char* text : {"first", "second", "third"}) EXPECT_EQ(send(peer_.name(), text), 0);
  EXPECT_EQ(peer_.heard(), Texts{"first"}) << "the kernel gives the socket its port";
  EXPECT_EQ(on_line(), (Texts{"second", "third"}));
}

TEST_F(UdpSocketTest, AnswersComeToASocketThatHasOnlySent) {
  for (const char* text : {"first", "second"}) EXPECT_EQ(send(peer_.name(), text), 0);
  EXPECT_EQ(card().flows, 1);
  comes("an answer", port(), peer_.name());
  EXPECT_EQ(receive(), "an answer");
}

TEST_F(UdpSocketTest, AllPortsOfAHostShareTheWayThere) {
  bind(kCard);
  for (std::uint16_t port = 5000; port < 5200; ++port) EXPECT_EQ(send(with_port(kFar, port), "answer"), 0);
  EXPECT_EQ(world_.kernel.questions, 1);
  ASSERT_EQ(card().line.size(), 200U);
  std::uint16_t port = 5000;
  for (const auto& [frame, flags] : card().line) {
    const auto layout = wire::parse_headers(frame, frame.size());
    EXPECT_EQ(wire::destination_of(frame, *layout, 0), with_port(kFar, port++));
  }
}

TEST_F(UdpSocketTest, AChangeOfTheWayConcernsAllPortsOfTheHost) {
  bind(kCard);
  for (const std::uint16_t port : std::initializer_list<std::uint16_t>{5000, 5001})
    EXPECT_EQ(send(with_port(kFar, port), "before"), 0);
  constexpr net::MacAddress kOtherMac{2, 0, 0, 0, 0, 9};
  world_.happens(net::NeighbourEvent{
      fakes::FakeEthernet::kIndex, net::IpAddress::of(kFar), {net::NeighbourState::reachable, kOtherMac}});
  for (const std::uint16_t port : std::initializer_list<std::uint16_t>{5001, 5000, 5002}) {
    EXPECT_EQ(send(with_port(kFar, port), "after"), 0);
    EXPECT_EQ(std::memcmp(card().line.back().frame.data(), kOtherMac.data(), kOtherMac.size()), 0) << port;
  }
  world_.kernel.path.type = net::PathType::local;
  world_.happens(net::RouteEvent{{net::IpAddress::of(kFar), 32}});
  const std::size_t before = on_line().size();
  for (const std::uint16_t port : std::initializer_list<std::uint16_t>{5001, 5000, 5003})
    send(with_port(kFar, port), "the kernel's");
  EXPECT_EQ(on_line().size(), before);
}

TEST_F(UdpSocketTest, EachPortHasAWayOfItsOwnWhileARuleNamesPorts) {
  world_.kernel.ports_decide = true;
  bind(kCard);
  for (std::uint16_t port = 5000; port < 5010; ++port) EXPECT_EQ(send(with_port(kFar, port), "answer"), 0);
  EXPECT_EQ(world_.kernel.questions, 10);
  EXPECT_EQ(on_line().size(), 10U);
}

TEST_F(UdpSocketTest, OptionsOfTheSocketCountForPortsThatItMeetsLater) {
  bind(kCard);
  const auto hops = [&] { return std::to_integer<int>(card().line.back().frame[sizeof(wire::EthernetHeader) + 8]); };
  EXPECT_EQ(send(with_port(kFar, 5000), "far"), 0);
  EXPECT_EQ(hops(), 64);
  const int few = 9;
  ASSERT_TRUE(socket_->set_option(IPPROTO_IP, IP_TTL, &few, sizeof few));
  for (const std::uint16_t port : std::initializer_list<std::uint16_t>{5001, 5000, 5002}) {
    EXPECT_EQ(send(with_port(kFar, port), "near"), 0);
    EXPECT_EQ(hops(), few) << port;
  }
  EXPECT_EQ(world_.kernel.questions, 1);
}

TEST_F(UdpSocketTest, ADummySendLeavesByNoWay) {
  constexpr int kDummy = 0x400;
  EXPECT_EQ(send(peer_.name(), "dummy", kDummy), EINVAL) << "the socket has no port: the kernel would send";
  for (const char* text : {"first", "second"}) EXPECT_EQ(send(peer_.name(), text), 0);
  for (const char* text : {"dummy", ""}) EXPECT_EQ(send(peer_.name(), text, kDummy | MSG_DONTWAIT), 0);
  EXPECT_EQ(send(peer_.name(), std::string(1400, 'd'), kDummy), 0) << "too long for inline data";
  EXPECT_EQ(send(peer_.name(), std::string(2000, 'd'), kDummy), EINVAL) << "fragments are the kernel's";
  EXPECT_EQ(send(peer_.name(), "dummy", kDummy | MSG_MORE), EINVAL);
  EXPECT_EQ(peer_.heard(), Texts{"first"});
  EXPECT_EQ(on_line(), Texts{"second"});
}

TEST_F(UdpSocketTest, TheExtraApiLearnsItsRings) {
  RingSocket& api = socket_->api();
  EXPECT_TRUE(api.receiving_rings().empty());
  EXPECT_EQ(api.sending_ring(kFar), nullptr) << "it has no port";
  bind(kCard);
  ASSERT_EQ(api.receiving_rings().size(), 1U);
  EXPECT_EQ(api.sending_ring(kFar), api.receiving_rings().front());
  EXPECT_TRUE(api.headers_to_peer().empty()) << "it is not connected";
  world_.kernel.path.type = net::PathType::local;
  world_.happens(net::RouteEvent{{net::IpAddress::of(kFar), 32}});
  EXPECT_EQ(api.sending_ring(with_port(kFar, 5001)), nullptr) << "this host";
}

// -- datagrams in their buffers

/// The answer of a call of the application: 0, or an errno value.
template <class Body>
int call(Body body) {
  const int answer = runtime::as_library_call([&] { return to_posix(body); });
  return answer == -1 ? errno : 0;
}

/// A callback that does the same with every datagram.
struct Callback {
  static vma_recv_callback_retval_t see(int, std::size_t, iovec part[], vma_info_t* info, void* context) {
    auto& self = *static_cast<Callback*>(context);
    self.seen.emplace_back(static_cast<const char*>(part[0].iov_base), part[0].iov_len);
    self.packets.push_back(info->packet_id);
    return self.verdict;
  }
  vma_recv_callback_retval_t verdict;
  std::vector<std::string> seen{};
  std::vector<void*> packets{};
};

TEST_F(UdpSocketTest, ACallbackSeesEachDatagramWhereTheCallEnds) {
  bind(kCard);
  Callback callback{VMA_PACKET_DROP};
  EXPECT_TRUE(socket_->api().set_callback(Callback::see, &callback));
  comes("one", port());
  comes("two", port());
  int calls = 0;
  const auto receives = [&]() -> Result<int> {
    ++calls;
    char byte = 0;
    auto got = socket_->receive_bytes(&byte, 1, MSG_DONTWAIT);
    if (calls == 1) {
      EXPECT_EQ(got.error().code, EAGAIN) << "first the callback";
    }
    return got ? Result<int>(0) : got.error();
  };
  EXPECT_EQ(call(receives), EAGAIN);
  EXPECT_EQ(callback.seen, (Texts{"one", "two"}));
  EXPECT_EQ(calls, 1) << "it has left nothing";
}

TEST_F(UdpSocketTest, ACallThatDoesNotWaitIsMadeAgainForWhatTheCallbackLeaves) {
  bind(kCard);
  Callback callback{VMA_PACKET_RECV};
  EXPECT_TRUE(socket_->api().set_callback(Callback::see, &callback));
  comes("one", port());
  int calls = 0;
  EXPECT_EQ(call([&]() -> Result<int> {
              ++calls;
              char byte = 0;
              auto got = socket_->receive_bytes(&byte, 1, MSG_DONTWAIT);
              return got ? Result<int>(0) : got.error();
            }),
            0);
  EXPECT_EQ(callback.seen, Texts{"one"});
  EXPECT_EQ(calls, 2);
}

TEST_F(UdpSocketTest, ADatagramThatReadyFindsIsUnseenUntilTheCallEnds) {
  bind(kCard);
  Callback callback{VMA_PACKET_RECV};
  EXPECT_TRUE(socket_->api().set_callback(Callback::see, &callback));
  comes("one", port());
  EXPECT_EQ(call([&]() -> Result<int> {
              EXPECT_EQ(socket_->ready() & EPOLLIN, 0U);
              EXPECT_TRUE(runtime::has_due_calls());
              return 0;
            }),
            0);
  EXPECT_EQ(callback.seen, Texts{"one"});
  EXPECT_NE(socket_->ready() & EPOLLIN, 0U);
  EXPECT_EQ(receive(), "one");
}

TEST_F(UdpSocketTest, WhatACallbackHoldsReturnsWithTheSocket) {
  bind(kCard);
  Callback callback{VMA_PACKET_HOLD};
  EXPECT_TRUE(socket_->api().set_callback(Callback::see, &callback));
  for (int i = 0; i < 3; ++i) comes("held", port());
  call([&]() -> Result<int> { return static_cast<int>(socket_->ready() & 0U); });
  ASSERT_EQ(callback.packets.size(), 3U);
  EXPECT_EQ(lent_packets().count(), 3U);
  EXPECT_TRUE(lent_packets().take_back(socket_->api().lender(), callback.packets[1]));
  // The rest is the fixture's to count.
}

TEST_F(UdpSocketTest, AWholeDatagramLiesWhereTheCardHasPutIt) {
  bind(kCard);
  comes("hello", port());
  char room[64];
  iovec part{room, sizeof room};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  PacketList little(room, 23), list(room, sizeof room);
  auto nothing = socket_->api().receive_packets(little, message, MSG_DONTWAIT, false);
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code, ENOBUFS);
  auto got = socket_->api().receive_packets(list, message, MSG_DONTWAIT, true);
  ASSERT_TRUE(got);
  ASSERT_EQ(got->as, ApiSocket::Received::As::packets);
  EXPECT_EQ(got->bytes, 5);
  const auto& packets = *reinterpret_cast<const vma_packets_t*>(room);
  ASSERT_EQ(packets.n_packet_num, 1U);
  const auto& lent = *static_cast<const LentPacket*>(packets.pkts[0].packet_id);
  EXPECT_EQ(std::string(static_cast<const char*>(lent.buffer.payload), lent.buffer.len), "hello");
  EXPECT_NE(lent.memory.lkey(), 0U) << "registered memory";
  EXPECT_TRUE(lent_packets().take_back(socket_->api().lender(), &lent));
  peer_.send_to(port(), "lost?");  // the socket is bound to the card's address only
  PacketList none(room, sizeof room);
  EXPECT_FALSE(socket_->api().receive_packets(none, message, MSG_DONTWAIT, true));
}

TEST_F(UdpSocketTest, APollerOfItsRingGetsItsDatagramsAndKernelEvents) {
  bind(kAnywhere);
  const auto ring = socket_->api().receiving_rings().front();
  std::array<ethernet::SinkEvent, 4> events;
  ethernet::RingEvents poller;
  EXPECT_EQ(poller.collect(*ring, events), 0U);
  for (const char* text : {"1", "2", "3", "4", "5"}) comes(text, port());
  EXPECT_EQ(poller.collect(*ring, events), 4U);
  EXPECT_EQ(poller.collect(*ring, std::span(events).last(1)), 1U);
  EXPECT_EQ(events[0].user_data, static_cast<std::uint64_t>(fd_.get()));
  const auto payload = events[3].packet->packet().payload;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(payload.data()), payload.size()), "5");
  events = {};
  peer_.send_to(port(), "from this host");
  std::size_t found = 0;
  for (int looks = 0; found == 0 && looks < 1000; ++looks) found = poller.collect(*ring, events);
  ASSERT_EQ(found, 1U);
  EXPECT_FALSE(events[0].packet);
  EXPECT_EQ(events[0].events, static_cast<std::uint32_t>(EPOLLIN));
}

TEST_F(UdpSocketTest, WithoutReceivingItsRingSendsOn) {
  bind(kCard);
  constexpr int kShutdownRx = 2821;
  ASSERT_TRUE(socket_->set_option(SOL_SOCKET, kShutdownRx, nullptr, 0));
  EXPECT_EQ(card().flows, 0);
  EXPECT_EQ(send(peer_.name(), "by the ring"), 0);
  EXPECT_EQ(on_line(), Texts{"by the ring"});
  EXPECT_EQ(card().flows, 0);
}

TEST_F(UdpSocketTest, TheKernelSendsToThisHost) {
  world_.kernel.path.type = net::PathType::local;
  bind(kAnywhere);
  EXPECT_EQ(send(peer_.name(), "neighbour of my own"), 0);
  EXPECT_EQ(peer_.heard(), Texts{"neighbour of my own"});
  EXPECT_EQ(on_line(), Texts{});
}

TEST_F(UdpSocketTest, TheKernelSendsUntilTheNeighbourIsKnown) {
  world_.kernel.neighbour.state = net::NeighbourState::none;
  bind(kAnywhere);
  EXPECT_EQ(send(peer_.name(), "who are you?"), 0);
  EXPECT_EQ(peer_.heard(), Texts{"who are you?"});

  world_.happens(net::NeighbourEvent{fakes::FakeEthernet::kIndex,
                                     net::IpAddress::of(peer_.name()),
                                     {net::NeighbourState::reachable, {2, 0, 0, 0, 0, 2}}});
  EXPECT_EQ(send(peer_.name(), "hello"), 0);
  EXPECT_EQ(peer_.heard(), Texts{});
  EXPECT_EQ(on_line(), Texts{"hello"});
}

TEST_F(UdpSocketTest, TheKernelSendsWhatIsPutTogether) {
  bind(kAnywhere);
  EXPECT_EQ(send(peer_.name(), "one ", MSG_MORE), 0);
  EXPECT_EQ(send(peer_.name(), "datagram"), 0);
  EXPECT_EQ(peer_.heard(), Texts{"one datagram"});
  EXPECT_EQ(send(peer_.name(), "another"), 0);
  EXPECT_EQ(on_line(), Texts{"another"});
}

TEST_F(UdpSocketTest, WhatAFullRingDoesNotTakeTheKernelSends) {
  bind(kAnywhere);
  card().delays_sends = true;
  Texts sent;
  for (unsigned i = 0; i < fakes::FakeEthernet::kSendPlaces; ++i) {
    sent.push_back("by the ring " + std::to_string(i));
    EXPECT_EQ(send(peer_.name(), sent.back()), 0);
  }
  EXPECT_EQ(peer_.heard(), Texts{});
  EXPECT_EQ(send(peer_.name(), "one too many"), 0);
  EXPECT_EQ(peer_.heard(), Texts{"one too many"});

  card().delays_sends = false;
  card().send_all();
  sent.emplace_back("there is room again");
  EXPECT_EQ(send(peer_.name(), sent.back()), 0);
  EXPECT_EQ(on_line(), sent);
  EXPECT_EQ(peer_.heard(), Texts{});
}

// -- changes -------------------------------------------------------------------------------------

TEST_F(UdpSocketTest, AnInterfaceThatGoesLeavesTheSocketToTheKernel) {
  bind(kAnywhere);
  EXPECT_EQ(send(peer_.name(), "by the ring"), 0);
  comes("the last packet", port());
  world_.kernel.path.type = net::PathType::local;
  world_.address.gone = world_.link.gone = true;
  world_.happens(world_.address);
  world_.happens(world_.link);

  EXPECT_EQ(receive(), "the last packet");
  EXPECT_EQ(receive(), std::nullopt);  // notices
  EXPECT_EQ(card().flows, 0);
  EXPECT_EQ(send(peer_.name(), "by the kernel"), 0);
  EXPECT_EQ(on_line(), Texts{"by the ring"});
  EXPECT_EQ(peer_.heard(), Texts{"by the kernel"});
  peer_.send_to(port(), "from this host");
  socket_->woken();  // its sleep on the kernel's socket ends
  EXPECT_EQ(receive(), "from this host");
}

TEST_F(UdpSocketTest, AnotherAddressOfTheInterfaceIsReceivedFrom) {
  bind(kAnywhere);
  const SocketAddress second = SocketAddress::v4(0x0a000003, 0);
  net::AddressEvent event = world_.address;
  event.address.address = event.address.peer = net::IpAddress::of(second);
  world_.happens(event);

  EXPECT_EQ(receive(), std::nullopt);  // notices
  EXPECT_EQ(card().flows, 2);
  comes("to the second", port(), kFar, second);
  EXPECT_EQ(receive(), "to the second");
}

TEST_F(UdpSocketTest, WithAFilterOfTheProgramsAllIsTheKernels) {
  bind(kAnywhere);
  EXPECT_EQ(card().flows, 1);
  sock_filter take_all{BPF_RET | BPF_K, 0, 0, 0xffff};
  const sock_fprog program{1, &take_all};
  ASSERT_TRUE(socket_->set_option(SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
  EXPECT_EQ(card().flows, 0);
  EXPECT_EQ(send(peer_.name(), "by the kernel"), 0);
  EXPECT_EQ(peer_.heard(), Texts{"by the kernel"});
  EXPECT_EQ(on_line(), Texts{});
}

// -- connected ------------------------------------------------------------------------------------

/// The card has the loopback address, from which the kernel connects a socket to another one of this process.
class ConnectedUdpSocketTest : public UdpSocketTest {
 protected:
  ConnectedUdpSocketTest() : UdpSocketTest(SocketAddress::v4(INADDR_LOOPBACK, 0)) {}

  void connect(const SocketAddress& to) { ASSERT_TRUE(socket_->connect(to.get(), to.length())); }
  void disconnect() {
    const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
    ASSERT_TRUE(socket_->connect(&nowhere, sizeof nowhere));
  }
  /// Returns 0 or an errno value.
  int send_to_peer(std::string text) {
    iovec part{text.data(), text.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const auto sent = socket_->send(message, 0);
    return sent ? 0 : sent.error().code;
  }
  /// The port to which the last datagram has left by the card.
  [[nodiscard]] std::uint16_t last_port() const {
    const auto& [frame, flags] = card().line.back();
    const auto layout = wire::parse_headers(frame, frame.size());
    return wire::parsing::read<wire::UdpHeader>(frame, layout->transport).destination_port.host();
  }
};

TEST_F(ConnectedUdpSocketTest, WithoutAnAddressItSendsToThePeerByTheRing) {
  EXPECT_EQ(send_to_peer("to nobody"), EDESTADDRREQ);
  connect(peer_.name());
  EXPECT_EQ(send_to_peer("hello"), 0);
  EXPECT_EQ(on_line(), Texts{"hello"});
  EXPECT_EQ(last_port(), peer_.name().port());
  EXPECT_EQ(peer_.heard(), Texts{});
}

TEST_F(ConnectedUdpSocketTest, AnAddressGoesBeforeThePeer) {
  const KernelsSocket other;
  connect(peer_.name());
  EXPECT_EQ(send_to_peer("to the peer"), 0);
  EXPECT_EQ(send(other.name(), "to the other"), 0);
  EXPECT_EQ(last_port(), other.name().port());
  EXPECT_EQ(send_to_peer("to the peer again"), 0);
  EXPECT_EQ(last_port(), peer_.name().port());
}

TEST_F(ConnectedUdpSocketTest, AnotherPeerTakesThePlaceOfTheFirst) {
  const KernelsSocket second;
  connect(peer_.name());
  EXPECT_EQ(send_to_peer("to the first"), 0);
  connect(second.name());
  EXPECT_EQ(send_to_peer("to the second"), 0);
  EXPECT_EQ(last_port(), second.name().port());
  EXPECT_EQ(*socket_->peer_name(), second.name());
}

TEST_F(ConnectedUdpSocketTest, OnceDisconnectedItSendsToNobody) {
  connect(peer_.name());
  disconnect();
  EXPECT_EQ(send_to_peer("to nobody"), EDESTADDRREQ);
  EXPECT_EQ(socket_->peer_name().error().code, ENOTCONN);
  EXPECT_EQ(on_line(), Texts{});
}

}  // namespace
}  // namespace ringsock::vma
