#include "core/poll/spin_policy.h"

#include <gtest/gtest.h>

#include "core/poll/busy_turns.h"
#include "core/poll/wait_tally.h"

namespace ringsock::runtime {
namespace {

using namespace std::chrono_literals;

/// A CPU in virtual time: a pause takes 30 ns, a yield as long as the others run.
struct Cpu {
  Nanos time{1'000'000};
  Nanos yield_takes{500};
  Nanos signal_comes = Nanos::max();
  int yields = 0;
};
struct VirtualMachine {
  Cpu* cpu = nullptr;
  [[nodiscard]] Nanos now() const { return cpu->time; }
  void relax() const { cpu->time += 30ns; }
  void yield() const {
    cpu->time += cpu->yield_takes;
    ++cpu->yields;
  }
  [[nodiscard]] bool interrupts(Nanos, Nanos now) const { return now >= cpu->signal_comes; }
};

class SpinPolicyTest : public testing::Test {
 protected:
  /// Spins without success. @return how long it took.
  Nanos spin(Nanos deadline = Nanos::max()) {
    const Nanos begun = cpu_.time;
    BasicSpinner<VirtualMachine> spinner(policy_, contention_, history_, deadline, 16, {&cpu_});
    while (spinner.again()) {
    }
    return cpu_.time - begun;
  }
  /// Spins until something arrives after `after`. @return how long it took, or max when it gave up.
  Nanos spin_until(Nanos after) {
    const Nanos begun = cpu_.time;
    BasicSpinner<VirtualMachine> spinner(policy_, contention_, history_, Nanos::max(), 16, {&cpu_});
    while (spinner.again()) {
      if (cpu_.time - begun < after) continue;
      spinner.paid_off();
      return cpu_.time - begun;
    }
    return Nanos::max();
  }
  Cpu cpu_;
  SpinPolicy policy_{.polling_time = 10us, .adaptive = true};
  Contention contention_;
  SpinHistory history_;
};

TEST_F(SpinPolicyTest, SpinsForThePollingTimeOnAQuietMachine) {
  EXPECT_GE(spin(), 10us);
  EXPECT_LE(spin(), 13us);
}

TEST_F(SpinPolicyTest, AQuickAnswerIsFoundWithoutGivingTheCpuAway) {
  EXPECT_LE(spin_until(1us), 1us + 60ns);
  EXPECT_EQ(cpu_.yields, 0);
}

TEST_F(SpinPolicyTest, WhoIsToldToYieldsAfterSoManyAttempts) {
  policy_ = {.polling_time = 30us, .adaptive = false, .attempts_per_yield = 100};
  cpu_.yield_takes = 0ns;
  spin();
  EXPECT_EQ(cpu_.yields, 30'000 / 30 / 100);

  // Even where yielding costs a time slice, and more often than the clock is read otherwise.
  policy_.attempts_per_yield = 1;
  cpu_.yield_takes = 4ms;
  policy_.polling_time = 40ms;
  cpu_.yields = 0;
  spin();
  EXPECT_EQ(cpu_.yields, 10);
}

TEST_F(SpinPolicyTest, NeverSpinsPastTheDeadline) {
  EXPECT_LE(spin(cpu_.time + 3us), 4us);
  EXPECT_LE(spin(cpu_.time), 600ns);
}

TEST_F(SpinPolicyTest, ASignalEndsASpinWhichIsNoMiss) {
  for (int i = 0; i < 100; ++i) {
    cpu_.signal_comes = cpu_.time + 5us;
    EXPECT_GE(spin(), 5us) << "none was shortened by those before";
    EXPECT_LE(cpu_.time, cpu_.signal_comes + 1us);
  }
}

TEST_F(SpinPolicyTest, DoesNotSpinWhenThePollingTimeIsZero) {
  policy_.polling_time = 0us;
  EXPECT_LE(spin(), 600ns);
  EXPECT_EQ(cpu_.yields, 0);
}

TEST_F(SpinPolicyTest, OnlyYieldsWhileOthersWantTheCpu) {
  // Three others run for 5 us each whenever this one yields: the first spin notices.
  cpu_.yield_takes = 15us;
  spin();
  ASSERT_TRUE(contention_.is_contended(cpu_.time));

  // From now on hardly any time is spent spinning: the others get all but a few attempts.
  cpu_.yields = 0;
  const Nanos spent = spin();
  EXPECT_GE(cpu_.yields, 2);
  EXPECT_LE(spent - cpu_.yields * 15us, cpu_.yields * 100ns);
}

TEST_F(SpinPolicyTest, YieldsAtOnceWhereTheFirstAttemptsAreInVainAnyway) {
  // Thirty others run for 2 us each, and the answer comes with the next turn.
  cpu_.yield_takes = 60us;
  for (int i = 0; i < 10; ++i) EXPECT_LE(spin_until(50us), 70us);
  EXPECT_LE(spin_until(50us), 60us + 100ns) << "without sixteen attempts before";

  // Answers that come at once, as from a peer that has the other CPU, are noticed by one of the next spins.
  cpu_.yields = 0;
  for (int i = 0; i < 16; ++i) spin_until(100ns);
  const int before = cpu_.yields;
  for (int i = 0; i < 100; ++i) EXPECT_LE(spin_until(100ns), 200ns);
  EXPECT_EQ(cpu_.yields, before);
}

TEST_F(SpinPolicyTest, SystemCallsThatTakeLongAreNotTakenForContention) {
  // As in an emulated guest.
  cpu_.yield_takes = 1'700ns;
  for (int i = 0; i < 10; ++i) spin_until(9us);
  EXPECT_FALSE(contention_.is_contended(cpu_.time));

  cpu_.yield_takes = 15us;
  spin();
  spin();
  EXPECT_TRUE(contention_.is_contended(cpu_.time));
}

TEST_F(SpinPolicyTest, WhereNobodyWantsTheCpuItIsOfferedOnceInALongTime) {
  for (int i = 0; i < 10; ++i) spin_until(9us);
  cpu_.yields = 0;
  for (int i = 0; i < 160; ++i) spin_until(9us);
  EXPECT_GE(cpu_.yields, 160 * 9 / 20) << "spins that end soon count, too";
  EXPECT_LE(cpu_.yields, 160 * 9 / 16);
}

TEST_F(SpinPolicyTest, WhoComesToWantTheCpuIsNoticedInOneOfTheNextSpins) {
  for (int i = 0; i < 10; ++i) spin_until(9us);
  cpu_.yield_takes = 15us;
  cpu_.yields = 0;
  while (cpu_.yields == 0) spin_until(9us);
  EXPECT_TRUE(contention_.is_contended(cpu_.time));
  cpu_.yields = 0;
  spin_until(100us);
  EXPECT_GE(cpu_.yields, 6) << "a turn for the others after each attempt";
}

TEST_F(SpinPolicyTest, OthersWhoTakeShortTurnsAreNoticedWhereSystemCallsAreQuick) {
  spin();
  cpu_.yield_takes = 1'700ns;
  spin();
  EXPECT_TRUE(contention_.is_contended(cpu_.time));
}

TEST_F(SpinPolicyTest, GoesToSleepAfterAFewMillisecondsOfTurnsThatFoundNothing) {
  cpu_.yield_takes = 15us;
  spin();
  EXPECT_LE(spin(), 5ms + 16us);
}

TEST_F(SpinPolicyTest, SpinsAgainSoonAfterTheOthersHaveGone) {
  cpu_.yield_takes = 15us;
  for (int i = 0; i < 10; ++i) spin();
  cpu_.yield_takes = 500ns;
  // A few short yields prove that the CPU is free.
  spin();
  spin();
  EXPECT_FALSE(contention_.is_contended(cpu_.time));
  EXPECT_LE(spin_until(1us), 1us + 60ns);
}

TEST_F(SpinPolicyTest, DoesNotYieldToThoseWhoKeepTheCpuForATimeSlice) {
  cpu_.yield_takes = 3ms;
  spin();
  EXPECT_EQ(cpu_.yields, 1) << "once is enough to know";
  cpu_.yields = 0;
  for (int i = 0; i < 10; ++i) EXPECT_LE(spin(), 3us);
  EXPECT_EQ(cpu_.yields, 0);

  // Asking again costs a time slice each time, so it is done ever more rarely.
  for (int i = 0; i < 1'000; ++i) {
    cpu_.time += 5ms;
    spin();
  }
  EXPECT_LE(cpu_.yields, 10);

  // They may have gone: in the end that is noticed.
  cpu_.time += 2s;
  cpu_.yield_takes = 500ns;
  Nanos longest{};
  for (int i = 0; i < 32; ++i) longest = std::max(longest, spin());
  EXPECT_GE(longest, 10us);
}

/// A thread that makes or takes a connection before each wait.
class ShortConnections : public SpinPolicyTest {
 protected:
  Nanos wait() {
    history_.note_connection();
    return spin();
  }
};

TEST_F(ShortConnections, DoNotYieldToThoseWhoKeepTheCpuForTheRestOfATimeSlice) {
  cpu_.yield_takes = 1ms;
  wait();
  EXPECT_EQ(cpu_.yields, 2) << "one may be a turn of many others";
  cpu_.yields = 0;
  for (int i = 0; i < 10; ++i) EXPECT_LE(wait(), 3us);
  EXPECT_EQ(cpu_.yields, 0);
}

TEST_F(ShortConnections, TakeALongTurnOnceInAWhileForNoLostTimeSlice) {
  for (int i = 0; i < 20; ++i) {
    cpu_.yield_takes = 1ms;
    spin_until(20us);
    cpu_.yield_takes = 15us;
    spin_until(65 * 16us);
    EXPECT_FALSE(contention_.is_hogged_for_short(cpu_.time));
  }
}

TEST_F(ShortConnections, DoNotYieldMoreOftenForAShortYieldAmongThoseThatLoseTheCpu) {
  for (int i = 0; i < 1'000; ++i) {
    cpu_.time += 5ms;
    // The thread that computes is on the other CPU for once.
    cpu_.yield_takes = cpu_.yields % 4 == 3 ? 15us : 3ms;
    history_.note_connection();
    spin_until(20us);
  }
  EXPECT_LE(cpu_.yields, 16);
}

TEST_F(ShortConnections, AreOverAfterSomeWaits) {
  cpu_.yield_takes = 1ms;
  wait();
  ASSERT_TRUE(contention_.is_hogged_for_short(cpu_.time));
  EXPECT_FALSE(contention_.is_hogged(cpu_.time)) << "busy pairs take such turns";
  for (int i = 0; i < 16; ++i) spin_until(9us);
  cpu_.yields = 0;
  cpu_.yield_takes = 15us;
  spin();
  EXPECT_GE(cpu_.yields, 2);
}

TEST_F(SpinPolicyTest, DoesNotSpinForAPeerThatNeedsItsCpuBesideThoseWhoKeepIt) {
  cpu_.yield_takes = 3ms;
  spin();
  cpu_.time += 1ms;
  ASSERT_TRUE(contention_.is_hogged(cpu_.time));
  Nanos total{};
  for (int i = 0; i < 64; ++i) {
    history_.slept(40us, policy_);  // the peer answers as soon as this thread sleeps
    total += spin();
  }
  EXPECT_LE(total, 64 * 1us);

  // One spin in 16 finds out that the peer has another CPU now.
  int tries = 1;
  while (spin_until(1us) == Nanos::max()) ++tries;
  EXPECT_LE(tries, 16);
  EXPECT_LE(spin_until(1us), 2us);
}

TEST_F(SpinPolicyTest, ForgetsContentionAfterAMillisecondOfSilence) {
  cpu_.yield_takes = 15us;
  spin();
  cpu_.time += 1ms;
  EXPECT_FALSE(contention_.is_contended(cpu_.time));
}

TEST_F(SpinPolicyTest, SpinsLessAfterSpinsThatDidNotPay) {
  Nanos total{};
  for (int i = 0; i < 160; ++i) total += spin();
  EXPECT_LE(total, 160 * 4us) << "most spins are an eighth of the polling time";
  EXPECT_GE(total, 10 * 10us) << "one in sixteen is whole";
}

TEST_F(SpinPolicyTest, OneSpinThatPaysBringsTheWholePollingTimeBack) {
  for (int i = 0; i < 100; ++i) spin();
  int tries = 1;
  while (spin_until(9us) == Nanos::max()) ++tries;
  EXPECT_LE(tries, 16);
  EXPECT_GE(spin(), 10us);
}

TEST_F(SpinPolicyTest, SpinsLongerAfterSleepsThatWereShort) {
  history_.slept(40us, policy_);
  EXPECT_GE(spin(), 20us);
  for (int i = 0; i < 10; ++i) history_.slept(40us, policy_);
  EXPECT_GE(spin(), 100us);
  EXPECT_LE(spin(), 130us) << "but not for ever longer";
}

TEST_F(SpinPolicyTest, LongSleepsBringThePollingTimeBack) {
  for (int i = 0; i < 10; ++i) history_.slept(40us, policy_);
  for (int i = 0; i < 10; ++i) history_.slept(5ms, policy_);
  EXPECT_LE(spin(), 13us);
}

/// As VMA's, which are a thousand times longer than what a sleep costs.
class LongPollingTimes : public SpinPolicyTest {
 protected:
  LongPollingTimes() { policy_.polling_time = 100ms; }
  /// A call that waits `timeout` in vain. @return how long it spun.
  Nanos wait_in_vain(Nanos timeout) {
    const Nanos deadline = cpu_.time + timeout;
    const Nanos spun = spin(deadline);
    if (cpu_.time < deadline) {
      history_.slept_in_vain(deadline - cpu_.time);
      cpu_.time = deadline;
    }
    return spun;
  }
  /// A call whose answer comes after `after`. @return whether it was found by spinning.
  bool wait_for_answer(Nanos after) {
    const Nanos begun = cpu_.time;
    if (spin_until(after) != Nanos::max()) return true;
    const Nanos sleep = begun + after - cpu_.time;
    cpu_.time += sleep;
    history_.slept(sleep, policy_);
    return false;
  }
};

TEST_F(LongPollingTimes, ThatNeverPayAreLearntWhateverTheTimeOuts) {
  for (const Nanos timeout : {1ms, 10ms, 100ms}) {
    history_ = {};
    Nanos first{};
    for (int i = 0; i < 100; ++i) first += wait_in_vain(timeout);
    EXPECT_LE(first, 4 * timeout) << "of a hundred";
    Nanos total{};
    for (int i = 0; i < 1600; ++i) total += wait_in_vain(timeout);
    EXPECT_LE(total, 1600 * 100ns);
  }
}

TEST_F(LongPollingTimes, AreSpunToTheEndWhereAnswersComeWithinThem) {
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(wait_for_answer(i % 10 == 0 ? 90ms : 20us));
}

TEST_F(LongPollingTimes, ComeBackWithTheFirstAnswerWithinThem) {
  for (const Nanos answer : {Nanos(50us), Nanos(500us), Nanos(5ms), Nanos(45ms)}) {
    for (int i = 0; i < 100; ++i) wait_in_vain(10ms);
    wait_for_answer(answer);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(wait_for_answer(answer)) << answer.count();
  }
}

TEST_F(LongPollingTimes, ReachNoFartherThanTwiceAsFarAsWhatBroughtThemBack) {
  for (int i = 0; i < 100; ++i) wait_in_vain(10ms);
  wait_for_answer(200us);
  Nanos total{};
  for (int i = 0; i < 100; ++i) total += wait_in_vain(10ms);
  EXPECT_LE(total, 3 * 400us + 100 * 100ns);
}

TEST_F(LongPollingTimes, AreNotMissedByWaitsLongerThanThey) {
  for (int i = 0; i < 100; ++i) wait_in_vain(10ms);
  Nanos total{};
  for (int i = 0; i < 160; ++i) {
    const Nanos begun = cpu_.time;
    wait_in_vain(10ms);
    cpu_.time = begun;
    total += spin();
    history_.slept(150ms, policy_);
  }
  EXPECT_LE(total, 160 * 4us);
}

TEST_F(LongPollingTimes, AreNotGivenUpBecauseTimeOutsAreShorterThanASleepIsDear) {
  for (int i = 0; i < 100; ++i) wait_in_vain(20us);
  EXPECT_TRUE(wait_for_answer(15us));
}

TEST_F(LongPollingTimes, ThatNeverPayAreLearntAmongOthersWhoTakeTurns) {
  cpu_.yield_takes = 15us;
  Nanos total{};
  for (int i = 0; i < 1600; ++i) total += wait_in_vain(1ms);
  EXPECT_LE(total, 20ms);
}

TEST_F(SpinPolicyTest, ShortPollingTimesAreNotGivenUp) {
  // Spins of 100 us that just miss, one after the other.
  for (int i = 0; i < 100; ++i) {
    spin();
    history_.slept(40us, policy_);
  }
  EXPECT_GE(spin(), 100us);
  // And turns of 5 ms.
  cpu_.yield_takes = 15us;
  for (int i = 0; i < 100; ++i) {
    spin();
    history_.slept(20ms, policy_);
  }
  Nanos longest{};
  for (int i = 0; i < 16; ++i) longest = std::max(longest, spin());
  EXPECT_GE(longest, 4ms);
}

TEST_F(LongPollingTimes, ThatAreZeroHaveNoTurnsEither) {
  cpu_.yield_takes = 15us;
  spin();
  ASSERT_TRUE(contention_.is_contended(cpu_.time));
  policy_.polling_time = 0us;
  EXPECT_LE(spin(), 600ns);
}

TEST_F(SpinPolicyTest, WhoAskedForNoSpinningGetsNoneHoweverShortTheSleeps) {
  policy_.polling_time = 0us;
  for (int i = 0; i < 10; ++i) history_.slept(40us, policy_);
  EXPECT_LE(spin(), 600ns);
}

TEST_F(SpinPolicyTest, APollingTimeThatSomebodyAskedForIsKept) {
  policy_ = {.polling_time = 50us, .adaptive = false};
  for (int i = 0; i < 100; ++i) EXPECT_GE(spin(), 50us);
}

/// Two threads, each on a CPU of its own, that answer each other. A message takes 100 ns.
class Partners : public testing::Test {
 protected:
  struct Partner {
    Nanos time{1'000'000};
    SpinHistory history;
    int sleeps = 0;
    Nanos spun{};
  };
  static constexpr SpinPolicy kPolicy{.polling_time = 10us, .adaptive = true};

  /// Waits for the message that comes at `arrival`.
  void wait(Partner& partner, Nanos arrival) const {
    const Nanos late = std::max(arrival - partner.time, 0ns);
    const Nanos longest = partner.history.budget(kPolicy);
    partner.spun += std::min(late, longest);
    if (late <= longest) {
      partner.history.hit(late);
      partner.time += late;
      return;
    }
    partner.history.miss(longest);
    const Nanos asleep = partner.time + longest;
    partner.time = arrival + wake_up_takes;
    partner.history.slept(partner.time - asleep, kPolicy);
    ++partner.sleeps;
  }
  /// @return how long the rounds took
  Nanos ask_and_answer(int rounds) {
    const Nanos begun = asker.time;
    for (int i = 0; i < rounds; ++i) {
      asker.time += 300ns;
      wait(answerer, asker.time + 100ns);
      answerer.time += answer_takes;
      wait(asker, answerer.time + 100ns);
    }
    return asker.time - begun;
  }

  Partner asker, answerer;
  Nanos wake_up_takes = 25us;
  Nanos answer_takes = 300ns;
};

TEST_F(Partners, WhoAreQuickSpinAgainAfterOneOfThemWasHeldUpHoweverLongWakeUpsTake) {
  for (const Nanos wake_up : {5us, 25us, 70us, 150us, 240us}) {
    wake_up_takes = wake_up;
    ask_and_answer(100);
    answerer.time += 5ms;
    ask_and_answer(10'000);
    asker.time += 20ms;
    ask_and_answer(10'000);
    EXPECT_LE(ask_and_answer(1'000), 1'000 * 1us) << wake_up.count();
  }
}

TEST_F(Partners, WhoWaitLongForEachAnswerSleep) {
  answer_takes = 300us;
  ask_and_answer(10'000);
  asker.sleeps = 0, asker.spun = 0ns;
  const Nanos took = ask_and_answer(10'000);
  EXPECT_GE(asker.sleeps, 9'900);
  EXPECT_LE(asker.spun, took / 50);
}

/// Returns how many messages a thread serves before it yields.
std::size_t served_before_turn(BusyTurns& turns, std::size_t peers) {
  std::size_t served = 1;
  while (!turns.served(peers)) ++served;
  return served;
}

TEST(BusyTurns, ComeWhenEachPeerHasHadTwoMessages) {
  BusyTurns turns;
  EXPECT_EQ(served_before_turn(turns, 64), 128u);
  turns.taken(true);
  EXPECT_EQ(served_before_turn(turns, 64), 128u);
}

TEST(BusyTurns, BecomeRareWhereNobodyTakesThem) {
  BusyTurns turns;
  for (const std::size_t expected : {32U, 64U, 128U, 256U, 512U, 1024U, 1024U}) {
    EXPECT_EQ(served_before_turn(turns, 4), expected);
    turns.taken(false);
  }
  EXPECT_EQ(served_before_turn(turns, 4), 1024u);
  turns.taken(true);
  EXPECT_EQ(served_before_turn(turns, 4), 32u);
}

TEST(BusyTurns, AreNotForAThreadThatWaitsAnyway) {
  BusyTurns turns;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(turns.served(64));
    if (i % 100 == 99) turns.waited();
  }
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(turns.served(3)) << "few peers";
}

TEST(PollingShare, IsThatOfASecondOfCallsAndWhatIsBetween) {
  PollingShare share;
  const int set = 2;
  // Calls of 200 ms, of which 150 ms are slept, with 50 ms between them: a fifth of the time is polled.
  Nanos now = 5s;
  for (int call = 0; call < 4; ++call, now += 250ms) EXPECT_FALSE(share.add(set, now, now + 200ms, 150ms)) << call;
  EXPECT_EQ(share.add(set, now, now + 200ms, 150ms), 20u);

  // The next window knows nothing of the last one; a thread that only polls is at 100.
  now += 200ms;
  EXPECT_EQ(share.add(set, now, now + 3s, 0s), 100u);

  // Another set begins anew.
  now += 3s;
  EXPECT_FALSE(share.add(set, now, now + 900ms, 0s));
  EXPECT_FALSE(share.add(set + 1, now + 900ms, now + 1100ms, 0s));
  EXPECT_EQ(share.add(set + 1, now + 1100ms, now + 1900ms, 700ms), 30u);
}

}  // namespace
}  // namespace ringsock::runtime
