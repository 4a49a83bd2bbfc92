// What this room keeps for each thread.
#pragma once

#include "core/base/clock.h"
#include "core/base/of_thread.h"

namespace ringsock::ethernet {

class Ring;

/// What the calling thread has sent by rings since it last did anything else.
struct SendRun {
  unsigned sends = 0;
  Nanos began{};               ///< time of the second send
  const Ring* ring = nullptr;  ///< of the last send, null after the first one; only compared
};

/// Binds its thread to a CPU for as long as the thread lives.
class AttachedThread {
 public:
  AttachedThread();
  AttachedThread(const AttachedThread&) = delete;
  AttachedThread& operator=(const AttachedThread&) = delete;
  ~AttachedThread();
  [[nodiscard]] int cpu() const { return cpu_; }  ///< -1: it could not be bound

 private:
  int cpu_;
};

struct ThreadRings {
  SendRun run;
  OfThread<AttachedThread> attached;
};
/// A plain variable: each send looks at it, without a lock or a clock.
extern constinit thread_local ThreadRings thread_rings __attribute__((tls_model("initial-exec")));

}  // namespace ringsock::ethernet
