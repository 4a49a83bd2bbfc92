// What this process refused because a peer, or a stranger, asked for more than it may have.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ringsock {

/// The reasons for refusals. Each has a counter; rsstat(1) shows the counters that are not 0.
enum class Refusal : std::uint8_t {
  descriptor,      ///< a peer passed a descriptor that is no sealed memory, or that nobody had asked for
  segment_size,    ///< a peer announced more shared memory, or a larger buffer, than this side's own sizes need
  user_budget,     ///< all connections of a user together need more than one user may have, links without a request
                   ///< included
  request,         ///< a request that is malformed, or of another version
  address,         ///< a client named an address that is not this host's, or a port that its user may not bind
  port_owner,      ///< a listener does not own the kernel's port of that number
  patience,        ///< a ring did not answer in time, and the connection used the kernel
  port_claim,      ///< a stranger claimed a UDP port
  other_process,   ///< a peer's memory row no longer belongs to the process at the other end
  datagram,        ///< a rendezvous packet or datagram for a datagram rsocket that is malformed, or was not asked for
  receive_buffer,  ///< a datagram for which the receive buffer of a datagram rsocket had no room
};
inline constexpr std::size_t kRefusals = 11;

/// Returns the words that users see, "?" for a number that is no value of the type.
const char* to_string(Refusal refusal);

using RefusalCounters = std::array<std::atomic<std::uint64_t>, kRefusals>;

/// Counts one refusal and logs it at level info. Threads: any.
void count_refusal(Refusal refusal) noexcept;
/// Returns the number of refusals in this process. A forked child that has a statistics page starts from zero.
std::uint64_t refusals_counted(Refusal refusal) noexcept;
/// Moves the counters to `place`, which lives as long as the process. Earlier counts are added to it.
void show_refusals_in(RefusalCounters& place) noexcept;

}  // namespace ringsock
