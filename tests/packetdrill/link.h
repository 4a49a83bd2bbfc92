// One connection of a script: translates between its numbers and those of the packets, and compares packets.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "tests/packetdrill/packet.h"
#include "tests/packetdrill/script.h"

namespace ringsock::packetdrill {

/// The script counts our bytes from our SYN; what the remote side sends has the script's own numbers.
struct Link {
  Endpoint local, remote;
  std::optional<std::uint32_t> initial;  ///< the number of our SYN
  /// Our time stamps by those of the script, in the order of the script.
  std::map<std::uint32_t, std::uint32_t> stamps;
  std::uint32_t tick_us = 0;  ///< of our time stamps; 0: they are not compared
  bool any_push = false;      ///< PSH does not count

  [[nodiscard]] std::uint32_t offset() const { return initial.value_or(0); }
  /// Makes the packet that the script has arrive.
  [[nodiscard]] Bytes make(const PacketSpec& spec) const;
  /// Returns how a packet differs from the script's; empty: not at all. Learns our first number and time stamps.
  std::string compare(const PacketSpec& spec, const Arrival& live);
  /// The packet in the script's notation.
  [[nodiscard]] std::string describe(const Arrival& live) const;

 private:
  [[nodiscard]] OptionSpec live_option(OptionSpec one) const;
  [[nodiscard]] std::uint32_t live_stamp(std::uint32_t script) const;
  [[nodiscard]] std::string compare_stamp(std::uint32_t script, std::uint32_t live);
  [[nodiscard]] std::string compare_options(const PacketSpec& spec, const Arrival& live);
};

}  // namespace ringsock::packetdrill
