// The layout of the shared memory in which a process describes its sockets.
//
//     /dev/shm/ringsock.UID.NAMESPACE.PID.XXXXXX      mode 0600
//       0      PageHeader   the process and its totals; the slot `others`
//       4096   SocketSlot   per socket, up to slots_used
//
// The file is sparse: slots beyond those ever used have no memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/refusals.h"

namespace ringsock::runtime {

inline constexpr char kStatisticsDirectory[] = "/dev/shm";
inline constexpr char kStatisticsPrefix[] = "ringsock.";

/// The transport of a connection.
enum class SocketPath : std::uint8_t {
  none,      ///< not connected
  embedded,  ///< a ring of the embedded device
  rdma,      ///< a ring over an RDMA device
  kernel,    ///< kernel TCP
};
inline constexpr std::size_t kSocketPaths = 4;

enum class SocketState : std::uint8_t { unused, created, bound, listening, connecting, connected, failed, closed };
inline constexpr std::size_t kSocketStates = 8;

/// Why a connection went by kernel TCP.
enum class KernelReason : std::uint8_t {
  nobody_listened,  ///< no socket has that port on the device
  rule,             ///< preload_config(5)
  other_user,       ///< the process that answered is not proven to own the port
  no_device,        ///< no device reaches the address, or none is allowed
  full,             ///< no memory or descriptor for a ring
  fork,             ///< for a connection that several processes use
  handed_over,      ///< for a descriptor that another program gets
  filter,           ///< sockets that a seccomp filter keeps from rings
  no_answer,        ///< the listener's queue stayed full, or it did not answer in time
  short_lived,      ///< the kernel makes connections that end soon faster to that destination
  other,
};
inline constexpr std::size_t kKernelReasons = 11;

/// Returns the words that users see, "?" for a number that is no value of the type.
const char* to_string(SocketPath path);
const char* to_string(SocketState state);
const char* to_string(KernelReason reason);

/// Each counter has one writer at a time. Any process may read it.
using Counter = std::atomic<std::uint64_t>;
static_assert(Counter::is_always_lock_free);

/// An address as numbers: `bytes` and `scope` as in sockaddr_in (the first four) or sockaddr_in6.
struct SlotAddress {
  std::array<std::uint8_t, 16> bytes;
  std::uint32_t scope;
  std::uint16_t port;    ///< host order
  std::uint16_t family;  ///< AF_INET, AF_INET6 or AF_UNSPEC
};

/// A reader that copies from low to high addresses has a consistent copy when `finished` equals `begun`: the writer
/// sets `begun` before a change and `finished` after it.
struct SlotIdentity {
  std::atomic<std::uint32_t> finished;
  std::int32_t descriptor;  ///< -1: none (any more)
  SocketState state;
  SocketPath path;
  std::array<std::uint8_t, 2> reserved;
  SlotAddress local;
  SlotAddress peer;
  std::atomic<std::uint32_t> begun;
};

/// A cache line for each writer: sender, reader, and waiting threads.
struct SlotCounters {
  alignas(64) Counter bytes_out;
  Counter messages_out;
  alignas(64) Counter bytes_in;
  Counter messages_in;
  alignas(64) Counter wakeups;
  Counter spins_paid;
  Counter errors;
};

struct SocketSlot {
  alignas(64) SlotIdentity identity;
  SlotCounters counters;
};
static_assert(sizeof(SlotIdentity) == 64 && sizeof(SlotCounters) == 192 && sizeof(SocketSlot) == 256);

struct PageHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t slot_bytes;
  std::uint32_t pid;
  std::atomic<std::uint32_t> slots_used;  ///< slots from this one on have never been used
  std::int64_t started_ns;                ///< CLOCK_REALTIME of the first socket
  std::array<char, 64> program;           ///< ends in 0
  std::array<Counter, kSocketPaths> connected;
  std::array<Counter, kSocketPaths> accepted;
  std::array<Counter, kKernelReasons> kernel;  ///< connected[kernel] by reason
  RefusalCounters refused;                     ///< what peers and strangers were refused
  SlotCounters gone;                           ///< sums of the sockets that were closed
  SocketSlot others;                           ///< sockets for which there was no slot; spins for many at a time
};
static_assert(sizeof(PageHeader) <= 4096);

inline constexpr std::array<char, 8> kStatisticsMagic{'R', 'I', 'N', 'G', 'S', 'T', 'A', 'T'};
inline constexpr std::uint32_t kStatisticsVersion = 4;
inline constexpr std::size_t kPageHeaderBytes = 4096;
inline constexpr std::uint32_t kStatisticsSlots = 32768;
inline constexpr std::size_t kStatisticsBytes = kPageHeaderBytes + kStatisticsSlots * sizeof(SocketSlot);

}  // namespace ringsock::runtime
