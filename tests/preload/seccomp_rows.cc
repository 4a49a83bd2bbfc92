// Prints the calls of core/base/rare_calls.def: "name need number arguments...".
#include <cstdio>

#include "core/base/rare_call_table.h"

int main() {
  using Need = ringsock::RareCallRow::Need;
  const auto word = [](Need need) {
    switch (need) {
      case Need::ring: return "ring";
      case Need::fatal: return "fatal";
      case Need::ethernet: return "ethernet";
      case Need::spare: break;
    }
    return "spare";
  };
  for (const auto& row : ringsock::rare_call_rows()) {
    std::printf("%s %s %ld", row.name, word(row.need), row.number);
    for (const long argument : row.arguments) std::printf(" %ld", argument);
    std::puts("");
  }
}
