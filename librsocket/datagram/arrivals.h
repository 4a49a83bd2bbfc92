// The datagrams that wait to be read.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "core/base/result.h"
#include "core/base/socket_address.h"

namespace ringsock::rs {

class Lane;

/// A slot of a lane.
struct Slot {
  Lane* lane = nullptr;
  std::uint32_t number = 0;
  bool operator==(const Slot&) const = default;
};

/// A datagram in a slot, or in memory of its own.
struct Arrival {
  SocketAddress source;  ///< not mapped
  std::span<const std::byte> bytes;
  Slot slot;
  std::unique_ptr<std::byte[]> own;
};

/// The queue. Datagrams in slots are bounded by the slots, the others by bytes, to which each adds kOverhead, so that
/// many without bytes do not take memory without end. Threads: the caller's lock.
class Arrivals {
 public:
  static constexpr std::size_t kOverhead = 256;
  explicit Arrivals(std::size_t most_own_bytes) : most_own_bytes_(most_own_bytes) {}

  void set_limit(std::size_t most_own_bytes) { most_own_bytes_ = most_own_bytes; }
  /// Returns false when there is no room.
  bool add(Arrival arrival);
  [[nodiscard]] bool empty() const { return queue_.empty(); }
  [[nodiscard]] const Arrival& front() const { return queue_.front(); }
  /// Removes the oldest. Returns its slot, if it has one, which the caller gives back.
  std::optional<Slot> pop();
  void clear();
  /// Returns how many are in slots.
  [[nodiscard]] std::size_t slots() const { return slots_; }

 private:
  std::deque<Arrival> queue_;
  std::size_t most_own_bytes_;
  std::size_t own_bytes_ = 0;
  std::size_t slots_ = 0;
};

/// Copies a datagram to the caller, as recvmsg(2) does. Returns the bytes copied, or with MSG_TRUNC those there were.
/// @param family  of the socket: AF_INET6 sees mapped addresses
Result<ssize_t> copy_out(const Arrival& arrival, msghdr& message, int flags, int family);

}  // namespace ringsock::rs
