// Distinguishes the memory of one process from that of any other.
#pragma once

#include <cstdint>

namespace ringsock::soft {

/// A token in a page at an address that probably no other process uses. A child of fork(2) finds the page empty;
/// another program has no such page. So a peer that finds the token at the address accesses the right memory. A peer
/// that has one system call access the page first and then write elsewhere writes into the right memory or fails,
/// because the kernel looks up a process's memory once per call.
struct SpaceMark {
  std::uint64_t token = 0;    ///< random; 0: none
  std::uint64_t address = 0;  ///< of the token, which peers read; they may write the word behind it
  bool operator==(const SpaceMark&) const = default;

  static constexpr std::uint64_t kBytes = 8;  ///< size of the token, and of the word behind it
  [[nodiscard]] std::uint64_t scratch() const { return address + kBytes; }
};

/// Returns the mark of this process, which is made at the first call and again after a fork. It is empty where the
/// kernel does not provide the page (MADV_WIPEONFORK needs Linux 4.14). Threads: any.
SpaceMark own_space_mark();
/// The same without making one.
SpaceMark known_space_mark();

}  // namespace ringsock::soft
