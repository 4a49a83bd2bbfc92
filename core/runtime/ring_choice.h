// Chooses which sockets share a ring.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

#include "core/base/socket_address.h"

namespace ringsock::runtime {

/// VMA's logics, set by VMA_RING_ALLOCATION_LOGIC_TX and _RX or SO_VMA_RING_ALLOC_LOGIC.
enum class RingLogic : std::uint32_t {
  per_interface = 0,
  per_ip = 1,
  per_socket = 10,
  per_user_id = 11,
  per_thread = 20,
  per_core = 30,
  per_core_attach_threads = 31,  ///< as per_core, with each thread bound to the CPU that had the fewest
};
/// Returns whether VMA has a logic of that number.
bool is_ring_logic(std::uint32_t number);

/// Identifies a ring of an interface; sockets with equal keys share it.
struct RingKey {
  RingLogic logic = RingLogic::per_interface;
  std::array<std::uint64_t, 2> id{};
  // <=> compares its result with the literal 0.
  auto operator<=>(const RingKey&) const = default;  // NOLINT(modernize-use-nullptr)

  /// Returns whether the ring is kept for further sockets. This holds for logics whose number of rings is limited: by
  /// interfaces, addresses or CPUs.
  [[nodiscard]] bool is_lasting() const;
};

/// The choice of rings for one direction of a socket. It has a place, a thread or a CPU, which follows the socket's
/// user and nobody else: the socket's flows are looked for again by whichever thread notices a change of the network,
/// and find the ring that they have. Threads: one at a time.
class RingChoice {
 public:
  /// @param ratio  number of operations between looks of should_move(); 0 or less: no looks
  RingChoice(RingLogic logic, int ratio, std::uint64_t socket_id)
      : logic_(logic), ratio_(ratio), socket_id_(socket_id) {}

  /// @param user_id  for RingLogic::per_user_id
  void set(RingLogic logic, std::uint64_t user_id);
  [[nodiscard]] RingLogic logic() const { return logic_; }
  [[nodiscard]] std::uint64_t user_id() const { return user_id_; }
  /// Returns the key for a socket with that address. The first call takes the caller's thread or CPU as the place.
  RingKey key(const SocketAddress& local);
  /// Takes the caller's thread or CPU as the place.
  void move_here();
  /// Called when the socket has no flows any more: the next call of key() takes the place of its caller.
  void forget_place() { has_place_ = false; }

  /// Called with each operation. Returns true when the socket should call move_here() and ask for its key again,
  /// because the thread or CPU has changed. As in VMA, this takes 20 looks with the same result.
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
  bool has_place_ = false;
  std::uint64_t place_ = 0;      ///< thread or CPU
  std::uint64_t candidate_ = 0;  ///< the other one, found by the last looks
  int seen_ = 0;                 ///< number of looks in succession that found candidate_
  int operations_ = 0;
};

}  // namespace ringsock::runtime
