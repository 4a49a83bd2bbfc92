// Tells which of the system calls that only the library makes are permitted by the seccomp filters of this process.
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
/// The effect of a filter on one call.
enum class Verdict : std::uint8_t { unknown, allowed, refused, killed };
/// In the order of RareCall.
using Verdicts = std::array<Verdict, kMostRareCalls>;

/// Returns whether the call may be made. It is asked before each such call, because a filter may kill the process for
/// it. The answer is found when first needed: a process without a filter (/proc/self/status) may make all calls. In a
/// process with a filter a short-lived child tries each call (seccomp_probe.h), unless RINGSOCK_SECCOMP is "allow" or
/// "deny". Threads: any.
[[nodiscard]] bool is_permitted(RareCall call) noexcept;
/// Returns whether a filter is known to forbid the call. Never tries the calls. Threads: any.
[[nodiscard]] bool is_known_forbidden(RareCall call) noexcept;
/// Returns whether all calls that a connection on a ring needs may be made. Costs one load once it is known.
[[nodiscard]] bool are_rings_permitted() noexcept;
/// Returns the same for packet rings.
[[nodiscard]] bool are_ethernet_rings_permitted() noexcept;
/// Returns whether the statistics file can be made, kept and removed.
[[nodiscard]] bool is_statistics_file_permitted() noexcept;

/// Forecasts what a filter that this process is about to install will permit, by running its program for each call. A
/// filter of one thread counts for all threads.
class FilterForecast {
 public:
  /// @param program null stands for strict mode, which permits none of the calls
  FilterForecast(const sock_filter* program, std::size_t length) noexcept;
  /// Returns a call that rings need and the filter forbids, or null. Existing rings also need membarrier(2), which
  /// their peers rely on, and SO_PASSRIGHTS, because a shut gate must be opened again.
  [[nodiscard]] const char* missing() const noexcept { return missing_; }
  [[nodiscard]] bool permits(RareCall call) const noexcept;
  /// Makes is_permitted() return the forecast from now on.
  void come_true() const noexcept;

 private:
  Verdicts verdicts_{};
  const char* missing_ = nullptr;
};

/// Returns whether this process began with a filter, or may have: membarrier(2) must then not be tried without
/// is_permitted(). Reads /proc/self/status the first time.
[[nodiscard]] bool began_with_filter() noexcept;

}  // namespace ringsock
