// How often calls that wait for endpoints and kernel descriptors together ask the kernel.
#pragma once

#include <atomic>

namespace ringsock::runtime {

/// Settings of the process. Threads: any; each is a hint.
class KernelLooks {
 public:
  static constexpr unsigned kAutomatic = ~0U;
  /// Stand for "never": with polling times that do not end, descriptors of the kernel would never be served.
  static constexpr unsigned kRareLooks = 100'000, kRareHits = 1'000;

  /// @param rounds  looks at endpoints, while a call spins, after which it looks at the kernel, too; 0: rarely
  void set_rounds(unsigned rounds) { rounds_.store(rounds == 0 ? kRareLooks : rounds, std::memory_order_relaxed); }
  /// @param hits    calls that have found something at endpoints after which one asks the kernel, too; 0: rarely
  void set_hits(unsigned hits) { hits_.store(hits == 0 ? kRareHits : hits, std::memory_order_relaxed); }

  /// Returns the number of rounds, `automatic` unless it has been set.
  [[nodiscard]] unsigned rounds(unsigned automatic) const {
    const unsigned set = rounds_.load(std::memory_order_relaxed);
    return set == kAutomatic ? automatic : set;
  }
  /// Returns the number of hits, kAutomatic unless it has been set.
  [[nodiscard]] unsigned hits() const { return hits_.load(std::memory_order_relaxed); }

 private:
  std::atomic<unsigned> rounds_{kAutomatic};
  std::atomic<unsigned> hits_{kAutomatic};
};

}  // namespace ringsock::runtime
