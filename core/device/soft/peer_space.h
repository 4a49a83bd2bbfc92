// The memory of the process at the other end of a connection, by the kernel's process_vm_readv(2) and its like.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "core/base/clock.h"
#include "core/device/soft/space_mark.h"

namespace ringsock::soft {

/// Whether the memory of `process` has the mark, and the process is of our own user and was there at `ticks`
/// (ticks_since_boot()): one that got the number later is another one. errno tells why the memory could not be read.
bool is_space_of(pid_t process, const SpaceMark& mark, std::uint64_t ticks);
/// The time, as processes' starts are told: in clock ticks since boot.
std::uint64_t ticks_since_boot();

/// Reads and writes the peer's memory, and surely no other process's: a child that the peer's process forked, the
/// program that it executed, and whoever got its number are not written to. The peer says by its mark which memory it
/// means; which process that is says the kernel (SO_PEERCRED), so that no peer leads us into the memory of a third one.
///
/// What is looked at when: the process's number, user and start, and the token in it, before the first access and then
/// every kProofLasts, far less than the time in which all numbers of processes are used up; the page of the mark in
/// each access, in the same system call, so between a look and the access nothing can come.
///
/// Threads: one at a time.
class PeerSpace {
 public:
  static constexpr Nanos kProofLasts{20'000'000};

  /// The process that had the other end when the connection was made, as the kernel numbers it here; 0: it is not of
  /// our user, or has no number here.
  void set_process(pid_t process);
  [[nodiscard]] bool has_process() const { return process_ != 0; }

  /// The process whose memory has the mark; 0: none that we know, or may look into.
  pid_t find(const SpaceMark& mark);
  /// Looks again, whatever is known.
  bool still_has(const SpaceMark& mark) { return prove(mark); }

  /// The list's first part is for our own use.
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
  SpaceMark refused_;  ///< tried, and not the process's
};

}  // namespace ringsock::soft
