// The options of a stream rsocket that are plain integers.
#pragma once

#include <cstddef>
#include <optional>

#include "core/runtime/description_values.h"

namespace ringsock::rs {

inline constexpr int kSolRdma = 0x10000;  ///< SOL_RDMA of <rdma/rsocket.h>

/// One integer option: its default, and the values that setsockopt accepts.
struct IntOption {
  int level;
  int name;
  int initial;
  int minimum;
  int maximum;
  bool is_flag;  ///< any non-zero value is stored as 1
};

/// Returns the row of (level, name) in the table, if there is one.
std::optional<std::size_t> find_int_option(int level, int name);
const IntOption& int_option(std::size_t row);

/// Values of the integer options of one socket, among the values of its open file description. Threads: any.
class IntOptions {
 public:
  explicit IntOptions(runtime::DescriptionValues& values);
  IntOptions(const IntOptions&) = delete;
  IntOptions& operator=(const IntOptions& other);
  [[nodiscard]] int get(std::size_t row) const {
    return static_cast<int>(values_.get(runtime::DescriptionValues::first_option + row));
  }
  void set(std::size_t row, int value) { values_.set(runtime::DescriptionValues::first_option + row, value); }
  /// Returns the value of an option that is in the table.
  [[nodiscard]] int get(int level, int name) const { return get(*find_int_option(level, name)); }

 private:
  runtime::DescriptionValues& values_;
};

}  // namespace ringsock::rs
