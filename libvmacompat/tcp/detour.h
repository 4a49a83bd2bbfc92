// Peers whose packets come by another interface than the one that leads to them, so that no ring there gets them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/clock.h"
#include "core/base/process_state.h"
#include "core/base/socket_address.h"

namespace ringsock::vma {

/// Returns the index of the interface by which the peer's part of the handshake came, 0 where Linux does not tell.
/// @param fd  a socket that accept4(2) has returned: the kernel does not note it of others
int interface_of_handshake(int fd);

/// Watches whether segments of a connection on a ring reach the kernel's socket instead: the placeholder's filter drops
/// them, and Linux counts (SO_MEMINFO, since 4.12; before, nothing is found). Threads: the caller lets one in at a
/// time.
class Detour {
 public:
  /// The segments of the connection on the ring, since it is there.
  struct Segments {
    std::uint64_t in, out;
  };
  /// The connection is on the ring from now on, and `fd` its placeholder.
  void begin(int fd);
  /// Returns whether the peer's segments come by another interface. Called every 10 to 100 ms. Asks the kernel at each
  /// call while the connection is used and the ring gets nothing, otherwise up to three times a second.
  bool is_found(int fd, const Segments& segments, Nanos now);

 private:
  static constexpr Nanos kShortest = std::chrono::milliseconds(10);
  static constexpr Nanos kLongest = std::chrono::milliseconds(320);
  static constexpr Nanos kWhileTheRingGetsSome = std::chrono::seconds(1);
  /// While the ring gets segments, too, a few that passed the point of its rule before it was there tell nothing.
  static constexpr std::uint32_t kStrays = 7;

  Segments segments_{};
  std::uint32_t drops_ = 0;
  Nanos asked_{};
  Nanos wait_ = kShortest;
};

/// Remembers peers whose segments have never come by the ring's interface. Addresses that have the same slot take it
/// from each other: a wrong answer costs time, nothing else. Threads: any.
class Detours {
 public:
  static constexpr ProcessPart kPart = ProcessPart::detours;
  /// One could be an error: a peer's only segment may have passed the point of the rule before it was there.
  static constexpr std::uint32_t kEnough = 2;
  static constexpr Nanos kMemory = std::chrono::minutes(10);

  /// Returns whether the peer's next connection should stay with the kernel.
  [[nodiscard]] bool are_expected(const SocketAddress& peer, Nanos now) const;
  void note(const SocketAddress& peer, Nanos now);

 private:
  static constexpr std::size_t kSlots = 256;
  struct Slot {
    std::atomic<std::uint64_t> peer{0};
    std::atomic<std::uint32_t> found{0};
    std::atomic<Nanos> noted{Nanos::zero()};
  };
  [[nodiscard]] std::uint32_t known(std::uint64_t peer, Nanos now) const;

  std::array<Slot, kSlots> slots_;
};

Detours& detours();

}  // namespace ringsock::vma
