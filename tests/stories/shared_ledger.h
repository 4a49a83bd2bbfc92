// What two processes sent, received and acknowledged, kept where it outlives both: the account that a kill -9 must not
// upset.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ringsock::stories {

/// Bytes of one direction. Written by the two ends, in memory shared by fork; read by whoever survives.
struct Ledger {
  std::atomic<std::uint64_t> offered;   ///< handed to rsend(), whether it came back or not
  std::atomic<std::uint64_t> sent;      ///< rsend() returned
  std::atomic<std::uint64_t> received;  ///< rrecv() returned, and compared with what was sent
  std::atomic<std::uint64_t> acked;     ///< of these, acknowledged in band: the rsend() of the acknowledgement returned

  /// In memory that a fork shares.
  static Ledger& create();
  void clear();
};

/// The stream of a round: byte number `position` is a function of it and the seed.
void fill_stream(std::span<std::byte> out, std::uint64_t seed, std::uint64_t position);
/// The first difference, or bytes.size() when there is none.
std::size_t first_difference(std::span<const std::byte> bytes, std::uint64_t seed, std::uint64_t position);

/// Descriptors of this process, and mappings of memory files in it: what a connection must give back.
struct Holdings {
  std::size_t descriptors = 0;
  std::size_t memory_files = 0;
  static Holdings now();
  [[nodiscard]] bool within(const Holdings& bound) const {
    return descriptors <= bound.descriptors && memory_files <= bound.memory_files;
  }
};

}  // namespace ringsock::stories
