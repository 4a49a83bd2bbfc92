// TCP options as bytes and in the script's notation.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tests/packetdrill/packet.h"
#include "tests/packetdrill/script.h"

namespace ringsock::packetdrill {

/// Reads as far as the options are whole.
std::vector<OptionSpec> read_options(std::span<const std::byte> bytes);
void put_option(Bytes& out, const OptionSpec& one);
/// `<mss 1460,sackOK,...>`; TSval only `with_stamps`.
std::string describe_options(const std::vector<OptionSpec>& options, bool with_stamps);

}  // namespace ringsock::packetdrill
