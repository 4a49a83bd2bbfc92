// A bitmap by which the other ends of many connections tell one consumer which of them have news.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ringsock {

/// A bit for each of many connections, in memory that a consumer shares with the processes at their other ends. A
/// producer sets the bit of a connection after each message; the consumer takes all bits at once and then looks at
/// these connections only. So neither the consumer's looks nor its sleeps cost anything for a connection without news,
/// and a producer rings only for a consumer that sleeps. The bits are hints and hold nothing private: whoever has the
/// memory may set or clear any of them.
///
/// Sleeps are numbered, and each producer rings its own connection's doorbell once per sleep. No producer relies on
/// another one's ring, and a bit that is set already does not mean that somebody has rung: the doorbell of a connection
/// that the consumer has just closed wakes nobody, although its late message may set the bit of a place that belongs to
/// a new connection by then.
///
/// Order: a producer stores its message before it sets the bit, and the consumer looks for messages after it has taken
/// the bit. Both accesses to the bit are locked instructions, so either the consumer's look finds the message, or a
/// later take finds the bit. In the same way either the producer sees that the consumer sleeps, or the consumer, which
/// looks at the bits once more after it has said so, sees the bit.
///
/// Threads: any number of producers and consumers.
class ReadyBits {
 public:
  static constexpr std::uint32_t kPlaces = 1 << 16;

  /// The last sleep of the consumer for which a producer has rung. It begins at 0, also with another map.
  using RungFor = std::uint64_t;

  /// Called by a producer behind its message.
  /// @return whether the consumer sleeps and this producer has not rung for this sleep: the caller must ring its
  /// doorbell, which `rung_for` then tells.
  [[nodiscard]] bool set(std::uint32_t place, RungFor& rung_for) {
    place %= kPlaces;
    const std::uint32_t word = place / kBits;
    words_[word].fetch_or(bit_of(place % kBits));
    // Looked at by each producer: the one that was first to set a bit in the word may not have set the summary's yet.
    auto& summary = summary_[word / kBits];
    if ((summary.load() & bit_of(word % kBits)) == 0) summary.fetch_or(bit_of(word % kBits));
    const std::uint64_t sleep = sleeps_.load();
    if ((sleep & kAsleep) == 0 || sleep == rung_for) return false;
    rung_for = sleep;
    return true;
  }

  /// Returns whether any place below `limit` is set.
  [[nodiscard]] bool any(std::uint32_t limit) const {
    for (std::uint32_t i = 0; i < summaries_below(limit); ++i) {
      if (summary_[i].load() != 0) return true;
    }
    return false;
  }

  /// Clears all places below `limit` and calls taken(place) for each that was set, in their order.
  template <class Taken>
  void take(std::uint32_t limit, Taken taken) {
    for (std::uint32_t i = 0; i < summaries_below(limit); ++i) {
      if (summary_[i].load(std::memory_order_relaxed) == 0) continue;
      for (std::uint64_t left = summary_[i].exchange(0); left != 0; left &= left - 1) {
        const std::uint32_t word = i * kBits + first_of(left);
        for (std::uint64_t bits = words_[word].exchange(0); bits != 0; bits &= bits - 1) {
          taken(word * kBits + first_of(bits));
        }
      }
    }
  }

  /// Called by the consumer before it sleeps; it calls any() afterwards and does not sleep if that finds something.
  /// Each call begins another sleep, also while other threads sleep.
  void will_sleep() {
    if ((sleeps_.fetch_add(kNextSleep) & kAsleep) == 0) sleeps_.fetch_or(kAsleep);
  }
  void is_awake() {
    if ((sleeps_.load(std::memory_order_relaxed) & kAsleep) != 0) sleeps_.fetch_and(~kAsleep);
  }

 private:
  static constexpr std::uint32_t kBits = 64;
  static constexpr std::uint32_t kWords = kPlaces / kBits;
  static constexpr std::size_t kLineBytes = 64;
  static constexpr std::uint64_t kAsleep = 1;
  static constexpr std::uint64_t kNextSleep = 2;
  static constexpr std::uint64_t bit_of(std::uint32_t n) { return std::uint64_t{1} << n; }
  static std::uint32_t first_of(std::uint64_t bits) { return static_cast<std::uint32_t>(std::countr_zero(bits)); }
  static constexpr std::uint32_t summaries_below(std::uint32_t limit) {
    constexpr std::uint32_t kEach = kBits * kBits;
    return (limit < kPlaces ? limit + kEach - 1 : kPlaces) / kEach;
  }

  alignas(kLineBytes) std::atomic<std::uint64_t> sleeps_;  ///< the number of the sleep, and kAsleep while it lasts
  alignas(kLineBytes) std::array<std::atomic<std::uint64_t>, kWords / kBits> summary_;  ///< a bit for each word not 0
  alignas(kLineBytes) std::array<std::atomic<std::uint64_t>, kWords> words_;
};

/// The consumer's own map, made by a device (verbs::RcExtensions::make_ready_map()).
class ReadyMap {
 public:
  explicit ReadyMap(ReadyBits& bits) : bits_(bits) {}
  ReadyMap(const ReadyMap&) = delete;
  ReadyMap& operator=(const ReadyMap&) = delete;
  virtual ~ReadyMap() = default;
  [[nodiscard]] ReadyBits& bits() const { return bits_; }

 private:
  ReadyBits& bits_;
};

/// Tells whether a connection's news still go to its place in a map: any later arming of the connection, also by
/// another thread, ends that, and news then ring the connection's own doorbell.
class Listing {
 public:
  Listing() = default;
  /// @param word   what the device changes when the listing ends; it must exist as long as the connection
  /// @param value  of the word while the listing lasts
  Listing(const std::atomic<std::uint32_t>& word, std::uint32_t value) : word_(&word), value_(value) {}
  [[nodiscard]] bool lasts() const { return word_ != nullptr && word_->load(std::memory_order_relaxed) == value_; }

 private:
  const std::atomic<std::uint32_t>* word_ = nullptr;
  std::uint32_t value_ = 0;
};

}  // namespace ringsock
