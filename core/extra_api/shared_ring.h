// The ring of sockets that have memory of their own instead of a ring that they share: a program polls all of them by
// one descriptor.
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

namespace ringsock::vma {

/// An epoll set finds the sockets that have news, and lists them. The ring of a process is made when the program first
/// asks for it, and never destroyed: sockets cost nothing until then. A forked child has one of its own. Threads: any.
class SharedRing final : public PolledStreams {
 public:
  /// @param set  an epoll set that the ring has to itself
  explicit SharedRing(runtime::Ref set);

  // -- for sockets
  /// Makes the socket one of the ring's. `fd` is its descriptor. Harmless when called twice. Not with locks of the
  /// socket.
  void join(PolledStream& stream, int fd, bool has_called_connect) noexcept;
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

 private:
  void look();
  void control(int op, PolledStream& stream, int fd) noexcept;
  std::optional<int> take_out(PolledStream& stream) noexcept;

  const runtime::Ref set_;
  const unsigned process_;                ///< fork_generation()
  std::map<PolledStream*, int> members_;  ///< with lock_: the number by which the set knows each
};

/// The ring of the process, null: nobody has asked for it.
SharedRing* shared_ring() noexcept;
/// Returns a descriptor that stands for the ring of the process, and makes both at the first call. Not inside a
/// read-side section. Errors: EMFILE, ENFILE, ENOMEM.
Result<int> shared_ring_descriptor();

/// Called after listen(2), connect(2) or accept(2) on a descriptor: its socket becomes one of the ring's, if there is
/// one. Not inside a read-side section, and without locks.
void join_shared_ring(int fd, bool has_called_connect) noexcept;

}  // namespace ringsock::vma
