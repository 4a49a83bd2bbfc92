// Programs that connect to one destination again and again, in virtual time.
#include "core/transports/short_connections.h"

#include <gtest/gtest.h>

#include <deque>

namespace ringsock::transports {
namespace {

using namespace std::chrono_literals;

const SocketAddress kServer = SocketAddress::v4(INADDR_LOOPBACK, 80);
const SocketAddress kOther = SocketAddress::v4(INADDR_LOOPBACK, 81);

/// A program, and how long one of its connections takes with either maker.
class Program {
 public:
  Program(Nanos by_way, Nanos by_kernel) : by_way_(by_way), by_kernel_(by_kernel) {}

  /// Makes connections of which `open` are open at a time. The machine works for the oldest one, so time passes where
  /// one ends.
  /// @return how many of them the kernel has made
  int connect(int times, std::size_t open = 0) {
    int by_kernel = 0;
    for (int i = 0; i < times; ++i) {
      while (open_.size() > open) close_oldest();
      const int descriptor = lowest_ + static_cast<int>(open_.size());
      const bool is_kernels = known.is_kernels(destination, descriptor, now);
      by_kernel += is_kernels ? 1 : 0;
      open_.push_back(is_kernels);
    }
    return by_kernel;
  }
  void pause(Nanos time) { now += time; }
  void becomes_busy(Nanos by_way, Nanos by_kernel) {
    by_way_ = by_way;
    by_kernel_ = by_kernel;
  }

  ShortConnections known;
  SocketAddress destination = kServer;
  Nanos now = 1s;

 private:
  void close_oldest() {
    const bool was_kernels = open_.front();
    open_.pop_front();
    now += was_kernels ? by_kernel_ : by_way_;
    if (!was_kernels) known.ended(destination);  // the kernel's leave the library's sight
  }

  Nanos by_way_;
  Nanos by_kernel_;
  int lowest_ = 5;
  std::deque<bool> open_;
};

/// Enough connections for one comparison.
constexpr int kComparison = 400;

TEST(ShortConnections, GoByTheWayWhereThatIsFaster) {
  Program program(50us, 80us);
  const int measured = program.connect(kComparison);
  EXPECT_GT(measured, 0) << "it has compared";
  EXPECT_EQ(program.connect(600), 0) << "until the next comparison";
  EXPECT_LT(program.connect(50'000), 50'000 / 40) << "comparisons become rare";
}

TEST(ShortConnections, AreLeftToTheKernelWhereThatIsFaster) {
  Program program(400us, 120us);
  program.connect(kComparison);
  EXPECT_EQ(program.connect(600), 600);
  EXPECT_GT(program.connect(50'000), 50'000 - 50'000 / 40);
}

TEST(ShortConnections, AreMeasuredOnceWhereOneIsFarFaster) {
  constexpr int kOnce = 2 * (ShortConnections::kWarmUp + ShortConnections::kMeasured);
  Program far(400us, 120us);
  far.connect(kOnce + 1);
  EXPECT_EQ(far.connect(100), 100);
  Program near(150us, 120us);
  near.connect(kOnce + 1);
  EXPECT_EQ(near.connect(8), 0) << "the way has its second turn";
}

TEST(ShortConnections, AreComparedRarelyWhereTheSlowerOneTakesLong) {
  Program program(1'300us, 150us);
  program.connect(kComparison);
  const Nanos before = program.now;
  program.connect(20'000);
  EXPECT_LT(program.now - before, 20'000 * 150us * 106 / 100) << "six in a hundred more than over the kernel alone";
}

TEST(ShortConnections, ChangeTheirMakerWithTheMachine) {
  Program program(50us, 80us);
  program.connect(kComparison);
  program.becomes_busy(400us, 120us);
  program.connect(4'000);
  EXPECT_GT(program.connect(600), 500);
  program.becomes_busy(50us, 80us);
  program.connect(40'000);
  EXPECT_LT(program.connect(600), 200);
}

TEST(ShortConnections, StayOnTheWayWhereBothAreAboutEqual) {
  Program program(100us, 95us);
  program.connect(kComparison);
  EXPECT_EQ(program.connect(600), 0);
}

TEST(ShortConnections, OfManyAtATimeAreComparedToo) {
  Program program(400us, 120us);
  program.connect(500, 100);
  EXPECT_EQ(program.connect(500, 100), 500);
}

TEST(ShortConnections, OfManyAtATimeAreNotMeasuredByThoseOfTheOtherMaker) {
  Program slow(400us, 120us);
  slow.connect(2'000, 200);
  EXPECT_EQ(slow.connect(500, 200), 500);
  EXPECT_GT(slow.connect(20'000, 200), 18'000) << "comparisons later";
  Program fast(50us, 120us);
  fast.connect(2'000, 200);
  EXPECT_EQ(fast.connect(500, 200), 0);
}

TEST(ShortConnections, OfManyAtATimeAreComparedAsRarelyAsTheirWarmUpCosts) {
  for (const std::size_t open : {16U, 200U, 800U}) {
    Program program(360us, 120us);
    program.connect(2'000, open);
    const Nanos before = program.now;
    program.connect(60'000, open);
    EXPECT_LT(program.now - before, 60'000 * 120us * 110 / 100) << open;
  }
}

TEST(ShortConnections, AreStillTheKernelsUntilTheNextComparison) {
  Program program(400us, 120us);
  const auto are_still_kernels = [&](int descriptor) {
    return program.known.are_still_kernels(program.destination, descriptor, program.now);
  };
  EXPECT_FALSE(are_still_kernels(5)) << "nothing is known";
  program.connect(100);
  EXPECT_FALSE(are_still_kernels(5)) << "it compares";
  program.connect(kComparison);
  EXPECT_TRUE(are_still_kernels(5));
  EXPECT_FALSE(are_still_kernels(50)) << "a connection stays open";
  EXPECT_TRUE(are_still_kernels(5)) << "that was only a question";
  program.destination = kOther;
  EXPECT_FALSE(are_still_kernels(5));
  program.destination = kServer;
  int more = 0;
  while (are_still_kernels(5)) ++more;
  EXPECT_GT(more, 600) << "each counts";
  EXPECT_LT(program.connect(10), 10) << "the next comparison";
}

TEST(ShortConnections, AreNoneThatStayOpen) {
  Program program(400us, 120us);
  EXPECT_EQ(program.connect(5'000, 5'000), 0) << "a pool, or a load generator that begins";
}

TEST(ShortConnections, LeaveAPoolToTheWayThatIsOpenedAfterThem) {
  Program program(400us, 120us);
  program.connect(kComparison);
  ASSERT_EQ(program.connect(100), 100);
  EXPECT_LE(program.connect(1'000, 1'000), 2 + ShortConnections::kMoreDescriptors);
}

TEST(ShortConnections, BeginAnewAfterAPause) {
  Program program(400us, 120us);
  program.connect(kComparison);
  ASSERT_EQ(program.connect(1), 1);
  program.pause(ShortConnections::kLongestPause + 1ms);
  EXPECT_EQ(program.connect(1), 0) << "this one may stay open";
}

TEST(ShortConnections, ThatAreRareAreNotCompared) {
  Program program(400us, 120us);
  for (int i = 0; i < 2'000; ++i) {
    EXPECT_EQ(program.connect(1), 0);
    program.pause(60ms);
  }
}

TEST(ShortConnections, OfAnotherDestinationAreAnotherMatter) {
  Program program(400us, 120us);
  program.connect(kComparison);
  ASSERT_EQ(program.connect(1), 1);
  EXPECT_FALSE(program.known.is_kernels(kOther, 5, program.now));
}

TEST(ShortConnections, ADestinationWithoutAPlaceUsesTheWay) {
  ShortConnections known;
  Nanos now = 1s;
  for (int i = 0; i < 1'000; ++i) {
    for (std::uint16_t port = 1; port <= 64; ++port) {  // four for each place
      EXPECT_FALSE(known.is_kernels(SocketAddress::v4(INADDR_LOOPBACK, port), 5, now));
      now += 10us;
    }
  }
}

TEST(ShortConnections, ThatEndWithoutHavingBegunDoNoHarm) {
  ShortConnections known;
  for (int i = 0; i < 1'000; ++i) known.ended(kServer);
  EXPECT_FALSE(known.is_kernels(kServer, 5, 1s));
}

}  // namespace
}  // namespace ringsock::transports
