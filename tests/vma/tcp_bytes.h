// Streams of bytes whose every byte is checked, both ways at once.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "tests/vma/tcp_world.h"

namespace ringsock::vma_tests {

inline constexpr std::size_t kMegabyte = std::size_t{1} << 20;

/// A stream of bytes that repeats itself nowhere near.
class Pattern {
 public:
  explicit Pattern(std::uint64_t seed) : state_(seed * 2 + 1) {}
  std::string next(std::size_t bytes) {
    std::string out(bytes, '\0');
    for (char& one : out) one = step();
    return out;
  }

 private:
  char step() {
    state_ = state_ * 6'364'136'223'846'793'005u + 1'442'695'040'888'963'407u;
    return static_cast<char>(state_ >> 56);
  }
  std::uint64_t state_;
};

inline void send_pattern(const Stream& to, std::uint64_t seed, std::size_t bytes) {
  Pattern pattern(seed);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min<std::size_t>(bytes - done, 200'000);
    ASSERT_EQ(to.send(pattern.next(piece)), piece) << "after " << done << ": " << std::strerror(errno);
    done += piece;
  }
}

inline void expect_pattern(const Stream& from, std::uint64_t seed, std::size_t bytes) {
  Pattern pattern(seed);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min<std::size_t>(bytes - done, 150'000);
    const std::string got = from.receive(piece);
    ASSERT_EQ(got.size(), piece) << "after " << done << ": " << std::strerror(errno);
    ASSERT_TRUE(got == pattern.next(piece)) << "other bytes after " << done;
    done += piece;
  }
}

/// Both directions at once, checked byte by byte.
inline void exchange(const Stream& one, const Stream& other, std::size_t bytes) {
  std::thread sends([&] { send_pattern(one, 1, bytes); });
  std::thread answers([&] { send_pattern(other, 2, bytes); });
  std::thread reads([&] { expect_pattern(one, 2, bytes); });
  expect_pattern(other, 1, bytes);
  sends.join();
  answers.join();
  reads.join();
}

}  // namespace ringsock::vma_tests
