// Which of the system calls that only the library makes a seccomp filter of this process lets through.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

struct sock_filter;

namespace ringsock {

enum class RareCall : std::uint8_t {
#define RARE_CALL(name, need, number, expected, arguments) name,
#include "core/base/rare_calls.def"
#undef RARE_CALL
};

inline constexpr std::size_t kMostRareCalls = 128;
/// What a filter does with one call.
enum class Verdict : std::uint8_t { unknown, allowed, refused, killed };
/// In the order of RareCall.
using Verdicts = std::array<Verdict, kMostRareCalls>;

/// Whether the call may be made. Asked before each: a filter may kill the process for it. Learnt when first needed: a
/// process without a filter (/proc/self/status) may make all; in one with a filter a short-lived child tries each call
/// (seccomp_probe.h), unless RINGSOCK_SECCOMP is "allow" or "deny". Threads: any.
[[nodiscard]] bool is_permitted(RareCall call) noexcept;
/// Whether a filter is known to forbid it: the same without any attempt. Threads: any.
[[nodiscard]] bool is_known_forbidden(RareCall call) noexcept;
/// Whether all calls that a connection on a ring cannot do without may be made. A load, once it is known.
[[nodiscard]] bool are_rings_permitted() noexcept;
/// The same for packet rings.
[[nodiscard]] bool are_ethernet_rings_permitted() noexcept;
/// Whether the statistics file can be made, kept and removed.
[[nodiscard]] bool is_statistics_file_permitted() noexcept;

/// What a filter that this process is about to install will let through: its program is run for each call. A filter of
/// one thread counts for all.
class FilterForecast {
 public:
  /// @param program  null: strict mode, which lets nothing through
  FilterForecast(const sock_filter* program, std::size_t length) noexcept;
  /// A call that rings need and the filter forbids, or null. Rings that are there also need membarrier(2), which their
  /// peers count on, and SO_PASSRIGHTS: what is shut must be opened again.
  [[nodiscard]] const char* missing() const noexcept { return missing_; }
  [[nodiscard]] bool permits(RareCall call) const noexcept;
  /// From now on is_permitted() says so, too.
  void come_true() const noexcept;

 private:
  Verdicts verdicts_{};
  const char* missing_ = nullptr;
};

/// Whether a filter was there when this process began, or may have been: membarrier(2) is not to be tried without
/// is_permitted(). Reads /proc/self/status the first time.
[[nodiscard]] bool began_with_filter() noexcept;

}  // namespace ringsock
