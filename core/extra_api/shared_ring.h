// A ring of sockets that have memory of their own instead of a ring that they share: a program polls all of them by one
// descriptor.
#pragma once

#include <mellanox/vma_extra.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "core/base/result.h"
#include "core/extra_api/polled_streams.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/ring_choice.h"

namespace ringsock::vma {

/// An epoll set finds the sockets that have news, and lists them. SharedRings (shared_rings.h) has the rings of a
/// process. The object is never destroyed: once a ring has ended, another ring may have it. Threads: any.
class SharedRing final : public PolledStreams {
 public:
  /// @param set  an epoll set that the ring has to itself
  explicit SharedRing(runtime::Ref set);

  // -- for sockets
  /// Makes the socket one of the ring's. `fd` is its descriptor. Returns false when it has a ring already. Not with
  /// locks of the socket.
  bool take_in(PolledStream& stream, int fd, bool has_called_connect) noexcept;
  /// PolledStream::wished_events() are others from now on. Not with locks of the socket.
  void wishes_changed(PolledStream& stream) noexcept;
  /// The socket is none of the ring's any more. Not with locks of the socket.
  void leave(PolledStream& stream) noexcept;
  /// The same for a socket to which nobody has a reference any more.
  void forget(PolledStream& stream) noexcept;
  /// As list(), and a thread that sleeps on the ring's descriptor looks.
  void list_and_wake(PolledStream& stream) noexcept;
  /// As list_and_wake(), for PolledStreams::tell_of_kernels().
  void tell_and_wake(int fd, std::uint64_t user_data, std::uint32_t events) noexcept;

  // -- for the program
  /// As PolledStreams::collect(), after a look at the sockets.
  std::size_t collect(std::span<vma_completion_t> out);
  /// Returns whether the program would find something.
  [[nodiscard]] bool has_news();
  runtime::Endpoint& set() { return *set_; }

  /// Returns whether it is this process's: the ring of a parent process must not be used.
  [[nodiscard]] bool is_ours() const noexcept;

  /// A number that no other ring has, among those that this object has been.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_.load(std::memory_order_acquire); }
  /// Endpoints that stand for it: another ring may have the object once there are none.
  void descriptor_made() noexcept { descriptors_.fetch_add(1, std::memory_order_relaxed); }
  void descriptor_gone() noexcept { descriptors_.fetch_sub(1, std::memory_order_release); }

 private:
  friend class SharedRings;
  /// What the process knows of it. Guarded by the lock of SharedRings.
  struct Place {
    runtime::RingKey key{};
    std::size_t users = 0;  ///< sockets that it has, or will have
    int fd = -1;            ///< the descriptor that the program has got
    runtime::Ref descriptor{};
  };

  void look();
  void control(int op, PolledStream& stream, int fd) noexcept;
  std::optional<int> take_out(PolledStream& stream) noexcept;
  [[nodiscard]] bool has_to_tell() noexcept;
  void end() noexcept;

  const runtime::Ref set_;
  const unsigned process_;                ///< fork_generation()
  std::map<PolledStream*, int> members_;  ///< with lock_: the number by which the set knows each
  std::atomic<std::uint64_t> number_{0};
  std::atomic<unsigned> descriptors_{0};
  Place place_;
};

}  // namespace ringsock::vma
