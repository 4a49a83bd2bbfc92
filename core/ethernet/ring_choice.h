// Which sockets share a ring.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

#include "core/base/socket_address.h"

namespace ringsock::ethernet {

/// VMA's logics: VMA_RING_ALLOCATION_LOGIC_TX and _RX, SO_VMA_RING_ALLOC_LOGIC.
enum class RingLogic : std::uint32_t {
  per_interface = 0,
  per_ip = 1,
  per_socket = 10,
  per_user_id = 11,
  per_thread = 20,
  per_core = 30,
  per_core_attach_threads = 31,  ///< a thread stays on the CPU that had the fewest of ours when it came
};
/// False: none of VMA's.
bool is_ring_logic(std::uint32_t number);

/// A ring of an interface; sockets with the same key use the same one.
struct RingKey {
  RingLogic logic = RingLogic::per_interface;
  std::array<std::uint64_t, 2> id{};
  // The language compares the outcome with 0.
  auto operator<=>(const RingKey&) const = default;  // NOLINT(modernize-use-nullptr)

  /// Whether its ring stays for the next socket. There is only so much of interfaces, addresses and CPUs.
  [[nodiscard]] bool is_lasting() const;
};

/// One socket's way to its rings, in one direction. Threads: one at a time.
class RingChoice {
 public:
  /// @param ratio  after how many operations should_move() looks; 0 or less: never
  RingChoice(RingLogic logic, int ratio, std::uint64_t socket_id)
      : logic_(logic), ratio_(ratio), socket_id_(socket_id) {}

  /// @param user_id  for RingLogic::per_user_id
  void set(RingLogic logic, std::uint64_t user_id);
  [[nodiscard]] RingLogic logic() const { return logic_; }
  [[nodiscard]] std::uint64_t user_id() const { return user_id_; }
  /// The calling thread's, for a socket with that address.
  RingKey key(const SocketAddress& local);

  /// To be called with each operation. True when the thread or CPU has been another one long enough: the socket should
  /// ask for its key again. That is, VMA's rule, after 20 looks that all said the same.
  bool should_move() {
    if (logic_ < RingLogic::per_thread || ratio_ <= 0 || ++operations_ < ratio_) [[likely]]
      return false;
    operations_ = 0;
    return look();
  }

 private:
  bool look();

  RingLogic logic_;
  const int ratio_;
  const std::uint64_t socket_id_;
  std::uint64_t user_id_ = 0;
  std::uint64_t place_ = 0;      ///< thread or CPU of the last key
  std::uint64_t candidate_ = 0;  ///< the one that was seen instead
  int seen_ = 0;                 ///< how often in a row
  int operations_ = 0;
};

}  // namespace ringsock::ethernet
