// Commands of a shell out of a test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace ringsock::vma_tests {

/// What is executed meanwhile has not our library: a program that is not built for a sanitizer cannot load it.
class WithoutLibrary {
 public:
  WithoutLibrary() {
    if (const char* const library = std::getenv("LD_PRELOAD")) libraries_ = library;
    ::unsetenv("LD_PRELOAD");
  }
  WithoutLibrary(const WithoutLibrary&) = delete;
  WithoutLibrary& operator=(const WithoutLibrary&) = delete;
  ~WithoutLibrary() {
    if (!libraries_.empty()) ::setenv("LD_PRELOAD", libraries_.c_str(), 1);
  }

 private:
  std::string libraries_;
};

inline bool succeeds(const std::string& command) {
  const WithoutLibrary here;
  return std::system(("set -e; " + command).c_str()) == 0;
}
inline void sh(const std::string& command) { ASSERT_TRUE(succeeds(command)) << command; }

}  // namespace ringsock::vma_tests
