// Tells when a ring fills while its reader is away.
#pragma once

#include <cstdint>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/packet/steering/flow_key.h"

namespace ringsock::soft {

class BpfObject;

/// The program that fills a ring counts the frames since the reader last took some. It makes a descriptor readable when
/// that is a quarter of the ring. So a reader that keeps up costs neither system calls nor wake-ups, and a reader that
/// has stopped is noticed before the ring is full. Threads: note_taken() by the reader, one at a time; the others from
/// any thread.
class RingAlarm {
 public:
  RingAlarm() = default;
  RingAlarm(const RingAlarm&) = delete;
  RingAlarm& operator=(const RingAlarm&) = delete;
  ~RingAlarm() { close(); }

  /// `program` is loaded, and fills the ring. Errors: EMFILE, ENOMEM, EPERM.
  Status open(const BpfObject& program);
  /// Starts alarms for a ring of `places` places, at least 256.
  void start(std::uint32_t places);
  /// Stops alarms.
  void stop();

  /// The descriptor is readable while an alarm is on; -1 before open() and after close().
  [[nodiscard]] int descriptor() const { return alarms_.get(); }
  void silence();
  /// Called when the reader has taken a frame.
  void note_taken() {
    if (++taken_ % interval_ == 0) [[unlikely]]
      tell_attended();
  }
  /// Closes; in a forked child only its copies of what it shares with the parent.
  void close();

 private:
  void tell_attended();

  UniqueFd alarms_;
  ring_backlog* backlog_ = nullptr;
  std::uint64_t* consumed_ = nullptr;        ///< positions in the kernel's queue of alarms: the reader's
  const std::uint64_t* produced_ = nullptr;  ///< and the kernel's
  std::uint32_t taken_ = 0;
  std::uint32_t interval_ = 1U << 31;
};

}  // namespace ringsock::soft
