// The protocol between a process and the guardian of its filter (flow_guardian.cc).
#pragma once

namespace ringsock::soft {

/// The guardian's descriptors: a SOCK_SEQPACKET socket to the process, and the program to attach.
inline constexpr int kGuardianSocket = 0;
inline constexpr int kGuardianProgram = 3;

/// Sent by the guardian once, after it has tried to attach the filter.
struct GuardianReply {
  int error;  ///< 0, or an errno value
};

}  // namespace ringsock::soft
