// Accesses the memory of the process at the other end of a connection by process_vm_readv(2) and process_vm_writev(2).
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "core/base/clock.h"
#include "core/device/shm/memory/space_mark.h"

namespace ringsock::soft {

/// Returns whether the memory of `process` has the mark, and the process belongs to our user and existed at `ticks`
/// (ticks_since_boot()); a later process with the same number is a different one. errno tells why the memory could not
/// be read.
bool is_space_of(pid_t process, const SpaceMark& mark, std::uint64_t ticks);
/// Returns the time in clock ticks since boot, the unit of processes' start times.
std::uint64_t ticks_since_boot();

/// Reads and writes the peer's memory and never that of another process: not of a child that the peer forked, a program
/// that it executed, or a process that got its number. The peer's mark tells which memory it means. The kernel
/// (SO_PEERCRED) tells which process the peer is, so that a peer cannot direct us to the memory of a third process.
///
/// The process's number, user, start and token are checked before the first access and then every kProofLasts, which is
/// far less than the time in which process numbers are reused. The page of the mark is accessed in the same system call
/// as each access, so nothing can happen between the check and the access.
///
/// Threads: one at a time.
class PeerSpace {
 public:
  static constexpr Nanos kProofLasts{20'000'000};

  /// Sets the process that had the other end when the connection was made, by its number in our PID namespace; 0 if it
  /// is not of our user or has no number here.
  void set_process(pid_t process);
  [[nodiscard]] bool has_process() const { return process_ != 0; }

  /// Returns the process whose memory has the mark, 0 when it is unknown or may not be accessed.
  pid_t find(const SpaceMark& mark);
  /// Checks again, regardless of earlier results.
  bool still_has(const SpaceMark& mark) { return prove(mark); }

  /// Writes to the peer's memory. The first entry of the list is reserved for this class.
  /// @return whether all of [address, address + length) was written, the last part of `local` last.
  bool write(const SpaceMark& mark, std::span<iovec> local, std::uint64_t address, std::uint64_t length);
  bool read(const SpaceMark& mark, std::span<iovec> local, std::uint64_t address, std::uint64_t length);

 private:
  bool prove(const SpaceMark& mark);
  void judge_failure(const SpaceMark& mark, int error);

  pid_t process_ = 0;
  std::uint64_t connected_at_ = 0;  ///< ticks_since_boot()
  SpaceMark proven_;
  Nanos proven_at_{0};
  SpaceMark refused_;  ///< tried, and not a mark of the process
};

}  // namespace ringsock::soft
