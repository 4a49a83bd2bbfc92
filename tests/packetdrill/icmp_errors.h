// What ICMP errors mean for a connection: icmp(7), RFC 792, RFC 4443.
#pragma once

#include "tests/packetdrill/packet.h"

namespace ringsock::packetdrill {

struct IcmpMeaning {
  int error = 0;         ///< errno; 0: the message means nothing
  bool too_big = false;  ///< the packet was longer than the path takes
};

IcmpMeaning meaning_of(const IcmpError& error);

}  // namespace ringsock::packetdrill
