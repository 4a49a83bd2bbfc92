#include "tests/packetdrill/icmp_errors.h"

#include <array>
#include <cerrno>

namespace ringsock::packetdrill {
namespace {

constexpr std::uint8_t kUnreachable = 3, kTimeExceeded = 11, kParameterProblem = 12, kFragmentationNeeded = 4;
/// By the code of "destination unreachable".
constexpr std::array kV4Codes{ENETUNREACH,  EHOSTUNREACH, ENOPROTOOPT,  ECONNREFUSED, EMSGSIZE,     EOPNOTSUPP,
                              ENETUNREACH,  EHOSTDOWN,    ENONET,       ENETUNREACH,  EHOSTUNREACH, ENETUNREACH,
                              EHOSTUNREACH, EHOSTUNREACH, EHOSTUNREACH, EHOSTUNREACH};
constexpr std::uint8_t kV6Unreachable = 1, kV6TooBig = 2, kV6TimeExceeded = 3, kV6ParameterProblem = 4;
constexpr std::array kV6Codes{ENETUNREACH, EACCES, EHOSTUNREACH, EHOSTUNREACH, ECONNREFUSED, EACCES, EACCES};

IcmpMeaning v4_meaning(const IcmpError& error) {
  if (error.type == kTimeExceeded) return {EHOSTUNREACH, false};
  if (error.type == kParameterProblem) return {EPROTO, false};
  if (error.type != kUnreachable || error.code >= kV4Codes.size()) return {};
  return {kV4Codes.at(error.code), error.code == kFragmentationNeeded};
}

IcmpMeaning v6_meaning(const IcmpError& error) {
  if (error.type == kV6TooBig) return {EMSGSIZE, true};
  if (error.type == kV6TimeExceeded) return {EHOSTUNREACH, false};
  if (error.type == kV6ParameterProblem) return {EPROTO, false};
  if (error.type != kV6Unreachable || error.code >= kV6Codes.size()) return {};
  return {kV6Codes.at(error.code), false};
}

}  // namespace

IcmpMeaning meaning_of(const IcmpError& error) { return error.source.is_v4() ? v4_meaning(error) : v6_meaning(error); }

}  // namespace ringsock::packetdrill
