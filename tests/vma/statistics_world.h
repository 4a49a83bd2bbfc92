// The tools that read what libvma counts, as the stories of statistics use them.
#pragma once

#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <string>

namespace ringsock::vma_tests {

/// Returns what a command of a shell has written.
inline std::string output_of(const std::string& command) {
  ::unsetenv("LD_PRELOAD");  // tools and shells are to run as they are
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen((command + " 2>&1").c_str(), "r"), ::pclose);
  std::string out;
  std::array<char, 4096> part;
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe.get())) out.append(part.data(), got);
  return out;
}
/// Looks at this process.
inline std::string vma_stats(const std::string& options) {
  return output_of("tools/vma_stats -p " + std::to_string(::getpid()) + " " + options);
}
/// Returns the file that an environment variable names.
inline std::string contents_of(const char* variable) {
  std::ifstream file(std::getenv(variable));
  return {std::istreambuf_iterator<char>(file), {}};
}
/// The first number that the pattern's group finds; -1: none.
inline long number_in(const std::string& text, const std::string& pattern) {
  std::smatch found;
  return std::regex_search(text, found, std::regex(pattern)) ? std::stol(found[1]) : -1;
}

}  // namespace ringsock::vma_tests
