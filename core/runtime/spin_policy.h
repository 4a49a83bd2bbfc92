// How long to spin before sleeping, and when not to (design D3).
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/base/clock.h"
#include "core/runtime/held_signals.h"

namespace ringsock::runtime {

/// What a call waits for. VMA has a polling time for each.
enum class WaitFor {
  operation,  ///< recv(2), send(2), accept(2) ...: that one endpoint can do it
  readiness,  ///< poll(2), select(2), epoll_wait(2)
};

/// How calls spend their time before they sleep. Set from the configuration.
struct SpinPolicy {
  Nanos polling_time{10'000};
  /// Spin less after spins that did not pay. Off when somebody asked for this very polling time.
  bool adaptive = true;
};
void set_spin_policy(WaitFor what, SpinPolicy policy);
/// For all calls.
void set_spin_policy(SpinPolicy policy);
SpinPolicy spin_policy(WaitFor what);

/// What the threads of a process have learnt about their CPUs: whether others want them. Shared, relaxed: a hint.
///
/// sched_yield() returns in about half a microsecond when nobody else is runnable on this CPU (in an emulated guest in
/// two); when it takes three times as long as the quickest, somebody ran meanwhile. That is the only sign that needs no
/// other process's help, and it costs nothing that was of use. Others like us, who wait for messages, give the CPU back
/// within some microseconds: between them, taking turns is quicker than sleeping. Those who compute keep it for their
/// whole time slice: against them only sleeping helps, since the kernel prefers a thread that was woken to one that
/// yielded.
class Contention {
 public:
  /// A yield that took longer gave the CPU to somebody, and to somebody who computes: the kernel's slice is about 3 ms.
  /// Four busy pairs on two CPUs are three times as fast as kernel TCP with 2.5 ms here and half as fast with 0.7 ms,
  /// where their own turns are taken for computing.
  static constexpr Nanos kLostSlice{2'500'000};
  /// Between which a yield may be the quickest of this machine.
  static constexpr Nanos kQuickYield{500};
  static constexpr Nanos kSlowestQuickYield{2'000};
  /// How long a long yield is remembered, and what a short one takes off.
  static constexpr Nanos kMemory{1'000'000};
  static constexpr Nanos kForgiveness{250'000};
  /// How long a lost time slice is remembered at first; each time that it happens again, twice as long: asking costs a
  /// slice.
  static constexpr Nanos kHogMemory{20'000'000};
  static constexpr Nanos kLongestHogMemory{1'280'000'000};

  [[nodiscard]] bool is_contended(Nanos now) const { return contended_until_.load(std::memory_order_relaxed) > now; }
  /// Yielding costs a time slice.
  [[nodiscard]] bool is_hogged(Nanos now) const { return hogged_until_.load(std::memory_order_relaxed) > now; }
  void note_yield(Nanos begun, Nanos ended) {
    const Nanos took = ended - begun;
    Nanos quickest = quickest_yield_.load(std::memory_order_relaxed);
    if (took < quickest) {
      quickest = std::max(took, kQuickYield);
      quickest_yield_.store(quickest, std::memory_order_relaxed);
    }
    if (took > kLostSlice) {
      const Nanos memory = hog_memory_.load(std::memory_order_relaxed);
      hogged_until_.store(ended + memory, std::memory_order_relaxed);
      hog_memory_.store(std::min(2 * memory, kLongestHogMemory), std::memory_order_relaxed);
    } else {
      hog_memory_.store(kHogMemory, std::memory_order_relaxed);
    }
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
  std::atomic<Nanos> hogged_until_{Nanos::min()};
  std::atomic<Nanos> hog_memory_{kHogMemory};
};

/// Whether this thread's spins paid off lately, and whether longer ones would have; and how long it has spun, in one or
/// more, since it offered the CPU to others.
///
/// A wait is what a spin and the sleep after it take together. A spin in vain that is dearer than a sleep halves the
/// next ones, until there are none; a wait that ended within the polling time would have paid as a spin, and the next
/// ones reach twice as far as it lasted. So a thread that waits in vain, for ever or up to its time-outs, soon spins no
/// more, and one whose peer answers within the polling time spins until the answer comes.
class SpinHistory {
 public:
  /// How long to spin between two offers: the longest where nobody took the last ones.
  static constexpr Nanos kSlice{2'000};
  static constexpr Nanos kLongestSlice{16'000};
  /// A sleep that was over so soon would better have been spun: falling asleep and being woken costs some 25 us by
  /// itself.
  static constexpr Nanos kShortSleep{120'000};
  static constexpr Nanos kLongestBudget{100'000};
  /// Spins that were halved to this have been in vain often enough.
  static constexpr Nanos kShortestReach{10'000};
  /// How long to spin this time: `polling_time`, more after short sleeps, less after spins in vain. After misses in a
  /// row it shrinks to an eighth of that; one spin in 16 gets all of it, so that a thread whose peer has become quick
  /// notices.
  [[nodiscard]] Nanos budget(const SpinPolicy& policy) {
    if (!policy.adaptive || policy.polling_time == Nanos::zero()) return policy.polling_time;
    learns_reach_ = policy.polling_time > kLongestBudget;
    if (reach_ <= kShortestReach) return Nanos::zero();
    const Nanos whole = std::min(policy.polling_time, reach_);
    if (misses_ < kMissesPerStep || ++probe_ % kProbeInterval == 0) return std::max(whole, grown_);
    return Nanos(whole.count() >> std::min(misses_ / kMissesPerStep, kMaxShift));
  }
  /// A spin found nothing, and the sleep after it ended with an event.
  void slept(Nanos duration, const SpinPolicy& policy) {
    if (duration < kShortSleep) {
      grown_ = std::min(2 * std::max(grown_, std::min(policy.polling_time, kLongestBudget)), kLongestBudget);
      misses_ = 0;
    } else {
      grown_ = grown_ / 2;
    }
    const Nanos waited = spun_in_vain_ + duration;
    if (waited > policy.polling_time) return;
    reach_ = std::max(reach_, 2 * waited);
    misses_ = 0;
  }
  /// The same, but the sleep ended with a time-out.
  void slept_in_vain(Nanos duration) {
    if (duration >= kShortSleep) grown_ = grown_ / 2;
  }
  /// None after a miss, but for one spin in 16.
  [[nodiscard]] Nanos budget_when_hogged(Nanos budget) {
    return misses_ == 0 || ++probe_ % kProbeInterval == 0 ? budget : Nanos::zero();
  }
  void hit() { misses_ = 0; }
  /// A sleep comes, in which others have the CPU; perhaps they want it.
  /// @param spun  how long, in vain
  void miss(Nanos spun) {
    misses_ = std::min(misses_ + 1, kMissesPerStep * kMaxShift);
    spun_in_vain_ = spun;
    // A shorter one was ended by a time-out or a hog.
    if (learns_reach_ && spun >= std::min(reach_, kLongestBudget))
      reach_ = std::max(std::min(reach_, spun) / 2, kShortestReach);
    spun_ = Nanos::zero();
    slice_ = kSlice;
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
  unsigned misses_ = 0;
  unsigned probe_ = 0;
  Nanos grown_{};
  Nanos reach_ = Nanos::max();  ///< how far spins are known to pay, or not known not to
  bool learns_reach_ = false;   ///< the polling time is dearer than a sleep
  Nanos spun_in_vain_{};        ///< by the last miss
  Nanos spun_{};
  Nanos slice_ = kSlice;
};

/// Time, the scheduler and signals, as the machine has them. Tests bring their own.
struct RealMachine {
  HeldSignals* signals;
  static Nanos now() { return monotonic_now(); }
  static void relax() { cpu_relax(); }
  static void yield() { ::sched_yield(); }
  /// A signal wants to interrupt a spin that has lasted `spun` at `now`.
  bool interrupts(Nanos spun, Nanos now) { return signals->interrupt(spun, now); }
};

/// One spin: `while (spinner.again()) if (attempt()) {...}`. The first attempts cost one pause each; the clock is read
/// once in `stride` calls, and after each slice the CPU is offered to others. On a contended machine the slices vanish:
/// every attempt is followed by a yield, for kTurns at most. Where yielding costs a time slice, one slice is all there
/// is. A signal ends it. Used by one thread; `contention` and `history` outlive it.
template <class Machine>
class BasicSpinner {
 public:
  /// How long to take turns with others before sleeping. A turn costs 1-20 us, sleeping and being woken about 25 us.
  static constexpr Nanos kTurns{5'000'000};
  /// For attempts of some 20-50 ns; loops whose round takes a microsecond pass 1.
  static constexpr unsigned kDefaultStride = 16;

  BasicSpinner(SpinPolicy policy, Contention& contention, SpinHistory& history, Nanos deadline, unsigned stride,
               Machine machine)
      : machine_(machine),
        contention_(contention),
        history_(history),
        budget_(history.budget(policy)),
        deadline_(deadline),
        stride_(budget_ == Nanos::zero() ? 1 : stride) {}

  /// @return false when it is time to arm and sleep; the miss is then in the history, unless a signal is the reason.
  bool again() {
    machine_.relax();
    if (++calls_ % stride_ != 0 && !contended_) return true;
    return look_at_clock();
  }
  /// The attempt succeeded.
  void paid_off() { history_.hit(); }

 private:
  bool look_at_clock() {
    const Nanos now = machine_.now();
    if (!started_) {
      started_ = true;
      begun_ = now;
      slice_begun_ = now - history_.spun();
      contended_ = contention_.is_contended(now);
      // With the CPUs in others' hands the peer is hardly ever running at this moment.
      if (contention_.is_hogged(now)) budget_ = history_.budget_when_hogged(budget_);
    }
    if (now >= deadline_ || now - begun_ >= longest()) return give_up(now);
    if (machine_.interrupts(now - begun_, now)) return false;
    if (!contended_ && now - slice_begun_ < history_.slice()) {
      history_.note_spun(now - slice_begun_);
      return true;
    }
    if (contention_.is_hogged(now)) return give_up(now);
    offer_cpu(now);
    return true;
  }
  [[nodiscard]] Nanos longest() const {
    return contended_ && budget_ > Nanos::zero() ? std::max(budget_, kTurns) : budget_;
  }
  void offer_cpu(Nanos now) {
    machine_.yield();
    slice_begun_ = machine_.now();
    contention_.note_yield(now, slice_begun_);
    contended_ = contention_.is_contended(slice_begun_);
    history_.offered_cpu(contended_);
  }
  bool give_up(Nanos now) {
    history_.miss(now - begun_);
    return false;
  }

  Machine machine_;
  Contention& contention_;
  SpinHistory& history_;
  Nanos budget_;
  Nanos deadline_;
  Nanos begun_{};
  Nanos slice_begun_{};
  unsigned stride_;
  unsigned calls_ = 0;
  bool started_ = false;
  bool contended_ = false;
};

/// What the calling thread learns from a sleep that something ended, not a time-out.
void note_sleep(WaitFor what, Nanos duration);
/// The same for one that a time-out ended.
void note_vain_sleep(WaitFor what, Nanos duration);

/// The spinner of this process and thread.
class Spinner : public BasicSpinner<RealMachine> {
 public:
  Spinner(WaitFor what, Nanos deadline, HeldSignals& signals, unsigned stride = kDefaultStride);
};

}  // namespace ringsock::runtime
