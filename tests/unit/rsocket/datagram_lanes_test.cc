// Datagram rsockets over a device that the test plays: on an InfiniBand link with rdma-core's, whose bytes the test
// writes, and two of ours.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

#include "core/base/refusals.h"
#include "librsocket/datagram/datagram_socket.h"
#include "librsocket/rsocket_process.h"
#include "tests/fakes/fake_ud_device.h"

namespace ringsock::rs {
namespace {

constexpr int kReceives = 8, kSends = 16;

config::RsocketConfig small_buffers() {
  config::RsocketConfig out;
  out.mem_default = 64 * 1024;
  out.rqsize_default = kReceives;
  out.sqsize_default = kSends;
  return out;
}

std::string with_error(const Error& error) { return std::string("<") + ::strerrorname_np(error.code) + ">"; }

/// A datagram rsocket at an address of this host.
class Post {
 public:
  explicit Post(Process& process, std::uint32_t host = INADDR_LOOPBACK) {
    fd_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const SocketAddress any = SocketAddress::v4(host, 0);
    EXPECT_EQ(::bind(fd_, any.get(), any.length()), 0);
    name = *name_by(::getsockname, fd_, "test");
    socket_ = new DatagramSocket(process, AF_INET, fd_, *UdpPort::of(fd_, AF_INET));
    reference_ = runtime::Ref(socket_);
  }
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;
  ~Post() {
    socket_->closed();
    ::close(fd_);
  }
  std::string send(const std::string& text, const SocketAddress& to) {
    iovec part{const_cast<char*>(text.data()), text.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_name = const_cast<sockaddr*>(to.get());
    message.msg_namelen = to.length();
    const auto sent = socket_->send(message, 0);
    return sent ? "sent" : with_error(sent.error());
  }
  /// Does not wait, so it looks everywhere.
  std::string hear(SocketAddress* from = nullptr) {
    std::string text(70'000, '\0');
    sockaddr_storage source{};
    iovec part{text.data(), text.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_name = &source;
    message.msg_namelen = sizeof source;
    const auto got = socket_->receive(message, MSG_DONTWAIT);
    if (!got) return with_error(got.error());
    text.resize(static_cast<std::size_t>(*got));
    if (from != nullptr) *from = *SocketAddress::from(reinterpret_cast<sockaddr*>(&source), message.msg_namelen);
    return text;
  }
  std::uint32_t ready() { return socket_->ready(); }
  /// Returns whether a sleeper would wake up.
  bool would_wake() {
    const auto fds = socket_->arm().fd;
    pollfd lanes{fds[1], POLLIN, 0};
    return ::poll(&lanes, 1, 0) == 1;
  }
  void wake() { socket_->woken(); }

  SocketAddress name;

 private:
  int fd_ = -1;
  DatagramSocket* socket_ = nullptr;
  runtime::Ref reference_;
};

/// rdma-core's datagram rsocket, played by its bytes (fact sheet 3.2 to 3.4).
class Original {
 public:
  explicit Original(fakes::UdLink& link) : link_(link) {
    fd_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const SocketAddress any = SocketAddress::v4(INADDR_LOOPBACK, 0);
    EXPECT_EQ(::bind(fd_, any.get(), any.length()), 0);
    name = *name_by(::getsockname, fd_, "test");
  }
  Original(const Original&) = delete;
  Original& operator=(const Original&) = delete;
  ~Original() { ::close(fd_); }

  void rendezvous(char op, const std::string& payload, const SocketAddress& to, char note = 0) {
    const std::string packet =
        std::string("UUUU\4") + op + '\20' + note + std::string("\0\0\4\4\x7f\0\0\1", 8) + payload;
    ASSERT_EQ(::sendto(fd_, packet.data(), packet.size(), 0, to.get(), to.length()),
              static_cast<ssize_t>(packet.size()));
  }
  [[nodiscard]] std::string hear_packet() const {
    std::string text(4096, '\0');
    const ssize_t got = ::recv(fd_, text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return text;
  }
  [[nodiscard]] std::string header() const {
    const std::uint16_t port = name.port();
    return std::string("\4\10", 2) + static_cast<char>(port >> 8) + static_cast<char>(port) +
           std::string("\x7f\0\0\1", 4);
  }
  void send_by_queue_pair(const std::string& bytes, std::uint32_t to) { link_.deliver(kNumber, to, bytes); }

  static constexpr std::uint32_t kNumber = 0x404;
  SocketAddress name;

 private:
  fakes::UdLink& link_;
  int fd_ = -1;
};

constexpr char kData = 0, kControl = 7;

std::uint32_t number_in(const std::string& packet) {
  const auto byte = [&](std::size_t i) { return std::uint32_t{static_cast<unsigned char>(packet.at(i))}; };
  return byte(9) << 16 | byte(10) << 8 | byte(11);
}

class Lanes : public testing::Test {
 protected:
  Lanes() {
    std::vector<std::unique_ptr<verbs::DeviceProvider>> devices;
    devices.push_back(std::make_unique<fakes::FakeUdProvider>(link_));
    process_ = std::make_unique<Process>(small_buffers(), std::move(devices));
  }
  /// One datagram each way by the kernel; then both know the other's number.
  static void introduce(Post& alice, Post& bob) {
    ASSERT_EQ(alice.send("hello", bob.name), "sent");
    ASSERT_EQ(bob.hear(), "hello");
    ASSERT_EQ(bob.send("welcome", alice.name), "sent");
    ASSERT_EQ(alice.hear(), "welcome");
  }
  static std::uint64_t refused(Refusal why) { return refusals_counted(why); }

  fakes::UdLink link_;
  std::unique_ptr<Process> process_;
};

using InfiniBandLane = Lanes;

TEST_F(InfiniBandLane, BeginsWithARendezvousThatTheOriginalUnderstands) {
  Original original(link_);
  Post alice(*process_);
  ASSERT_EQ(alice.send("hi", original.name), "sent");
  const std::string packet = original.hear_packet();
  ASSERT_EQ(packet.size(), 18u);
  EXPECT_EQ(packet.substr(0, 7), std::string("UUUU\4\0\20", 7));
  ASSERT_EQ(link_.queue_pairs.count(number_in(packet)), 1u);
  const ibv_qp_attr& attr = link_.queue_pairs.at(number_in(packet))->last;
  EXPECT_EQ(attr.qkey, 0x01234567u);
  EXPECT_EQ(attr.port_num, 2);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
}

TEST_F(InfiniBandLane, SendsToTheOriginalWhatItReads) {
  Original original(link_);
  Post alice(*process_);
  original.rendezvous(kData, "first", alice.name);
  EXPECT_EQ(alice.hear(), "first");
  EXPECT_EQ(original.hear_packet().substr(0, 7), std::string("UUUU\4\7\20", 7)) << "the answer";
  // The source of a packet may be forged: the first datagram to it is a question, too.
  ASSERT_EQ(alice.send("by the kernel", original.name), "sent");
  EXPECT_EQ(original.hear_packet().substr(16), "by the kernel");
  original.rendezvous(kControl, "", alice.name);
  ASSERT_EQ(alice.send("by the queue pair", original.name), "sent");
  ASSERT_EQ(link_.sent.size(), 1u);
  const fakes::UdLink::Packet& sent = link_.sent[0];
  EXPECT_EQ(sent.to, Original::kNumber);
  EXPECT_EQ(sent.qkey, 0x01234567u);
  EXPECT_EQ(sent.path.dlid, 1);
  EXPECT_EQ(sent.path.port_num, 2);
  const std::uint16_t port = alice.name.port();
  EXPECT_EQ(sent.bytes, std::string("\4\10", 2) + static_cast<char>(port >> 8) + static_cast<char>(port) +
                            std::string("\x7f\0\0\1by the queue pair", 21));
}

TEST_F(InfiniBandLane, TakesWhatTheOriginalSends) {
  Original original(link_);
  Post alice(*process_);
  ASSERT_EQ(alice.send("hello", original.name), "sent");
  const std::uint32_t number = number_in(original.hear_packet());
  original.rendezvous(kControl, "", alice.name);
  original.send_by_queue_pair(original.header() + "hi", number);
  SocketAddress from;
  EXPECT_EQ(alice.hear(&from), "hi");
  EXPECT_EQ(from, original.name);
  original.send_by_queue_pair(original.header(), number);
  EXPECT_EQ(alice.hear(), "") << "a datagram of no bytes";
  EXPECT_EQ(alice.send("again", original.name), "sent");
  EXPECT_EQ(link_.sent.size(), 1u) << "its control packet told the number";
}

TEST_F(InfiniBandLane, GivesTheOriginalNeitherPiecesNorLargePackets) {
  Original original(link_);
  Post alice(*process_);
  EXPECT_EQ(alice.send(std::string(2041, 'x'), original.name), "<EMSGSIZE>") << "unknown";
  ASSERT_EQ(alice.send("hello", original.name), "sent");
  original.rendezvous(kControl, "", alice.name);
  EXPECT_EQ(alice.send(std::string(2041, 'x'), original.name), "<EMSGSIZE>");
  EXPECT_EQ(alice.send(std::string(2040, 'x'), original.name), "sent");
  EXPECT_EQ(link_.sent.back().bytes.size(), 2048u);
}

TEST_F(InfiniBandLane, DropsWhatIsNoDatagramAndCountsIt) {
  Original original(link_);
  Post alice(*process_);
  ASSERT_EQ(alice.send("hello", original.name), "sent");
  const std::uint32_t number = number_in(original.hear_packet());
  const std::uint64_t before = refused(Refusal::datagram);
  std::uint64_t count = 0;
  for (const std::string& bytes : {std::string(), std::string("x"), original.header().substr(0, 7),
                                   std::string("\5") + original.header().substr(1), std::string("\6\30") + "short"}) {
    original.send_by_queue_pair(bytes, number);
    ++count;
  }
  EXPECT_EQ(alice.hear(), "<EAGAIN>");
  EXPECT_EQ(refused(Refusal::datagram) - before, count);
}

TEST_F(InfiniBandLane, IsNotWaitedForWhileItsPathIsSearched) {
  Post alice(*process_), bob(*process_);
  link_.is_searching = true;
  introduce(alice, bob);
  ASSERT_EQ(alice.send("by the kernel", bob.name), "sent");
  EXPECT_EQ(bob.hear(), "by the kernel");
  EXPECT_TRUE(link_.sent.empty());
  link_.is_searching = false;
  ASSERT_EQ(alice.send("by the queue pair", bob.name), "sent");
  EXPECT_EQ(bob.hear(), "by the queue pair");
  EXPECT_EQ(link_.sent.size(), 1u);
}

class EthernetLane : public Lanes {
 protected:
  EthernetLane() {
    link_.is_ethernet = true;
    link_.mtu = IBV_MTU_1024;
  }
};

TEST_F(EthernetLane, DoesNotLearnTheNumberOfAnotherLinkLayer) {
  Original original(link_);
  Post alice(*process_);
  original.rendezvous(kData, "hi", alice.name);
  EXPECT_EQ(alice.hear(), "hi");
  EXPECT_EQ(original.hear_packet(), "") << "no answer that it would misunderstand";
  ASSERT_EQ(alice.send("hello", original.name), "sent");
  EXPECT_TRUE(link_.sent.empty());
  EXPECT_EQ(original.hear_packet().substr(16), "hello");
}

TEST_F(EthernetLane, CarriesDatagramsBothWays) {
  Post alice(*process_), bob(*process_);
  introduce(alice, bob);
  const std::size_t before = link_.sent.size();
  ASSERT_EQ(alice.send("one", bob.name), "sent");
  SocketAddress from;
  EXPECT_EQ(bob.hear(&from), "one");
  EXPECT_EQ(from, alice.name);
  ASSERT_EQ(bob.send("two", alice.name), "sent");
  EXPECT_EQ(alice.hear(), "two");
  EXPECT_EQ(link_.sent.size() - before, 2u);
}

TEST_F(EthernetLane, CarriesLargeDatagramsInPieces) {
  Post alice(*process_), bob(*process_);
  introduce(alice, bob);
  std::string text(5000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 / 3);
  const std::size_t before = link_.sent.size();
  ASSERT_EQ(alice.send(text, bob.name), "sent");
  ASSERT_EQ(link_.sent.size() - before, 5u);
  EXPECT_EQ(link_.sent.back().bytes.substr(0, 2), std::string("\x44\x14", 2));
  EXPECT_LE(link_.sent[before].bytes.size(), 1024u);
  SocketAddress from;
  EXPECT_EQ(bob.hear(&from), text);
  EXPECT_EQ(from, alice.name);
  EXPECT_EQ(bob.hear(), "<EAGAIN>");
}

TEST_F(EthernetLane, LeavesToTheKernelWhatTakesMorePiecesThanThereAreSlots) {
  Post alice(*process_), bob(*process_);
  introduce(alice, bob);
  const std::string large(40'000, 'x');
  const std::size_t before = link_.sent.size();
  ASSERT_EQ(alice.send(large, bob.name), "sent");
  EXPECT_EQ(link_.sent.size(), before);
  EXPECT_EQ(bob.hear(), large);
  EXPECT_EQ(alice.send(std::string(65'480, 'x'), bob.name), "<EMSGSIZE>");
}

TEST_F(EthernetLane, RefusesPiecesOfStrangers) {
  Post alice(*process_), bob(*process_);
  introduce(alice, bob);
  ASSERT_EQ(alice.send(std::string(1500, 'x'), bob.name), "sent");
  EXPECT_EQ(bob.hear().size(), 1500u);
  const fakes::UdLink::Packet piece = link_.sent.back();
  const std::uint64_t before = refused(Refusal::datagram);
  link_.deliver(0x999, piece.to, piece.bytes);  // another queue pair with the address of Alice
  std::string other_port = piece.bytes;
  other_port[3] = static_cast<char>(other_port[3] ^ 1);
  link_.deliver(piece.from, piece.to, other_port);
  EXPECT_EQ(bob.hear(), "<EAGAIN>");
  EXPECT_EQ(refused(Refusal::datagram) - before, 2u);
}

TEST_F(EthernetLane, MakesTheSenderWaitWhenAllSlotsAreUnderWay) {
  Post alice(*process_), bob(*process_);
  introduce(alice, bob);
  link_.holds_completions = true;
  int sent = 0;
  while (alice.send("x", bob.name) == "sent" && sent <= kSends) ++sent;
  EXPECT_EQ(sent, kSends);
  EXPECT_EQ(alice.send("x", bob.name), "<EAGAIN>");
  EXPECT_EQ(alice.ready() & EPOLLOUT, 0u);
  link_.release_completions();
  EXPECT_NE(alice.ready() & EPOLLOUT, 0u);
  EXPECT_EQ(alice.send("x", bob.name), "sent");
}

TEST_F(EthernetLane, DropsAndCountsWhatItsReceiveBufferHasNoRoomFor) {
  Post alice(*process_), bob(*process_);
  introduce(alice, bob);
  const std::uint64_t before = refused(Refusal::receive_buffer);
  constexpr int kMore = 10;
  for (int i = 0; i < kReceives + kMore; ++i) ASSERT_EQ(alice.send(std::to_string(i), bob.name), "sent");
  for (int i = 0; i < kReceives; ++i) EXPECT_EQ(bob.hear(), std::to_string(i));
  EXPECT_EQ(bob.hear(), "<EAGAIN>");
  EXPECT_EQ(refused(Refusal::receive_buffer) - before, static_cast<std::uint64_t>(kMore));
  ASSERT_EQ(alice.send("afterwards", bob.name), "sent");
  EXPECT_EQ(bob.hear(), "afterwards");
}

TEST_F(EthernetLane, IsReplacedWhenItsQueuePairHasFailed) {
  Post alice(*process_), bob(*process_);
  introduce(alice, bob);
  link_.status = IBV_WC_LOC_QP_OP_ERR;
  ASSERT_EQ(alice.send("lost", bob.name), "sent");
  link_.status = IBV_WC_SUCCESS;
  // A completion tells of it when slots are taken again.
  for (int i = 0; i < kSends; ++i) ASSERT_EQ(alice.send("x", bob.name), "sent");
  const std::size_t before = link_.sent.size();
  while (bob.hear() == "x") {
  }
  ASSERT_EQ(alice.send("by the kernel", bob.name), "sent");
  EXPECT_EQ(bob.hear(), "by the kernel");
  EXPECT_EQ(link_.sent.size(), before);
  ASSERT_EQ(alice.send("by the new one", bob.name), "sent");
  EXPECT_EQ(bob.hear(), "by the new one");
  EXPECT_EQ(link_.sent.size(), before + 1);
}

TEST_F(EthernetLane, HasAHandleOnlyForAPeerThatHasAnswered) {
  Post bob(*process_);
  std::vector<std::unique_ptr<Original>> strangers;
  for (int i = 0; i < 50; ++i) {
    strangers.push_back(std::make_unique<Original>(link_));
    strangers.back()->rendezvous(kData, "storm", bob.name, 0x33);
    ASSERT_EQ(bob.hear(), "storm");
    ASSERT_EQ(bob.send("you", strangers.back()->name), "sent");
  }
  EXPECT_EQ(link_.live_handles, 0);
  strangers[7]->rendezvous(kControl, "", bob.name, 0x33);
  ASSERT_EQ(bob.send("you", strangers[7]->name), "sent");
  EXPECT_EQ(link_.live_handles, 1);
  EXPECT_EQ(link_.sent.back().to, Original::kNumber);
}

TEST_F(EthernetLane, ThatLooksLongForAPeerLeavesTheOthersToTheKernelMeanwhile) {
  Post bob(*process_), alice(*process_), carol(*process_);
  introduce(alice, bob);
  introduce(carol, bob);
  const std::size_t before = link_.sent.size();
  link_.handles_take = std::chrono::milliseconds(300);
  ASSERT_EQ(bob.send("by the queue pair", alice.name), "sent");
  EXPECT_EQ(link_.sent.size(), before + 1);
  ASSERT_EQ(bob.send("by the kernel", carol.name), "sent");
  EXPECT_EQ(link_.sent.size(), before + 1);
  EXPECT_EQ(carol.hear(), "by the kernel");
  ASSERT_EQ(bob.send("with the handle that there is", alice.name), "sent");
  EXPECT_EQ(link_.sent.size(), before + 2);
}

TEST_F(EthernetLane, DoesNotFollowANumberThatNobodyWasAskedFor) {
  Post alice(*process_), bob(*process_);
  introduce(alice, bob);
  ASSERT_EQ(alice.send("one", bob.name), "sent");
  EXPECT_EQ(bob.hear(), "one");
  const std::size_t before = link_.sent.size();
  Original mallory(link_);
  mallory.rendezvous(kControl, "", alice.name, 0x33);
  ASSERT_EQ(alice.send("two", bob.name), "sent");
  EXPECT_EQ(bob.hear(), "two");
  EXPECT_EQ(link_.sent.size(), before + 1);
}

TEST(LanesOfTwoDevices, ServeOneSocket) {
  constexpr std::uint32_t kNear = 0x7f000000, kFar = 0x7f000100;
  fakes::UdLink near, far;
  near.is_ethernet = far.is_ethernet = true;
  far.next_number = 0x900;
  std::vector<std::unique_ptr<verbs::DeviceProvider>> devices;
  devices.push_back(std::make_unique<fakes::FakeUdProvider>(near, kNear));
  devices.push_back(std::make_unique<fakes::FakeUdProvider>(far, kFar));
  Process process(small_buffers(), std::move(devices));
  Post server(process, INADDR_ANY), bob(process, kNear + 1), carol(process, kFar + 1);
  const auto introduce = [&](Post& client, std::uint32_t host) {
    ASSERT_EQ(client.send("hello", SocketAddress::v4(host, server.name.port())), "sent");
    SocketAddress from;
    ASSERT_EQ(server.hear(&from), "hello");
    EXPECT_EQ(from, client.name);
    ASSERT_EQ(server.send("welcome", client.name), "sent");
    ASSERT_EQ(client.hear(&from), "welcome");
    EXPECT_EQ(from, SocketAddress::v4(host, server.name.port())) << "from the address that was asked";
  };
  introduce(bob, kNear + 7);
  introduce(carol, kFar + 7);
  EXPECT_EQ(near.queue_pairs.size(), 2u);
  EXPECT_EQ(far.queue_pairs.size(), 2u);
  for (int round = 0; round < 2; ++round) {
    for (const auto& [client, host] : {std::pair{&bob, kNear + 7}, {&carol, kFar + 7}}) {
      EXPECT_FALSE(server.would_wake());
      const std::size_t before = near.sent.size() + far.sent.size();
      ASSERT_EQ(client->send("by the queue pair", SocketAddress::v4(host, server.name.port())), "sent");
      EXPECT_EQ(near.sent.size() + far.sent.size() - before, 1u);
      EXPECT_TRUE(server.would_wake());
      server.wake();
      EXPECT_EQ(server.hear(), "by the queue pair");
    }
  }
}

}  // namespace
}  // namespace ringsock::rs
