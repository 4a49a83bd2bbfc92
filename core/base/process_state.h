// The state that a process has once: what there is, and when it begins, forks and ends.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace ringsock {

/// The objects of which a process has one, each for the room that is named, lower rooms first. Start: those marked
/// "load" are made when the library is loaded, in no order, or earlier when a constructor of another library uses them;
/// the others are made at their first use. Fork: "lock" is held across fork(2) as a leaf (hold_across_fork()); a name
/// is the ForkStep (fork_order.h) that prepares the object; the child goes on with a copy of all others. Exit: none is
/// ever destroyed, because threads and destructors of the application may use sockets until the end.
enum class ProcessPart : std::uint8_t {
  fork_handlers,     ///< core/base, load: the handlers themselves, and the number of forks
  log,               ///< core/base, load
  notices,           ///< core/base, load
  refusals,          ///< core/base, load
  own_threads,       ///< core/base, load. The child has no such threads
  seccomp_filter,    ///< core/base, load, lock
  barriers,          ///< core/base, load
  lock_numbers,      ///< core/base, load: of threads, never given twice
  high_numbers,      ///< core/base, load: of descriptors
  own_numbers,       ///< core/base, load: of the library's descriptors
  limit_raiser,      ///< core/base, load, lock: the thread that has raised RLIMIT_NOFILE
  closers,           ///< core/base, load. The child begins anew
  thread_ends,       ///< core/base, load. At exit it stops to look for threads that end
  page_looks,        ///< core/base, load
  stand_ins,         ///< core/base, load: whether the library stands in for signal handlers
  adopting,          ///< core/base, load: whether the process is a subreaper, of the process with that number of forks
  passing_children,  ///< core/base, load. The child has no such children
  queue_pair_numbers,   ///< core/device/common, load
  rights_gate,          ///< core/device/shm/link, load
  strangers,            ///< core/device/shm/link, load, lock
  believed_processes,   ///< core/device/shm/names, load
  uid_map,              ///< core/device/shm/names, load
  probe_socket,         ///< core/device/shm/names
  diag_socket,          ///< core/device/shm/names, load
  port_numbers,         ///< core/device/shm/names. The child chooses other ports
  memory_files,         ///< core/device/shm/memory, load
  segments,             ///< core/device/shm/memory, load, ForkStep::segments
  ready_maps,           ///< core/device/shm/memory, load, lock
  shared_pages,         ///< core/device/shm/memory, load, ForkStep::shared_pages
  registered_memory,    ///< core/device/shm/memory, load, under the lock of shared_pages
  space_mark,           ///< core/device/shm/memory, load. The kernel clears the child's mark
  connection_attempts,  ///< core/device/shm/cm
  networks,             ///< core/net, load, ForkStep::networks
  reader_counters,      ///< core/runtime, load, ForkStep::descriptor_table
  reader_barrier,       ///< core/runtime, load, ForkStep::descriptor_table
  fd_table_fork,        ///< core/runtime, load
  refusing_endpoints,   ///< core/runtime
  fork_registry,        ///< core/runtime, load, ForkStep::endpoints
  service_thread,       ///< core/runtime, load, ForkStep::service_thread. It may run until the process ends
  shared_page,          ///< core/runtime. The child takes pieces of a page of its own
  attached_threads,     ///< core/runtime: the number of threads that are bound to each CPU
  user_follower,        ///< core/runtime, load: how to follow a connection to the process that uses it
  waits,                ///< core/poll, load. The child's locks are free
  lent_packets,         ///< core/extra_api, load, lock. The child keeps what its parent has lent
  extra_api,            ///< core/extra_api, load
  shared_rings,         ///< core/extra_api, lock. The child makes its own
  hand_overs,           ///< core/transports, load: those of the library that brings a way
  offloading,           ///< core/transports, load
  rules,                ///< core/transports
  ethernets,            ///< core/ethernet, load, ForkStep::interfaces
  bursts,               ///< core/ethernet, load, ForkStep::bursts: the trains of all rings
  cards,                ///< core/ethernet
  overflow_budgets,     ///< librsocket, load, lock
  kept_memory_timer,    ///< librsocket. The child sets its own
  pid_namespace_mark,   ///< librsocket, load. The child finds out whether it is in another PID namespace
  fork_mode,            ///< librsocket: under the preload libraries, load
  closings,             ///< librsocket: connections that end in the background. The child begins anew
  vma_process,          ///< libvmacompat/process, load, lock
  rings_of_process,     ///< libvmacompat/process
  polled_rings,         ///< libvmacompat/process, lock. The child begins anew
  ring_descriptors,     ///< libvmacompat/extra_api, load, lock. The child closes those of its parent's rings
  tcp_clock,            ///< libvmacompat/tcp, lock. The child begins anew
  short_lives,          ///< libvmacompat/tcp
  detours,              ///< libvmacompat/tcp
  port_claims,          ///< libvmacompat/udp, ForkStep::port_claims
  fork_pipe,            ///< libvmacompat/udp, ForkStep::fork_pipe
  known_epoll_sets,     ///< preload, load, lock. Several preload libraries share it, like the next two
  stdio_streams,        ///< preload, load, lock
  spawn_actions,        ///< preload, load, lock
};
inline constexpr std::size_t kProcessParts = static_cast<std::size_t>(ProcessPart::spawn_actions) + 1;

/// A page that the kernel clears in every child that has a copy of the memory (MADV_WIPEONFORK). Children that share
/// the memory (vfork(2), posix_spawn(3)) share the page, too, and change nothing.
struct alignas(4096) ProcessMark {
  static constexpr std::uint32_t kKnown = 1;
  static constexpr std::uint32_t kStranger = 2;
  std::atomic<std::uint32_t> value{0};
};

struct ProcessParts {
  static constexpr std::size_t kAlignment = 64;
  ProcessMark mark;  ///< tells a child that was made without our fork handlers (at_fork.h)
  /// INT_MAX minus the library's lowest own number, 0: it has none. Each close(2) looks at it (own_numbers.h).
  std::atomic<unsigned> own_numbers_reach;
  /// Whether the application has called pthread_cancel(3), or made a thread's cancellation asynchronous. Each call
  /// looks at it (preload/cancellation.h).
  std::atomic<bool> cancels_threads;
  std::array<std::atomic<void*>, kProcessParts> places;  ///< null before the part is made
  std::atomic<std::size_t> used;                         ///< bytes of the room
  alignas(kAlignment) std::array<std::byte, 32768> room;
};
extern ProcessParts process_parts;

/// Returns memory for an object of the process, which is never given back. It is the library's own: an allocator that
/// reads files as it starts may need a part before there is memory to allocate. Threads: any.
void* room_for_part(std::size_t bytes);

/// The slow path of process_state().
template <class T>
[[gnu::noinline, gnu::cold]] T& make_part(std::atomic<void*>& place) {
  void* known = nullptr;
  auto* const made = ::new (room_for_part(sizeof(T))) T();
  if (place.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return *made;
  made->~T();
  return *static_cast<T*>(known);
}

/// Returns the object of this process. T::kPart names it; its destructor must undo all effects of its constructor,
/// because one of two objects that two threads make at once is destroyed. A child of fork(2) never waits for another
/// thread here. Costs one load. Threads: any.
template <class T>
T& process_state() {
  static_assert(alignof(T) <= ProcessParts::kAlignment);
  std::atomic<void*>& place = process_parts.places[static_cast<std::size_t>(T::kPart)];
  void* const known = place.load(std::memory_order_acquire);
  if (known == nullptr) [[unlikely]]
    return make_part<T>(place);
  return *static_cast<T*>(known);
}

}  // namespace ringsock
