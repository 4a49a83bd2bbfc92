#include "tests/packetdrill/icmp_names.h"

#include <array>

namespace ringsock::packetdrill {
namespace {

struct Name {
  const char* type;
  const char* code;
  std::uint8_t type_number, code_number;
};

constexpr std::array kV4{Name{"unreachable", "net_unreachable", 3, 0},
                         Name{"unreachable", "host_unreachable", 3, 1},
                         Name{"unreachable", "protocol_unreachable", 3, 2},
                         Name{"unreachable", "port_unreachable", 3, 3},
                         Name{"unreachable", "frag_needed", 3, 4},
                         Name{"unreachable", "source_route_failed", 3, 5},
                         Name{"unreachable", "net_unknown", 3, 6},
                         Name{"unreachable", "host_unknown", 3, 7},
                         Name{"unreachable", "source_host_isolated", 3, 8},
                         Name{"unreachable", "net_prohibited", 3, 9},
                         Name{"unreachable", "host_prohibited", 3, 10},
                         Name{"unreachable", "net_unreachable_for_tos", 3, 11},
                         Name{"unreachable", "host_unreachable_for_tos", 3, 12},
                         Name{"unreachable", "packet_filtered", 3, 13},
                         Name{"unreachable", "precedence_violation", 3, 14},
                         Name{"unreachable", "precedence_cutoff", 3, 15},
                         Name{"source_quench", "", 4, 0},
                         Name{"time_exceeded", "", 11, 0},
                         Name{"parameter_problem", "", 12, 0}};
constexpr std::array kV6{Name{"unreachable", "no_route", 1, 0},
                         Name{"unreachable", "admin_prohibited", 1, 1},
                         Name{"unreachable", "not_neighbour", 1, 2},
                         Name{"unreachable", "addr_unreachable", 1, 3},
                         Name{"unreachable", "port_unreachable", 1, 4},
                         Name{"packet_too_big", "", 2, 0},
                         Name{"time_exceeded", "", 3, 0},
                         Name{"parameter_problem", "", 4, 0}};

}  // namespace

std::pair<std::uint8_t, std::uint8_t> find_icmp(const IcmpSpec& spec, bool v4) {
  const auto find = [&](const auto& names) {
    for (const Name& name : names)
      if (spec.type == name.type && (spec.code.empty() || spec.code == name.code))
        return std::pair{name.type_number, name.code_number};
    throw ScriptError("unknown ICMP error " + spec.type + ' ' + spec.code);
  };
  return v4 ? find(kV4) : find(kV6);
}

}  // namespace ringsock::packetdrill
