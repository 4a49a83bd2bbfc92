// What tells the memory of one process from that of any other.
#pragma once

#include <cstdint>

namespace ringsock::soft {

/// Lies in a page of a process, at an address that no other process is likely to have. A child of fork(2) finds the
/// page empty, another program has no such page. So a peer that finds the token at the address is in the right memory,
/// and a peer that lets one system call touch the page before it writes elsewhere writes into the right memory or not
/// at all: the kernel takes a process's memory once for a call.
struct SpaceMark {
  std::uint64_t token = 0;    ///< random; 0: none
  std::uint64_t address = 0;  ///< of the token, where peers read, and of a word behind it, where they may write
  bool operator==(const SpaceMark&) const = default;

  static constexpr std::uint64_t kBytes = 8;  ///< of the token, and of the word behind it
  [[nodiscard]] std::uint64_t scratch() const { return address + kBytes; }
};

/// This process's own, made at the first call, and again after a fork. None where the kernel does not give us the page
/// (MADV_WIPEONFORK is from Linux 4.14). Threads: any.
SpaceMark own_space_mark();
/// The same, but none is made.
SpaceMark known_space_mark();

}  // namespace ringsock::soft
