// What this room keeps for each thread.
#pragma once

#include "core/base/clock.h"

namespace ringsock::ethernet {

class Ring;

/// What the calling thread has sent by rings since it last did anything else.
struct SendRun {
  unsigned sends = 0;
  Nanos began{};               ///< time of the second send
  const Ring* ring = nullptr;  ///< of the last send, null after the first one; only compared
};

struct ThreadRings {
  SendRun run;
};
/// A plain variable: each send looks at it, without a lock or a clock.
extern constinit thread_local ThreadRings thread_rings __attribute__((tls_model("initial-exec")));

}  // namespace ringsock::ethernet
