// The table that rsocket_bench prints, and the same as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/bench/pair.h"

namespace ringsock::bench {

/// What must be reached: a factor over the reference, or a bound on ringsock's own figure.
struct Goal {
  enum class Kind { none, at_least_times, at_most } kind = Kind::none;
  double value = 0;
  std::string text;
};

struct Row {
  std::string measure;
  std::string unit;
  bool lower_is_better;
  Figure kernel;  ///< kernel TCP loopback, in the same run
  Figure ring;
  Figure reference;  ///< what the ratio is taken against; the kernel's figure in most rows
  Goal goal;
  std::string aim;

  /// How many times better than the reference.
  [[nodiscard]] Figure ratio() const;
  /// Nothing when there is no goal or no figure.
  [[nodiscard]] std::optional<bool> reached() const;
};

void print_table(const std::vector<Row>& rows);
void print_json(const std::vector<Row>& rows, int runs);

}  // namespace ringsock::bench
