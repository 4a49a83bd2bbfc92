#include <algorithm>
#include <cstdint>

#include "libvmacompat/statistics/vma_snapshot.h"

namespace ringsock::runtime {

namespace {

/// Turns counters into rates.
class Rates {
 public:
  explicit Rates(double seconds) : seconds_(seconds) {}

  void operator()(std::uint64_t& now, std::uint64_t before) const {
    const std::uint64_t happened = now >= before ? now - before : now;
    const double twice = 2 * static_cast<double>(happened) / seconds_;
    // The other process may have written any number.
    now = twice < kTooMuch ? (static_cast<std::uint64_t>(twice) + 1) / 2 : UINT64_MAX;  // rounded, without libm
  }
  void operator()(VmaFlow& now, const VmaFlow& before) const {
    all(now, before, &VmaFlow::packets, &VmaFlow::bytes, &VmaFlow::eagains, &VmaFlow::errors);
  }
  /// Does the same for several members of two objects.
  template <class Object, class... Members>
  void all(Object& now, const Object& before, Members... members) const {
    (operator()(now.*members, before.*members), ...);
  }

 private:
  static constexpr double kTooMuch = 0x1p64;
  double seconds_;
};

void make_rates(const Rates& rates, VmaSocketSnapshot& now, const VmaSocketSnapshot& before) {
  using S = VmaSocketSnapshot;
  rates.all(now, before, &S::rx, &S::rx_os, &S::tx, &S::tx_os, &S::tx_dummies, &S::tx_paced, &S::tx_paced_waits,
            &S::retransmits, &S::tx_time_outs, &S::tx_reorderings, &S::rx_out_of_order, &S::poll_hits, &S::poll_misses,
            &S::rx_migrations, &S::tx_migrations, &S::ready_packets_dropped, &S::ready_bytes_dropped);
}
void make_rates(const Rates& rates, VmaIomuxSnapshot& now, const VmaIomuxSnapshot& before) {
  using S = VmaIomuxSnapshot;
  rates.all(now, before, &S::os_ready, &S::offloaded_ready, &S::timeouts, &S::errors, &S::poll_hits, &S::poll_misses);
}
void make_rates(const Rates& rates, VmaCqSnapshot& now, const VmaCqSnapshot& before) {
  rates.all(now, before, &VmaCqSnapshot::packets_dropped);
}
void make_rates(const Rates& rates, VmaRingSnapshot& now, const VmaRingSnapshot& before) {
  using S = VmaRingSnapshot;
  rates.all(now, before, &S::tx_packets, &S::tx_bytes, &S::rx_packets, &S::rx_bytes, &S::retransmits, &S::tx_joined,
            &S::tx_trains, &S::tx_dropped, &S::interrupts_requested, &S::interrupts_received);
}
void make_rates(const Rates& rates, VmaPoolSnapshot& now, const VmaPoolSnapshot& before) {
  rates.all(now, before, &VmaPoolSnapshot::no_buffers);
}

/// Compares each part of `now` with the part of `before` that `is_same` finds, or else with one that has counted
/// nothing.
template <class Part, class IsSame>
void make_rates(const Rates& rates, std::vector<Part>& now, const std::vector<Part>& before, IsSame is_same) {
  for (Part& part : now) {
    const auto found = std::ranges::find_if(before, [&](const Part& other) { return is_same(part, other); });
    make_rates(rates, part, found == before.end() ? Part{} : *found);
  }
}

/// Does the same for parts without names, which are matched by their position.
template <class Part>
void make_rates(const Rates& rates, std::vector<Part>& now, const std::vector<Part>& before) {
  for (std::size_t i = 0; i < now.size(); ++i) make_rates(rates, now[i], i < before.size() ? before[i] : Part{});
}

}  // namespace

VmaSnapshot vma_rates(const VmaSnapshot& before, const VmaSnapshot& after, double seconds) {
  const Rates rates(seconds);
  VmaSnapshot out = after;
  make_rates(rates, out.sockets, before.sockets,
             [](const VmaSocketSnapshot& a, const VmaSocketSnapshot& b) { return a.fd == b.fd && a.inode == b.inode; });
  make_rates(rates, out.iomux, before.iomux,
             [](const VmaIomuxSnapshot& a, const VmaIomuxSnapshot& b) { return a.name == b.name; });
  make_rates(rates, out.cqs, before.cqs);
  make_rates(rates, out.rings, before.rings);
  make_rates(rates, out.pools, before.pools);
  return out;
}

}  // namespace ringsock::runtime
