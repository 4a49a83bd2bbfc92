// Decides how long to spin before sleeping (design D3).
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/clock.h"
#include "core/poll/held_signals.h"
#include "core/poll/kernel_looks.h"
#include "core/poll/spin_trial.h"

namespace ringsock::runtime {

/// The event that a call waits for. VMA has a polling time for each.
enum class WaitFor {
  operation,  ///< recv(2), send(2), accept(2) ...: that one endpoint can do it
  readiness,  ///< poll(2), select(2), epoll_wait(2)
  first,      ///< as operation, on an endpoint to which nothing has come yet (Readiness::awaits_first())
};
inline constexpr std::size_t kWaitKinds = 3;

/// How calls spend their time before they sleep. Set from the configuration.
struct SpinPolicy {
  Nanos polling_time{10'000};
  /// Spin less after spins that did not pay. Off when the polling time was set explicitly.
  bool adaptive = true;
  /// The number of attempts after which the thread yields, whether or not others have wanted the CPU; 0: only as
  /// SpinHistory and Contention decide.
  unsigned attempts_per_yield = 0;
};
void set_spin_policy(WaitFor what, SpinPolicy policy);
/// Sets the policy of all calls.
void set_spin_policy(SpinPolicy policy);
SpinPolicy spin_policy(WaitFor what);
KernelLooks& kernel_looks();

/// Remembers that yields gave the CPU to a thread that computes, so that no further ones do for some time. Shared by
/// all threads, accessed relaxed: a hint.
class LostSlices {
 public:
  /// The time that a lost time slice is remembered at first. It doubles with each further loss, because each attempt
  /// costs a slice.
  static constexpr Nanos kShortestMemory{20'000'000};
  static constexpr Nanos kLongestMemory{1'280'000'000};

  /// @param lost    a yield that took longer lost a slice
  /// @param doubted  two yields that took longer, with at most `between` shorter ones between them, did so, too. After
  ///                 more than `between` shorter ones the next loss is remembered as the first one is.
  constexpr LostSlices(Nanos lost, Nanos doubted, unsigned between)
      : lost_(lost), doubted_(doubted), between_(between) {}

  [[nodiscard]] bool are_remembered(Nanos now) const { return until_.load(std::memory_order_relaxed) > now; }
  void note_yield(Nanos took, Nanos ended) {
    const unsigned doubts = doubts_.load(std::memory_order_relaxed);
    if (took <= doubted_) {
      if (doubts <= 1) memory_.store(kShortestMemory, std::memory_order_relaxed);
      if (doubts > 0) doubts_.store(doubts - 1, std::memory_order_relaxed);
      return;
    }
    doubts_.store(between_ + 1, std::memory_order_relaxed);
    if (took <= lost_ && doubts == 0) return;
    const Nanos memory = memory_.load(std::memory_order_relaxed);
    until_.store(ended + memory, std::memory_order_relaxed);
    memory_.store(std::min(2 * memory, kLongestMemory), std::memory_order_relaxed);
  }

 private:
  const Nanos lost_;
  const Nanos doubted_;
  const unsigned between_;
  std::atomic<Nanos> until_{Nanos::min()};
  std::atomic<Nanos> memory_{kShortestMemory};
  std::atomic<unsigned> doubts_{0};  ///< shorter yields until a doubtful one counts for nothing
};

/// Records whether other threads compete for the CPUs of this process's threads. Shared by all threads, accessed
/// relaxed: a hint.
///
/// sched_yield() returns in about half a microsecond when no other thread is runnable on this CPU (in an emulated guest
/// in two). When it takes three times as long as the quickest, another thread ran meanwhile. This is the only sign that
/// needs no other process's help, and it costs no useful time. Threads that wait for messages give the CPU back within
/// some microseconds: for these, taking turns is quicker than sleeping. Threads that compute keep the CPU for their
/// whole time slice: against these only sleeping helps, because the kernel prefers a thread that was woken to one that
/// yielded.
class Contention {
 public:
  /// A yield that took longer gave the CPU to a thread that computes: the kernel's slice is about 3 ms. Four busy pairs
  /// on two CPUs are three times as fast as kernel TCP with 2.5 ms here and half as fast with 0.7 ms, where their own
  /// turns are taken for computing.
  static constexpr Nanos kLostSlice{2'500'000};
  /// A thread whose connections are short gains little by turns, and loses much by a slice. So it judges by yields that
  /// gave the CPU away for the rest of a slice, of which busy pairs see one among some hundred.
  static constexpr Nanos kPartOfSlice{700'000};
  static constexpr unsigned kTurnsBetweenParts = 64;
  /// The bounds of the quickest yield of a machine.
  static constexpr Nanos kQuickYield{500};
  static constexpr Nanos kSlowestQuickYield{2'000};
  /// The time that a long yield is remembered, and by how much a short one reduces it.
  static constexpr Nanos kMemory{1'000'000};
  static constexpr Nanos kForgiveness{250'000};

  [[nodiscard]] bool is_contended(Nanos now) const { return contended_until_.load(std::memory_order_relaxed) > now; }
  /// Returns whether yielding costs a time slice.
  [[nodiscard]] bool is_hogged(Nanos now) const { return slices_.are_remembered(now); }
  /// The same for a thread whose connections are short.
  [[nodiscard]] bool is_hogged_for_short(Nanos now) const { return parts_of_slices_.are_remembered(now); }
  void note_yield(Nanos begun, Nanos ended) {
    const Nanos took = ended - begun;
    Nanos quickest = quickest_yield_.load(std::memory_order_relaxed);
    if (took < quickest) {
      quickest = std::max(took, kQuickYield);
      quickest_yield_.store(quickest, std::memory_order_relaxed);
    }
    slices_.note_yield(took, ended);
    parts_of_slices_.note_yield(took, ended);
    if (took > 3 * quickest) {
      contended_until_.store(ended + kMemory, std::memory_order_relaxed);
    } else if (is_contended(ended)) {
      contended_until_.store(contended_until_.load(std::memory_order_relaxed) - kForgiveness,
                             std::memory_order_relaxed);
    }
  }

 private:
  std::atomic<Nanos> quickest_yield_{kSlowestQuickYield};
  std::atomic<Nanos> contended_until_{Nanos::min()};
  LostSlices slices_{kLostSlice, kLostSlice, 0};
  LostSlices parts_of_slices_{kLostSlice, kPartOfSlice, kTurnsBetweenParts};
};

/// Records whether this thread's recent spins paid off, whether longer ones would have, and how long it has spun since
/// it last yielded.
///
/// A wait is a spin together with the sleep after it. A spin in vain that costs more than a sleep halves the following
/// ones, until there are none. A wait that ended within the polling time would have paid as a spin, so the following
/// spins reach twice as far as it lasted. A thread that waits in vain thus soon stops spinning, and a thread whose peer
/// answers within the polling time spins until the answer comes. A SpinTrial finds out whether both sleep for nothing.
class SpinHistory {
 public:
  /// The time of spinning between two yields: the longest where the last yields were not used.
  static constexpr Nanos kSlice{2'000};
  static constexpr Nanos kLongestSlice{16'000};
  /// Spinning is better than a sleep shorter than this: falling asleep and being woken alone costs about 25 us.
  static constexpr Nanos kShortSleep{120'000};
  static constexpr Nanos kLongestBudget{100'000};
  /// Spins that were halved to this are given up.
  static constexpr Nanos kShortestReach{10'000};
  /// Returns how long to spin this time: `polling_time`, more after short sleeps, less after spins in vain. After
  /// repeated misses it shrinks to an eighth; one spin in 16 gets all of it, so that a thread notices that its peer has
  /// become quick.
  [[nodiscard]] Nanos budget(const SpinPolicy& policy) {
    if (!policy.adaptive || policy.polling_time == Nanos::zero()) return policy.polling_time;
    learns_reach_ = policy.polling_time > kLongestBudget;
    if (reach_ <= kShortestReach) return Nanos::zero();
    if (trial_.reach() > Nanos::zero()) return trial_.reach();
    const Nanos whole = std::min(policy.polling_time, reach_);
    if (misses_ < kMissesPerStep || ++probe_ % kProbeInterval == 0) return std::max(whole, grown_);
    return Nanos(whole.count() >> std::min(misses_ / kMissesPerStep, kMaxShift));
  }
  /// Records that a spin found nothing, and the sleep after it ended with an event.
  void slept(Nanos duration, const SpinPolicy& policy) {
    if (duration < kShortSleep) {
      grown_ = std::min(2 * std::max(grown_, std::min(policy.polling_time, kLongestBudget)), kLongestBudget);
      misses_ = 0;
    } else {
      grown_ = grown_ / 2;
      trial_.slept(duration);
    }
    const Nanos waited = spun_in_vain_ + duration;
    if (waited > policy.polling_time) return;
    reach_ = std::max(reach_, 2 * waited);
    misses_ = 0;
  }
  /// Records that a spin found nothing, and the sleep after it ended with a time-out.
  void slept_in_vain(Nanos duration) {
    if (duration >= kShortSleep) grown_ = grown_ / 2;
  }
  /// Returns no time after a miss, except for one spin in 16. Short sleeps bring none back, because a peer that runs on
  /// this thread's CPU answers while it sleeps, and never while it spins.
  [[nodiscard]] Nanos budget_when_hogged(Nanos budget) {
    return !missed_when_hogged_ || ++hogged_probe_ % kProbeInterval == 0 ? budget : Nanos::zero();
  }
  /// Records a spin that paid.
  /// @param spun the duration of the spin, to one reading of the clock
  void hit(Nanos spun) {
    misses_ = 0;
    missed_when_hogged_ = false;
    if (trial_.paid(spun)) grown_ = kLongestBudget;
  }
  /// Records a spin in vain. A sleep follows, in which other threads have the CPU.
  /// @param spun the duration of the spin
  void miss(Nanos spun, bool is_hogged = false) {
    missed_when_hogged_ = is_hogged;
    trial_.missed();
    misses_ = std::min(misses_ + 1, kMissesPerStep * kMaxShift);
    spun_in_vain_ = spun;
    // A shorter spin was ended by a time-out or a lost time slice.
    if (learns_reach_ && spun >= std::min(reach_, kLongestBudget))
      reach_ = std::max(std::min(reach_, spun) / 2, kShortestReach);
    spun_ = Nanos::zero();
    slice_ = kSlice;
  }

  /// Returns whether the first attempts of a spin are likely to be in vain, as they were lately. Every 16th spin finds
  /// out.
  [[nodiscard]] bool answers_come_late() {
    return late_answers_ == kLateAnswers && ++late_probe_ % kProbeInterval != 0;
  }
  /// Records whether what a spin has waited for came after the thread had yielded, or with the first attempts.
  void note_answer(bool is_late) { late_answers_ = is_late ? std::min(late_answers_ + 1, kLateAnswers) : 0; }

  /// Records that the thread has made or taken a connection, which may be a short one.
  void note_connection() { waits_after_connection_ = kWaitsOfShort; }
  /// Counts a wait. Returns whether it may be one of a short connection.
  [[nodiscard]] bool is_of_short_connection() {
    if (waits_after_connection_ == 0) return false;
    --waits_after_connection_;
    return true;
  }

  [[nodiscard]] Nanos spun() const { return spun_; }
  void note_spun(Nanos since_last_offer) { spun_ = since_last_offer; }
  [[nodiscard]] Nanos slice() const { return slice_; }
  void offered_cpu(bool contended) {
    spun_ = Nanos::zero();
    slice_ = contended ? kSlice : std::min(2 * slice_, kLongestSlice);
  }

 private:
  static constexpr unsigned kMissesPerStep = 4;
  static constexpr unsigned kMaxShift = 3;
  static constexpr unsigned kProbeInterval = 16;
  static constexpr unsigned kWaitsOfShort = 16;
  static constexpr unsigned kLateAnswers = 8;
  unsigned late_answers_ = 0;
  unsigned late_probe_ = 0;
  unsigned waits_after_connection_ = 0;
  unsigned misses_ = 0;
  unsigned probe_ = 0;
  unsigned hogged_probe_ = 0;
  bool missed_when_hogged_ = false;
  Nanos grown_{};
  SpinTrial trial_;
  Nanos reach_ = Nanos::max();  ///< the longest spin that is not known to be useless
  bool learns_reach_ = false;   ///< the polling time costs more than a sleep
  Nanos spun_in_vain_{};        ///< duration of the last miss
  Nanos spun_{};
  Nanos slice_ = kSlice;
};

/// The clock, the scheduler and the signals of the real machine. Tests replace it.
struct RealMachine {
  HeldSignals* signals;
  static Nanos now() { return monotonic_now(); }
  static void relax() { cpu_relax(); }
  static void yield() { ::sched_yield(); }
  /// Returns whether a signal interrupts a spin that has lasted `spun` at `now`.
  bool interrupts(Nanos spun, Nanos now) { return signals->interrupt(spun, now); }
};

/// One spin: `while (spinner.again()) if (attempt()) {...}`. The first attempts cost one pause each. The clock is read
/// once in `stride` calls, and the thread yields after each slice. On a contended machine every attempt is followed by
/// a yield, for kTurns at most. Where yielding costs a time slice, the spin lasts one slice. A signal ends the spin.
/// Used by one thread; `contention` and `history` outlive it.
template <class Machine>
class BasicSpinner {
 public:
  /// The time of taking turns with other threads before sleeping. A turn costs 1-20 us, sleeping and being woken about
  /// 25 us.
  static constexpr Nanos kTurns{5'000'000};
  /// For attempts of 20-50 ns; loops whose round takes a microsecond pass 1.
  static constexpr unsigned kDefaultStride = 16;

  BasicSpinner(SpinPolicy policy, Contention& contention, SpinHistory& history, Nanos deadline, unsigned stride,
               Machine machine)
      : machine_(machine),
        contention_(contention),
        history_(history),
        budget_(history.budget(policy)),
        deadline_(deadline),
        attempts_per_yield_(policy.attempts_per_yield),
        stride_(budget_ == Nanos::zero() ? 1 : stride_of(stride, policy.attempts_per_yield)),
        contended_(history.answers_come_late()) {}

  /// @return false when it is time to arm and sleep; the miss is then in the history, unless a signal is the reason.
  bool again() {
    machine_.relax();
    if (++calls_ % stride_ != 0 && !contended_) return true;
    return look_at_clock();
  }
  /// Records that the attempt succeeded.
  void paid_off() {
    history_.hit(last_look_ - begun_);
    if (has_yielded_ || !started_) history_.note_answer(has_yielded_);
  }

 private:
  static unsigned stride_of(unsigned stride, unsigned attempts_per_yield) {
    return attempts_per_yield == 0 ? stride : std::min(stride, attempts_per_yield);
  }
  bool is_yield_due() {
    if (attempts_per_yield_ == 0 || calls_ - yielded_at_ < attempts_per_yield_) return false;
    yielded_at_ = calls_;
    return true;
  }
  bool look_at_clock() {
    const Nanos now = machine_.now();
    last_look_ = now;
    if (!started_) {
      started_ = true;
      begun_ = now;
      slice_begun_ = now - history_.spun();
      contended_ = contention_.is_contended(now);
      is_of_short_connection_ = history_.is_of_short_connection();
      // While other threads have the CPUs the peer is rarely running.
      if (is_hogged(now)) budget_ = history_.budget_when_hogged(budget_);
    }
    if (now >= deadline_ || now - begun_ >= longest()) return give_up(now);
    if (machine_.interrupts(now - begun_, now)) return false;
    if (is_yield_due()) {
      offer_cpu(now);
      return true;
    }
    if (!contended_ && now - slice_begun_ < history_.slice()) {
      history_.note_spun(now - slice_begun_);
      return true;
    }
    if (is_hogged(now)) return give_up(now);
    offer_cpu(now);
    return true;
  }
  [[nodiscard]] bool is_hogged(Nanos now) const {
    return contention_.is_hogged(now) || (is_of_short_connection_ && contention_.is_hogged_for_short(now));
  }
  [[nodiscard]] Nanos longest() const {
    return contended_ && budget_ > Nanos::zero() ? std::max(budget_, kTurns) : budget_;
  }
  void offer_cpu(Nanos now) {
    machine_.yield();
    has_yielded_ = true;
    slice_begun_ = machine_.now();
    contention_.note_yield(now, slice_begun_);
    contended_ = contention_.is_contended(slice_begun_);
    history_.offered_cpu(contended_);
  }
  bool give_up(Nanos now) {
    history_.miss(now - begun_, is_hogged(now));
    return false;
  }

  Machine machine_;
  Contention& contention_;
  SpinHistory& history_;
  Nanos budget_;
  Nanos deadline_;
  Nanos begun_{};
  Nanos last_look_{};
  Nanos slice_begun_{};
  const unsigned attempts_per_yield_;
  unsigned stride_;
  unsigned calls_ = 0;
  unsigned yielded_at_ = 0;
  bool started_ = false;
  bool has_yielded_ = false;
  bool contended_;  ///< before the first look at the clock: as usual lately
  bool is_of_short_connection_ = false;
};

/// Records that the calling thread has made or taken a connection.
void note_connection();
/// Records a sleep of the calling thread that an event ended.
void note_sleep(WaitFor what, Nanos duration);
/// Records a sleep of the calling thread that a time-out ended.
void note_vain_sleep(WaitFor what, Nanos duration);

/// The spinner of this process and thread.
class Spinner : public BasicSpinner<RealMachine> {
 public:
  Spinner(WaitFor what, Nanos deadline, HeldSignals& signals, unsigned stride = kDefaultStride);
};

}  // namespace ringsock::runtime
