// Frames for which a ring has been chosen, and that are not in it yet.
#pragma once

#include <chrono>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/device/packet/steering/flow_key.h"

namespace ringsock::soft {

/// Reads the notes that the filters of rings make in the map `taken` (packet_steering.bpf.c). Threads: one at a time.
class FramesUnderWay {
 public:
  explicit FramesUnderWay(UniqueFd taken) : taken_(std::move(taken)) {}

  /// Waits until the frames that belong to flows removed before this call are in the ring. That takes one system call,
  /// unless a frame is under way in this moment. Gives up after `limit`: a CPU may keep a note for longer, when
  /// something removes frames between the filters of rings and tc. Returns whether all frames are in the ring.
  bool wait_for(unsigned ring, std::chrono::nanoseconds limit = std::chrono::milliseconds(10));

  [[nodiscard]] int fd() const { return taken_.get(); }
  /// Called in a forked child: closes the child's copy of the map.
  void forget() { taken_.reset(); }

 private:
  bool any_for(unsigned ring);

  UniqueFd taken_;
  std::vector<taken_by> notes_;  ///< of each CPU that there may be; made at the first use
};

}  // namespace ringsock::soft
