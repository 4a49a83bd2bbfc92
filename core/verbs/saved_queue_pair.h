// How far a queue pair has come, for another process that has a copy of it by fork(2).
#pragma once

#include <cstdint>

namespace ringsock::verbs {

/// The counters of a connected RC queue pair, none of whose requests is under way. It lies in memory that the processes
/// share, so the process that takes it over checks it.
struct SavedQueuePair {
  // What was sent
  std::uint32_t entries_used;
  std::uint32_t receives_used;
  std::uint32_t payload_used;
  std::uint32_t acks_wanted;
  // What was received
  std::uint32_t index;
  std::uint32_t index_published;
  std::uint32_t payload;
  std::uint32_t payload_published;
  std::uint32_t acked;
  std::uint32_t receives_posted;
  std::uint32_t receives_taken;
  std::uint8_t failed;     ///< in an error state
  std::uint8_t is_broken;  ///< nothing more is received
};

}  // namespace ringsock::verbs
