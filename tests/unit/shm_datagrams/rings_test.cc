// Senders knock at the door of a UDP socket and put datagrams into rings; strangers, and senders that say nonsense, get
// nothing and disturb nobody.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/un.h>

#include <csignal>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "core/base/refusals.h"
#include "core/device/shm/datagrams/incoming_rings.h"
#include "core/device/shm/datagrams/knock.h"
#include "core/device/shm/datagrams/outgoing_ring.h"
#include "core/device/shm/names/port_name.h"
#include "tests/unit/shm_cm/other_process.h"
#include "tests/unit/shm_datagrams/udp_world.h"

namespace ringsock::soft {
namespace {

using tests::Channel;
using tests::kBob;
using tests::OtherProcess;
using tests::UdpEnd;

/// Bob has a UDP socket with a door.
struct Bob : UdpEnd {
  Bob() : rings(*IncomingRings::open(cookie)) {}
  [[nodiscard]] KernelSocket socket() const { return {::geteuid(), cookie}; }
  [[nodiscard]] bool is_woken() const {
    pollfd entry{rings->fd(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }
  /// The oldest datagram of the first ring that has one.
  std::string take() const {
    for (auto& ring : rings->rings()) {
      const auto front = ring.reader.front();
      if (!front || !*front) continue;
      std::string text(reinterpret_cast<const char*>((*front)->payload.data()), (*front)->payload.size());
      ring.reader.pop();
      return text;
    }
    return "<nothing>";
  }
  /// Looks at the door, and expects the marks of those who have a ring.
  IncomingRings::Found look() const {
    const IncomingRings::Found found = rings->look();
    for (auto& ring : rings->rings()) ring.reader.tell_mark(kUdRingExpectsMark);
    return found;
  }
  std::unique_ptr<IncomingRings> rings;
};

OutgoingRing::Put put(OutgoingRing& ring, std::string_view text) {
  const iovec part{const_cast<char*>(text.data()), text.size()};
  return ring.put(0, {&part, 1}, text.size());
}

/// The ring's mark comes to Bob.
void let_in(Bob& bob, OutgoingRing& ring) {
  EXPECT_EQ(put(ring, "the mark"), OutgoingRing::Put::marks);
  const Place mark = ring.next_mark(0);
  ring.sent_mark(mark);
  EXPECT_EQ(put(ring, "early"), OutgoingRing::Put::early);
  for (auto& one : bob.rings->rings()) one.reader.tell_mark(static_cast<std::uint32_t>(mark));
}

/// Bob takes in who has knocked. A new ring may be one of a sleeper's, whom the kernel wakes by the first datagram.
void take_in(Bob& bob, OutgoingRing& ring) {
  EXPECT_EQ(bob.look(), IncomingRings::Found::new_rings);
  let_in(bob, ring);
  EXPECT_EQ(put(ring, "by the kernel"), OutgoingRing::Put::asleep);
}

/// A raw link to Bob's door, for those who do not behave.
UniqueFd reach(const Bob& bob) {
  UniqueFd link(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const AbstractAddress door(door_name(bob.cookie));
  EXPECT_EQ(::connect(link.get(), door.get(), door.length), 0);
  return link;
}

void send_packet(const UniqueFd& link, const void* bytes, std::size_t length, int descriptor) {
  iovec part{const_cast<void*>(bytes), length};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof descriptor)> control{};
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    *header = {.cmsg_len = CMSG_LEN(sizeof descriptor), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  ASSERT_EQ(::sendmsg(link.get(), &message, 0), static_cast<ssize_t>(length));
}

TEST(DatagramRings, AreReadOnceTheReceiverLooks) {
  const UdpEnd alice;
  Bob bob;
  const auto ring = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
  ASSERT_TRUE(ring);
  EXPECT_EQ(put(**ring, "early"), OutgoingRing::Put::early);
  EXPECT_TRUE(bob.is_woken());
  take_in(bob, **ring);
  ASSERT_EQ(bob.rings->rings().size(), 1U);
  EXPECT_EQ(bob.rings->rings()[0].source, alice.name);
  EXPECT_EQ(bob.rings->rings()[0].sender, (SenderSocket{::getpid(), alice.fd.get()}));
  EXPECT_EQ(put(**ring, "one"), OutgoingRing::Put::done);
  EXPECT_EQ(put(**ring, ""), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "one");
  EXPECT_EQ(bob.take(), "");
  EXPECT_EQ(bob.take(), "<nothing>");
}

TEST(DatagramRings, LeaveItToTheKernelToWakeASleeper) {
  const UdpEnd alice;
  Bob bob;
  const auto ring = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
  ASSERT_TRUE(ring);
  take_in(bob, **ring);
  bob.rings->arm();
  EXPECT_EQ(put(**ring, "by the kernel"), OutgoingRing::Put::asleep);
  EXPECT_EQ(put(**ring, "one"), OutgoingRing::Put::done);  // Bob is woken by the one before
  EXPECT_EQ(bob.take(), "one");
  EXPECT_FALSE(bob.is_woken());
}

TEST(DatagramRings, AreUsedByAllSendersOnceOneHasWokenTheSleeper) {
  const UdpEnd alice, carol;
  Bob bob;
  const auto ring = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
  ASSERT_TRUE(ring);
  take_in(bob, **ring);
  const auto carols = OutgoingRing::open(bob.socket(), {carol.name, carol.fd.get()});
  ASSERT_TRUE(carols);
  take_in(bob, **carols);
  bob.rings->arm();
  EXPECT_EQ(put(**ring, "by the kernel"), OutgoingRing::Put::asleep);
  bob.rings->disarm();
  EXPECT_EQ(put(**carols, "one"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "one");
  EXPECT_FALSE(bob.is_woken());
}

TEST(DatagramRings, TryAgainToWakeASleeperWhereTheKernelDidNot) {
  const UdpEnd alice;
  Bob bob;
  const auto ring = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
  ASSERT_TRUE(ring);
  take_in(bob, **ring);
  bob.rings->arm();
  EXPECT_EQ(put(**ring, "refused"), OutgoingRing::Put::asleep);
  (*ring)->has_not_woken();
  EXPECT_EQ(put(**ring, "by the kernel"), OutgoingRing::Put::asleep);
  EXPECT_EQ(put(**ring, "one"), OutgoingRing::Put::done);
}

TEST(DatagramRings, RingForAReceiverThatFallsAsleepMeanwhile) {
  auto made = make_segment(kUdSegmentBytes);
  ASSERT_TRUE(made);
  UdRingWriter writer(made->mapping);
  UdRingReader reader(made->mapping);
  DatagramHeader header{};
  header.version = kDatagramVersion;
  EXPECT_FALSE(writer.take_arming());
  ASSERT_EQ(writer.put(header, {}, 0), UdRingWriter::Put::done);
  reader.arm();
  EXPECT_TRUE(writer.must_ring());
  EXPECT_FALSE(writer.must_ring());
}

TEST(DatagramRings, KeepWhatASenderLeavesBehind) {
  Bob bob;
  {
    const UdpEnd alice;
    const auto ring = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
    ASSERT_TRUE(ring);
    take_in(bob, **ring);
    EXPECT_EQ(put(**ring, "the last"), OutgoingRing::Put::done);
  }
  EXPECT_EQ(bob.take(), "the last");
  EXPECT_TRUE(bob.rings->rings()[0].reader.has_ended());
}

TEST(DatagramRings, AreOverWhenTheirSenderIsKilled) {
  Bob bob;
  OtherProcess alice(::geteuid(), [&bob](Channel channel) {
    const UdpEnd end;
    const auto ring = OutgoingRing::open(bob.socket(), {end.name, end.fd.get()});
    channel.tell(1);
    if (!ring || !channel.hear()) return 1;
    if (put(**ring, "the mark") != OutgoingRing::Put::marks) return 1;
    (*ring)->sent_mark(kFirstMark);
    channel.tell(3);
    static_cast<void>(channel.hear());
    static_cast<void>(put(**ring, "by the kernel"));
    if (put(**ring, "the last") != OutgoingRing::Put::done) return 1;
    channel.tell(2);
    static_cast<void>(channel.hear());
    return 0;
  });
  ASSERT_TRUE(alice.channel().hear());
  bob.look();
  alice.channel().tell(1);
  ASSERT_EQ(alice.channel().hear(), 3U);
  bob.rings->rings()[0].reader.tell_mark(kFirstMark);
  alice.channel().tell(1);
  ASSERT_EQ(alice.channel().hear(), 2U);
  EXPECT_FALSE(bob.rings->rings()[0].is_over);
  alice.signal(SIGKILL);
  static_cast<void>(alice.wait());
  bob.look();
  EXPECT_TRUE(bob.rings->rings()[0].is_over);
  EXPECT_EQ(bob.take(), "the last");
}

TEST(DatagramRings, HaveThousandsOfMarksBeforeOneComesAgain) {
  constexpr std::size_t kMarks = 32UL * 256;
  std::set<Place> used;
  Place mark = 0;
  for (std::size_t i = 0; i < kMarks; ++i) {
    mark = mark_behind(mark);
    EXPECT_TRUE(is_mark(mark) && !is_number(mark)) << mark;
    used.insert(mark);
  }
  EXPECT_EQ(used.size(), kMarks);
  EXPECT_EQ(mark_behind(mark), kFirstMark);
}

TEST(DatagramRings, TakeNoMarkThatTheReceiverHasToldLast) {
  const UdpEnd alice;
  Bob bob;
  const auto ring = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
  ASSERT_TRUE(ring);
  take_in(bob, **ring);
  EXPECT_EQ((*ring)->next_mark(0), mark_behind(kFirstMark)) << "the first one has come";
}

TEST(DatagramRings, TellTheSenderThatTheReceiverHasGone) {
  const UdpEnd alice;
  auto bob = std::make_unique<Bob>();
  const auto ring = OutgoingRing::open(bob->socket(), {alice.name, alice.fd.get()});
  ASSERT_TRUE(ring);
  take_in(*bob, **ring);
  EXPECT_EQ(put(**ring, "one"), OutgoingRing::Put::done);
  for (auto& one : bob->rings->rings()) one.reader.close();
  bob.reset();
  EXPECT_EQ(put(**ring, "two"), OutgoingRing::Put::gone);
}

TEST(DatagramRings, AreFullOneDatagramAfterTheOther) {
  const UdpEnd alice;
  Bob bob;
  const auto ring = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
  ASSERT_TRUE(ring);
  take_in(bob, **ring);
  const std::string large(kMaxRingDatagram, 'x');
  std::size_t taken = 0;
  while (put(**ring, large) == OutgoingRing::Put::done) ++taken;
  EXPECT_GE(taken, kUdRingBytes / kMaxRingDatagram / 2);
  EXPECT_EQ(put(**ring, large), OutgoingRing::Put::full);
  EXPECT_EQ(bob.take(), large);
  EXPECT_EQ(bob.take(), large);
  EXPECT_EQ(put(**ring, large), OutgoingRing::Put::done);
}

TEST(DatagramRings, TellWhatWasPutWhileTheReceiverLeft) {
  auto made = make_segment(kUdSegmentBytes);
  ASSERT_TRUE(made);
  UdRingWriter writer(made->mapping);
  UdRingReader reader(made->mapping);
  DatagramHeader header{};
  header.version = kDatagramVersion;
  ASSERT_EQ(writer.put(header, {}, 0), UdRingWriter::Put::done);
  EXPECT_FALSE(writer.was_missed());
  reader.close();
  std::thread leaver([&reader] {
    EXPECT_TRUE(reader.front());
    reader.pop();
    reader.finish();
  });
  EXPECT_FALSE(writer.was_missed());  // taken, or about to be
  leaver.join();
  EXPECT_EQ(writer.put(header, {}, 0), UdRingWriter::Put::closed);
}

TEST(DatagramRings, TellWhatTheReceiverDidNotTake) {
  auto made = make_segment(kUdSegmentBytes);
  ASSERT_TRUE(made);
  UdRingWriter writer(made->mapping);
  UdRingReader reader(made->mapping);
  DatagramHeader header{};
  header.version = kDatagramVersion;
  ASSERT_EQ(writer.put(header, {}, 0), UdRingWriter::Put::done);
  reader.close();
  reader.finish();
  EXPECT_TRUE(writer.was_missed());
}

TEST(DatagramRings, NeedADoor) {
  const UdpEnd alice, bob;
  EXPECT_EQ(OutgoingRing::open({::geteuid(), bob.cookie}, {alice.name, alice.fd.get()}).error().code, ECONNREFUSED);
}

TEST(DatagramRings, NobodyKnocksAtADoorThatIsShut) {
  const UdpEnd alice, carol;
  Bob bob;
  const auto ring = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
  ASSERT_TRUE(ring);
  bob.rings->shut_door();
  bob.look();
  let_in(bob, **ring);
  EXPECT_EQ(put(**ring, "still in"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "still in");
  EXPECT_EQ(OutgoingRing::open(bob.socket(), {carol.name, carol.fd.get()}).error().code, ECONNREFUSED);
}

TEST(DatagramRings, OneSocketHasOneDoor) {
  const Bob bob;
  EXPECT_EQ(IncomingRings::open(bob.cookie).error().code, EADDRINUSE);
}

TEST(DatagramRings, WithManySendersTheLastOnesAreTurnedAway) {
  Bob bob;
  const UdpEnd alice;
  std::vector<std::unique_ptr<OutgoingRing>> rings;
  for (std::size_t i = 0; i < IncomingRings::kMost; ++i) {
    auto ring = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
    if (!ring) GTEST_SKIP() << "too few descriptors";
    rings.push_back(*std::move(ring));
    bob.look();
  }
  const auto late = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
  ASSERT_TRUE(late);
  bob.look();
  EXPECT_EQ(put(**late, "late"), OutgoingRing::Put::gone);
  let_in(bob, *rings.front());
  EXPECT_EQ(put(*rings.front(), "by the kernel"), OutgoingRing::Put::asleep);
  EXPECT_EQ(put(*rings.front(), "by the ring"), OutgoingRing::Put::done);
}

// -- strangers -------------------------------------------------------------------------------------

TEST(DatagramStrangers, TheDoorOfAnotherUserIsNotTrusted) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const UdpEnd alice, bob;
  OtherProcess impostor(kBob, [cookie = bob.cookie](Channel channel) {
    const auto rings = IncomingRings::open(cookie);
    channel.tell(rings ? 1 : 0);
    static_cast<void>(channel.hear());
    return 0;
  });
  ASSERT_EQ(impostor.channel().hear(), 1U);
  EXPECT_EQ(OutgoingRing::open({0, bob.cookie}, {alice.name, alice.fd.get()}).error().code, EACCES);
}

TEST(DatagramStrangers, AnotherUserDoesNotGetIn) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  Bob bob;
  OtherProcess stranger(kBob, [&bob](Channel channel) {
    const UniqueFd link = reach(bob);
    const auto memory = make_segment(kUdSegmentBytes);
    const Knock knock = make_knock({SocketAddress::v4(INADDR_LOOPBACK, 53), -1});
    send_packet(link, &knock, sizeof knock, memory->memfd.get());
    channel.tell(1);
    static_cast<void>(channel.hear());
    return 0;
  });
  ASSERT_TRUE(stranger.channel().hear());
  const auto refused = refusals_counted(Refusal::port_claim);
  EXPECT_EQ(bob.look(), IncomingRings::Found::nothing);
  EXPECT_TRUE(bob.rings->empty());
  EXPECT_EQ(refusals_counted(Refusal::port_claim), refused + 1);
}

TEST(DatagramStrangers, NonsenseEndsOneLinkOnly) {
  const UdpEnd alice;
  Bob bob;
  const auto ring = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
  ASSERT_TRUE(ring);
  take_in(bob, **ring);
  const Knock knock = make_knock({alice.name, alice.fd.get()});
  const auto memory = make_segment(kUdSegmentBytes);
  const auto small = make_segment(kPageBytes);
  const auto large = make_segment(2 * kUdSegmentBytes);
  const UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), kUdSegmentBytes), 0);
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  std::vector<UniqueFd> links;
  const auto say = [&](const void* bytes, std::size_t length, int descriptor) {
    links.push_back(reach(bob));
    send_packet(links.back(), bytes, length, descriptor);
    EXPECT_EQ(bob.look(), IncomingRings::Found::nothing);
  };
  say("x", 1, -1);
  say("x", 1, memory->memfd.get());
  say(&knock, sizeof knock, -1);
  say(&knock, sizeof knock - 1, memory->memfd.get());
  for (const int bad : {small->memfd.get(), large->memfd.get(), unsealed.get(), null.get(), alice.fd.get()})
    say(&knock, sizeof knock, bad);
  const std::string long_one(65536, 'x');
  say(long_one.data(), long_one.size(), memory->memfd.get());
  EXPECT_EQ(bob.rings->rings().size(), 1U);
  put(**ring, "undisturbed");
  EXPECT_EQ(bob.take(), "undisturbed");
}

TEST(DatagramStrangers, ASilentLinkWaitsForItsFirstPacket) {
  Bob bob;
  const UdpEnd alice;
  const UniqueFd link = reach(bob);
  EXPECT_EQ(bob.look(), IncomingRings::Found::nothing);
  const Knock knock = make_knock({alice.name, alice.fd.get()});
  const auto memory = make_segment(kUdSegmentBytes);
  send_packet(link, &knock, sizeof knock, memory->memfd.get());
  EXPECT_EQ(bob.look(), IncomingRings::Found::new_rings);
  EXPECT_EQ(bob.rings->rings().size(), 1U);
}

TEST(DatagramStrangers, ManySilentLinksKeepNobodyOut) {
  Bob bob;
  const UdpEnd alice;
  std::vector<UniqueFd> links;
  for (int i = 0; i < 100; ++i) {
    links.push_back(reach(bob));
    bob.look();
  }
  links.clear();
  bob.look();
  const auto ring = OutgoingRing::open(bob.socket(), {alice.name, alice.fd.get()});
  ASSERT_TRUE(ring);
  take_in(bob, **ring);
  EXPECT_EQ(put(**ring, "one"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "one");
}

TEST(DatagramStrangers, ASenderThatWritesNonsenseIsRemoved) {
  Bob bob;
  const UdpEnd alice;
  const UniqueFd link = reach(bob);
  const Knock knock = make_knock({alice.name, alice.fd.get()});
  const auto memory = make_segment(kUdSegmentBytes);
  send_packet(link, &knock, sizeof knock, memory->memfd.get());
  ASSERT_EQ(bob.look(), IncomingRings::Found::new_rings);
  reinterpret_cast<UdRingLines*>(memory->mapping->base())->tail.store(UINT64_MAX);
  EXPECT_FALSE(bob.rings->rings()[0].reader.front());
  bob.rings->remove(0);
  EXPECT_TRUE(bob.rings->empty());
  EXPECT_EQ(bob.look(), IncomingRings::Found::nothing);
}

}  // namespace
}  // namespace ringsock::soft
