// Prints the calls of core/base/rare_calls.def: "name number arguments...".
#include <cstdio>

#include "core/base/rare_call_table.h"

int main() {
  for (const auto& row : ringsock::rare_call_rows()) {
    std::printf("%s %ld", row.name, row.number);
    for (const long argument : row.arguments) std::printf(" %ld", argument);
    std::puts("");
  }
}
