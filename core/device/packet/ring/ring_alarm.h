// Who empties a ring when its reader is away hears of it here.
#pragma once

#include <cstdint>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/packet/steering/flow_key.h"

namespace ringsock::soft {

class BpfObject;

/// The program that fills a ring counts what it puts in since the reader last took some, and makes a descriptor
/// readable when that is a quarter of the ring. So a reader that keeps up costs neither a system call nor a wake-up,
/// and one that has gone elsewhere is noticed before the ring is full. Threads: note_taken() by the reader, one at a
/// time; the others from any thread.
class RingAlarm {
 public:
  RingAlarm() = default;
  RingAlarm(const RingAlarm&) = delete;
  RingAlarm& operator=(const RingAlarm&) = delete;
  ~RingAlarm() { close(); }

  /// `program`, loaded, is what fills the ring of so many places. Errors: EMFILE, ENOMEM, EPERM.
  Status open(const BpfObject& program);
  /// From now on, of a ring of so many places, 256 at least.
  void start(std::uint32_t places);
  /// No alarms any more.
  void stop();

  /// Readable while an alarm is on; -1 before open() and after close().
  [[nodiscard]] int descriptor() const { return alarms_.get(); }
  void silence();
  /// The reader has taken one more.
  void note_taken() {
    if (++taken_ % interval_ == 0) [[unlikely]]
      tell_attended();
  }
  /// Of what is shared with a parent, the copies.
  void close();

 private:
  void tell_attended();

  UniqueFd alarms_;
  ring_backlog* backlog_ = nullptr;
  std::uint64_t* consumed_ = nullptr;        ///< positions in the kernel's queue of alarms: ours,
  const std::uint64_t* produced_ = nullptr;  ///< and the kernel's
  std::uint32_t taken_ = 0;
  std::uint32_t interval_ = 1U << 31;
};

}  // namespace ringsock::soft
