// The options of a stream rsocket that are plain integers.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <optional>

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

/// Values of the integer options of one socket. Threads: any.
class IntOptions {
 public:
  IntOptions();
  IntOptions& operator=(const IntOptions& other);
  [[nodiscard]] int get(std::size_t row) const { return values_[row].load(std::memory_order_relaxed); }
  void set(std::size_t row, int value) { values_[row].store(value, std::memory_order_relaxed); }
  /// Returns the value of an option that is in the table.
  [[nodiscard]] int get(int level, int name) const { return get(*find_int_option(level, name)); }

 private:
  static constexpr std::size_t kMaxOptions = 32;
  std::array<std::atomic<int>, kMaxOptions> values_{};
};

}  // namespace ringsock::rs
