// Names of ICMP errors in scripts.
#pragma once

#include <cstdint>
#include <utility>

#include "tests/packetdrill/script.h"

namespace ringsock::packetdrill {

/// Returns type and code of an error as RFC 792 and RFC 4443 number them. Throws ScriptError.
std::pair<std::uint8_t, std::uint8_t> find_icmp(const IcmpSpec& spec, bool v4);

}  // namespace ringsock::packetdrill
