// What a UDP socket receives from a ring and from the kernel: in the order in which each sender has sent it, whichever
// of both ways is looked at first.
#include "librsocket/udp/udp_intake.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "core/device/shm/datagrams/mark.h"
#include "core/device/shm/datagrams/outgoing_ring.h"
#include "tests/unit/shm_datagrams/udp_world.h"

namespace ringsock::rs {
namespace {

using soft::OutgoingRing;
using tests::UdpEnd;

/// Someone who sends to Bob, by the kernel and by a ring, and says himself how many went by the kernel before.
struct Sender : UdpEnd {
  /// By the kernel, with the next number if there is a ring.
  void send(const UdpEnd& to, std::string_view text) {
    send_with(ring && ring->numbers_others() ? soft::place_of(++number) : 64, to, text);
  }
  void knock_at(const UdpEnd& to) {
    auto opened = OutgoingRing::open({::geteuid(), to.cookie}, {name, fd.get()});
    ASSERT_TRUE(opened);
    ring = *std::move(opened);
  }
  /// @param after  how many of the kernel's come before it, since the ring was opened
  OutgoingRing::Put put(std::uint32_t after, std::string_view text) const {
    const iovec part{const_cast<char*>(text.data()), text.size()};
    return ring->put(after, {&part, 1}, text.size());
  }
  /// The last datagram by the kernel before the ring begins.
  void send_mark(const UdpEnd& to, std::string_view text = "the mark") {
    EXPECT_EQ(put(0, text), OutgoingRing::Put::marks);
    send_with(next_mark(), to, text);
    number = 0;
  }
  soft::Place next_mark() {
    ring->sent_mark(last_mark = ring->next_mark(last_mark));
    return last_mark;
  }
  void send_with(int hop_limit, const UdpEnd& to, std::string_view text) const {
    iovec part{const_cast<char*>(text.data()), text.size()};
    SocketAddress there = to.name;
    msghdr message{};
    message.msg_name = const_cast<sockaddr*>(there.get());
    message.msg_namelen = there.length();
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    EXPECT_EQ(soft::send_with_place(fd.get(), message, 0, AF_INET, hop_limit), static_cast<ssize_t>(text.size()));
  }
  std::unique_ptr<OutgoingRing> ring;
  std::uint32_t number = 0;  ///< of the last one by the kernel
  soft::Place last_mark = 0;
};

/// Bob has a socket, and reads it by what is tested.
struct Bob : UdpEnd {
  /// The next datagram; "" when there is none.
  std::string take(int flags = 0, std::size_t room = 1000) {
    std::string text(room, '\0');
    iovec part{text.data(), text.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    const auto got = intake.receive(fd.get(), message, flags, true);
    if (!got) {
      EXPECT_EQ(got.error().code, EAGAIN);
      return "";
    }
    EXPECT_EQ((message.msg_flags & MSG_TRUNC) != 0, static_cast<std::size_t>(*got) > room);
    text.resize(std::min(room, static_cast<std::size_t>(*got)));
    return text;
  }
  [[nodiscard]] std::uint16_t port_of_last() const { return ntohs(from.sin_port); }
  [[nodiscard]] bool is_readable() { return intake.is_known_readable() || intake.becomes_readable(fd.get()); }

  sockaddr_in from{};
  UdpIntake intake{AF_INET};
};

/// Alice's ring is open, and Bob knows it. He is not asleep.
struct UdpIntakeWithARing : testing::Test {
  UdpIntakeWithARing() {
    for (int i = 0; i < 4; ++i) {
      alice.send(bob, "before");
      EXPECT_EQ(bob.take(), "before");
    }
    let_in(alice);
  }
  /// A ring that has just come, or that others have armed, may ring once, as if Bob were asleep: not the next time.
  void wake(Sender& sender, std::uint32_t after_kernel) {
    if (sender.put(after_kernel, "first") == OutgoingRing::Put::done) {
      EXPECT_EQ(bob.take(), "first");
    }
  }
  void let_in(Sender& sender) {
    sender.knock_at(bob);
    EXPECT_EQ(bob.take(), "");
    bob.intake.arm();
    bob.intake.woken();
    EXPECT_EQ(bob.take(), "");
    sender.send_mark(bob);
    EXPECT_EQ(bob.take(), "the mark");
    wake(sender, 0);
    static_cast<void>(bob.intake.take_news());
  }

  Sender alice;
  Bob bob;
};

TEST(UdpIntake, HasNoDoorForASingleQuestion) {
  Sender alice;
  Bob bob;
  alice.send(bob, "a question");
  EXPECT_EQ(bob.take(), "a question");
  EXPECT_EQ(OutgoingRing::open({::geteuid(), bob.cookie}, {alice.name, alice.fd.get()}).error().code, ECONNREFUSED);
}

TEST_F(UdpIntakeWithARing, LetsASenderInThatNeverLeavesTheKernelsSocketEmpty) {
  Sender carol;
  carol.send(bob, "one");
  carol.knock_at(bob);
  EXPECT_EQ(carol.put(0, "two"), OutgoingRing::Put::early);
  carol.send(bob, "two");
  bob.intake.woken();
  EXPECT_EQ(bob.take(), "one");
  bob.intake.woken();
  EXPECT_FALSE(bob.is_readable()) << "but for the kernel's";
  carol.send_mark(bob, "three");
  EXPECT_EQ(carol.put(0, "four"), OutgoingRing::Put::early) << "the mark has not come to Bob";
  carol.send(bob, "four");
  for (const char* const text : {"two", "three"}) EXPECT_EQ(bob.take(), text);
  bob.intake.arm();
  bob.intake.woken();  // nobody sleeps
  EXPECT_EQ(carol.put(1, "five"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "four");
  EXPECT_EQ(bob.take(), "five");
}

TEST_F(UdpIntakeWithARing, TakesTheNextMarkWhereTheFirstOneIsLost) {
  Sender carol;
  carol.knock_at(bob);
  bob.intake.woken();
  EXPECT_EQ(bob.take(), "");
  ASSERT_EQ(carol.put(0, "lost"), OutgoingRing::Put::marks);
  const soft::Place lost = carol.next_mark();
  EXPECT_EQ(carol.put(511, "not yet"), OutgoingRing::Put::early);
  ASSERT_EQ(carol.put(512, "again"), OutgoingRing::Put::marks);
  const soft::Place again = carol.next_mark();
  EXPECT_NE(again, lost);
  carol.send_with(again, bob, "again");
  EXPECT_EQ(bob.take(), "again");
  wake(carol, 0);
  EXPECT_EQ(carol.put(0, "by the ring"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "by the ring");
}

TEST_F(UdpIntakeWithARing, TakesNoStrangersMark) {
  Sender carol, stranger;
  carol.knock_at(bob);
  bob.intake.woken();
  EXPECT_EQ(bob.take(), "");
  ASSERT_EQ(carol.put(0, "the mark"), OutgoingRing::Put::marks);
  stranger.send_with(carol.next_mark(), bob, "a stranger's");
  EXPECT_EQ(bob.take(), "a stranger's");
  EXPECT_EQ(carol.put(0, "early"), OutgoingRing::Put::early);
}

// -- of what use rings are

TEST_F(UdpIntakeWithARing, LeavesRingsForSomeTimeToOneWhoIsWokenForEachDatagram) {
  int woken = 0;
  while (bob.intake.has_rings() && woken < 2'000) {
    bob.intake.arm();
    ASSERT_EQ(alice.put(static_cast<std::uint32_t>(woken), "one"), OutgoingRing::Put::asleep);
    alice.send(bob, "one");
    bob.intake.woken();
    ASSERT_EQ(bob.take(), "one");
    ++woken;
  }
  EXPECT_GE(woken, 400) << "not at once";
  EXPECT_LT(woken, 600);
  EXPECT_TRUE(bob.intake.take_news().shut_door);
  EXPECT_EQ(alice.put(0, "by the ring"), OutgoingRing::Put::gone);
  EXPECT_TRUE(bob.intake.leaves_waiting_to_kernel());
  alice.send(bob, "by the kernel");
  EXPECT_EQ(bob.take(), "by the kernel");
}

TEST_F(UdpIntakeWithARing, KeepsRingsForOneWhoIsWokenForEachSecondDatagram) {
  for (std::uint32_t i = 0; i < 2'000; ++i) {
    bob.intake.arm();
    ASSERT_EQ(alice.put(i, "one"), OutgoingRing::Put::asleep);
    alice.send(bob, "one");
    bob.intake.woken();
    ASSERT_EQ(bob.take(), "one");
    ASSERT_EQ(alice.put(i + 1, "two"), OutgoingRing::Put::done);
    ASSERT_EQ(bob.take(), "two");
  }
  EXPECT_TRUE(bob.intake.has_rings());
}

TEST_F(UdpIntakeWithARing, TakesWhatIsInTheRing) {
  EXPECT_EQ(alice.put(0, "one"), OutgoingRing::Put::done);
  EXPECT_EQ(alice.put(0, "two"), OutgoingRing::Put::done);
  EXPECT_TRUE(bob.is_readable());
  EXPECT_EQ(bob.take(), "one");
  EXPECT_EQ(bob.port_of_last(), alice.name.port());
  EXPECT_EQ(bob.take(), "two");
  EXPECT_FALSE(bob.is_readable());
  EXPECT_EQ(bob.take(), "");
}

TEST_F(UdpIntakeWithARing, TakesTheKernelsFirstThatWereSentBefore) {
  alice.send(bob, "one");
  EXPECT_EQ(alice.put(1, "two"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "one");
  EXPECT_EQ(bob.take(), "two");
}

TEST_F(UdpIntakeWithARing, WaitsForTheKernelsThatHaveNotComeYet) {
  EXPECT_EQ(alice.put(1, "two"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "");
  EXPECT_NE(bob.intake.wait_until(), Nanos::max());
  alice.send(bob, "one");
  EXPECT_EQ(bob.take(), "one");
  EXPECT_EQ(bob.take(), "two");
}

TEST_F(UdpIntakeWithARing, GoesOnWithoutTheKernelsThatNeverCome) {
  EXPECT_EQ(alice.put(1, "two"), OutgoingRing::Put::done);
  std::string got;
  while (got.empty()) got = bob.take();
  EXPECT_EQ(got, "two");
  EXPECT_EQ(bob.intake.wait_until(), Nanos::max());
}

TEST_F(UdpIntakeWithARing, TakesTheRingsFirstThatWerePutBefore) {
  EXPECT_EQ(alice.put(0, "one"), OutgoingRing::Put::done);
  alice.send(bob, "two");
  bob.intake.woken();  // by the kernel's
  EXPECT_EQ(bob.take(), "one");
  EXPECT_EQ(bob.take(), "two");
}

TEST_F(UdpIntakeWithARing, TakesWhatAnEndedRingHasBeforeWhatTheKernelHas) {
  EXPECT_EQ(alice.put(0, "one"), OutgoingRing::Put::done);
  alice.ring.reset();
  Sender alice_by_another_name;  // her socket has got another port from connect(2)
  alice_by_another_name.send(bob, "two");
  bob.intake.woken();
  EXPECT_EQ(bob.take(), "one");
  EXPECT_EQ(bob.take(), "two");
}

TEST_F(UdpIntakeWithARing, KnowsThatAnEndedRingWaitsInVainOnceItsSenderGoesOn) {
  EXPECT_EQ(alice.put(5, "one"), OutgoingRing::Put::done);
  EXPECT_EQ(alice.put(7, "two"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "") << "what the kernel has lost might still come";
  alice.ring.reset();
  alice.send(bob, "three");
  for (const char* const text : {"one", "two", "three"}) {
    bob.intake.woken();
    EXPECT_EQ(bob.take(), text);
  }
}

TEST_F(UdpIntakeWithARing, KnowsThatASocketsEarlierRingWaitsInVainOnceItsNextOneBegins) {
  Sender again;  // stands for the same socket by another name: the same process and descriptor tell so
  ASSERT_EQ(::dup2(again.fd.get(), alice.fd.get()), alice.fd.get());
  EXPECT_EQ(alice.put(5, "one"), OutgoingRing::Put::done);
  alice.ring.reset();
  auto opened = OutgoingRing::open({::geteuid(), bob.cookie}, {again.name, alice.fd.get()});
  ASSERT_TRUE(opened);
  again.ring = *std::move(opened);
  bob.intake.woken();
  EXPECT_EQ(bob.take(), "") << "what the kernel has lost might still come";
  again.last_mark = alice.last_mark;
  again.send_mark(bob);
  bob.intake.woken();
  EXPECT_EQ(bob.take(), "one");
  EXPECT_EQ(bob.take(), "the mark");
}

TEST_F(UdpIntakeWithARing, TakesNoMarkForThatOfTheSendersNextRing) {
  alice.ring.reset();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(bob.take(), "");
  alice.knock_at(bob);
  bob.intake.woken();
  EXPECT_EQ(bob.take(), "");
  alice.send_mark(bob, "the mark of a ring that ends before it comes");
  alice.ring.reset();
  alice.knock_at(bob);
  bob.intake.woken();
  ASSERT_EQ(alice.put(0, "the next ring's mark"), OutgoingRing::Put::early) << "Bob does not know that ring yet";
  EXPECT_EQ(bob.take(), "the mark of a ring that ends before it comes");
  EXPECT_EQ(bob.take(), "");
  const soft::Place mark = alice.next_mark();
  EXPECT_EQ(alice.put(0, "by the ring"), OutgoingRing::Put::early) << "its own mark is on its way";
  alice.send_with(mark, bob, "the next ring's mark");
  EXPECT_EQ(bob.take(), "the next ring's mark");
  wake(alice, 0);
  EXPECT_EQ(alice.put(0, "by the ring"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "by the ring");
}

TEST_F(UdpIntakeWithARing, KeepsTheOrderOfManyThatChangeTheirWayAllTheTime) {
  std::uint32_t by_kernel = 0;
  for (int round = 0; round < 100; ++round) {
    const auto text = [round](int i) { return std::to_string(round) + "." + std::to_string(i); };
    for (int i = 0; i < 10; ++i) {
      if ((round * 7 + i * 3) % 5 < 2) {
        alice.send(bob, text(i));
        ++by_kernel;
      } else {
        ASSERT_EQ(alice.put(by_kernel, text(i)), OutgoingRing::Put::done);
      }
    }
    for (int i = 0; i < 10; ++i) {
      if (round % 3 == 0) bob.intake.woken();
      ASSERT_EQ(bob.take(), text(i));
    }
  }
}

TEST_F(UdpIntakeWithARing, KnowsHowManyTheKernelHasLost) {
  const int smallest = 0;
  ASSERT_EQ(::setsockopt(bob.fd.get(), SOL_SOCKET, SO_RCVBUF, &smallest, sizeof smallest), 0);
  constexpr std::uint32_t kSent = 100;
  for (std::uint32_t i = 0; i < kSent; ++i) alice.send(bob, "many");
  EXPECT_EQ(alice.put(kSent, "the last"), OutgoingRing::Put::done);
  std::uint32_t came = 0;
  std::string got = bob.take();
  for (; got == "many"; got = bob.take()) ++came;
  EXPECT_LT(came, kSent);
  EXPECT_EQ(got, "the last");  // without a wait for those that are lost
}

TEST_F(UdpIntakeWithARing, KnowsWhichOnesOfASenderTheKernelHasLost) {
  for (const std::uint32_t lost : {1U, 3U, 200U, 5'000U, 20'000U}) {
    alice.send(bob, "one");
    const std::uint32_t before = alice.number;
    EXPECT_EQ(alice.put(before, "two"), OutgoingRing::Put::done);
    alice.number += lost;
    EXPECT_EQ(alice.put(alice.number, "three"), OutgoingRing::Put::done);
    alice.send(bob, "four");
    for (const char* const text : {"one", "two", "three", "four"}) {
      bob.intake.woken();  // the kernel's socket is looked at first
      EXPECT_EQ(bob.take(), text) << lost;
    }
  }
}

TEST_F(UdpIntakeWithARing, DoesNotTakeWhatWasLostBeforeASendersRingForWhatTheRingWaitsFor) {
  const int few = 1;
  ASSERT_EQ(::setsockopt(bob.fd.get(), SOL_SOCKET, SO_RCVBUF, &few, sizeof few), 0);
  Sender carol;
  for (int i = 0; i < 100; ++i) carol.send(bob, "one of too many");
  int got = 0;
  while (bob.take() == "one of too many") ++got;
  ASSERT_LT(got, 90) << "some must be lost";
  let_in(carol);
  ASSERT_EQ(carol.put(1, "second"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "") << "the first is on its way";
  carol.send(bob, "first");
  EXPECT_EQ(bob.take(), "first");
  EXPECT_EQ(bob.take(), "second");
}

TEST_F(UdpIntakeWithARing, ShowsTheSameDatagramThatItGivesAfterwards) {
  alice.send(bob, "one");
  EXPECT_EQ(bob.take(MSG_PEEK), "one");
  EXPECT_EQ(alice.put(1, "two"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "one");
  EXPECT_EQ(bob.take(MSG_PEEK), "two");
  EXPECT_EQ(*bob.intake.unread_bytes(bob.fd.get()), 3);
  alice.send(bob, "three");
  bob.intake.woken();
  EXPECT_EQ(bob.take(), "two");
  EXPECT_EQ(*bob.intake.unread_bytes(bob.fd.get()), 5);
  EXPECT_EQ(bob.take(), "three");
}

TEST_F(UdpIntakeWithARing, CutsWhatIsTooLong) {
  EXPECT_EQ(alice.put(0, "a long one"), OutgoingRing::Put::done);
  EXPECT_EQ(alice.put(0, "the next"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(MSG_TRUNC, 6), "a long");
  EXPECT_EQ(bob.take(), "the next");
}

TEST_F(UdpIntakeWithARing, ServesManySendersInTurn) {
  Sender carol;
  let_in(carol);
  wake(alice, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(alice.put(0, "from Alice"), OutgoingRing::Put::done);
    EXPECT_EQ(carol.put(0, "from Carol"), OutgoingRing::Put::done);
  }
  std::string first = bob.take();
  for (int i = 0; i < 5; ++i) {
    const std::string next = bob.take();
    EXPECT_NE(next, first);
    first = next;
  }
}

TEST_F(UdpIntakeWithARing, RemovesTheRingOfASenderThatHasEnded) {
  EXPECT_EQ(alice.put(0, "the last"), OutgoingRing::Put::done);
  alice.ring.reset();
  EXPECT_EQ(bob.take(), "the last");
  EXPECT_EQ(bob.take(), "");
  EXPECT_FALSE(bob.intake.has_rings());
}

TEST_F(UdpIntakeWithARing, TellsOtherSleepersWhenTheKernelsDatagramIsTakenThatShouldWakeThem) {
  bob.intake.arm();
  EXPECT_EQ(alice.put(0, "one"), OutgoingRing::Put::asleep);
  alice.send(bob, "one");
  EXPECT_EQ(bob.take(), "one");
  EXPECT_TRUE(bob.intake.take_news().must_arm);
  alice.send(bob, "two");
  EXPECT_EQ(bob.take(), "two");
  EXPECT_FALSE(bob.intake.take_news().must_arm);
}

// -- leaving the rings -----------------------------------------------------------------------------

TEST_F(UdpIntakeWithARing, GivesWhatIsInRingsWhenItLeavesThem) {
  EXPECT_EQ(alice.put(0, "one"), OutgoingRing::Put::done);
  alice.send(bob, "two");
  EXPECT_EQ(alice.put(1, "three"), OutgoingRing::Put::done);
  alice.send(bob, "four");
  bob.intake.leave_rings(bob.fd.get());
  EXPECT_EQ(alice.put(2, "five"), OutgoingRing::Put::gone);
  EXPECT_TRUE(bob.intake.has_backlog());
  for (const char* const text : {"one", "two", "three", "four"}) EXPECT_EQ(bob.take(), text);
  EXPECT_FALSE(bob.intake.has_backlog());
}

TEST_F(UdpIntakeWithARing, RefusesTheRingsOfStrangersOnceItHasAPeer) {
  Sender carol;
  bob.connect(carol.name);
  bob.intake.set_peer(bob.fd.get(), carol.name);
  EXPECT_EQ(alice.put(0, "from a stranger"), OutgoingRing::Put::gone);
  for (int i = 0; i < 4; ++i) {
    carol.send(bob, "before");
    EXPECT_EQ(bob.take(), "before");
  }
  alice.knock_at(bob);
  let_in(carol);
  EXPECT_EQ(alice.put(0, "from a stranger"), OutgoingRing::Put::gone);
  EXPECT_EQ(carol.put(0, "from the peer"), OutgoingRing::Put::done);
  EXPECT_EQ(bob.take(), "from the peer");
}

TEST_F(UdpIntakeWithARing, TellsTheSenderWhenItIsClosed) {
  bob.intake.close();
  EXPECT_EQ(alice.put(0, "one"), OutgoingRing::Put::gone);
}

// -- calls that wait in the kernel -----------------------------------------------------------------

TEST(UdpIntake, TakesInNoRingWhileACallWaitsInTheKernel) {
  Sender alice;
  Bob bob;
  for (int i = 0; i < 4; ++i) {
    alice.send(bob, "before");
    EXPECT_EQ(bob.take(), "before");
  }
  ASSERT_TRUE(bob.intake.begin_waiting_in_kernel());
  alice.knock_at(bob);
  EXPECT_EQ(bob.intake.arm(), -1);  // nobody is to be woken for what stays
  bob.intake.woken();
  EXPECT_EQ(bob.take(), "");
  EXPECT_FALSE(bob.intake.has_rings());
  EXPECT_EQ(alice.put(0, "one"), OutgoingRing::Put::early) << "Bob does not look for a mark";
  --bob.intake.calls_in_kernel;
  bob.intake.woken();
  EXPECT_EQ(bob.take(), "");
  EXPECT_TRUE(bob.intake.has_rings());
}

TEST_F(UdpIntakeWithARing, LetsNoCallWaitInTheKernelWhileThereIsARing) {
  EXPECT_FALSE(bob.intake.leaves_waiting_to_kernel());
  EXPECT_FALSE(bob.intake.begin_waiting_in_kernel());
}

}  // namespace
}  // namespace ringsock::rs
