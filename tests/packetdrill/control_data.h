// Control messages of recvmsg() as scripts write them.
#pragma once

#include <sys/socket.h>

#include <string>

#include "tests/packetdrill/script.h"

namespace ringsock::packetdrill {

/// Compares with `[{cmsg_level=.., cmsg_type=.., cmsg_data=..}, ...]`: TCP_CM_INQ and other numbers, IP_RECVERR
/// ({ee_errno=.., ee_origin=.., ...}), SCM_TIMESTAMPING ({scm_sec=.., scm_nsec=..}, not compared). Returns what was
/// wrong; empty: nothing.
std::string compare_control(const Value& wanted, msghdr& message);

}  // namespace ringsock::packetdrill
