// rare_calls.def as data, for the two users that try the calls: in a child, and in a filter's program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/rare_calls.h"

namespace ringsock {

struct RareCallRow {
  enum class Need : std::uint8_t { ring, fatal, ethernet, spare };
  const char* name;
  Need need;
  long number;
  int expected;  ///< errno of an attempt that no filter stopped; 0: it succeeds
  std::array<long, 6> arguments;
};

/// Returns the rows in the order of RareCall.
std::span<const RareCallRow> rare_call_rows();
}  // namespace ringsock
