// Between a process and the guardian of its filter (flow_guardian.cc).
#pragma once

namespace ringsock::soft {

/// The guardian's descriptors: a SOCK_SEQPACKET socket to the process, and the program to attach.
inline constexpr int kGuardianSocket = 0;
inline constexpr int kGuardianProgram = 3;

/// What the guardian says once it has tried.
struct GuardianReply {
  int error;  ///< 0, or an errno value
};

}  // namespace ringsock::soft
