// What the kernel says of a thread of this process.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <string>

namespace ringsock::support {

/// What /proc/self/task/THREAD/status says behind `name`.
inline std::string status_of(pid_t thread, const std::string& name) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":\t")) return line.substr(name.size() + 2);
  }
  return {};
}

}  // namespace ringsock::support
