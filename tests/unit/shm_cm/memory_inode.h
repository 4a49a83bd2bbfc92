// The memfd in which a queue pair's memory lies.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "core/verbs/connection_manager.h"

namespace ringsock::tests {

/// The inode of that memfd: the numbers of living ones differ.
inline ino_t inode_of(const verbs::ConnectionQp& qp) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(qp.receive_memory.data());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    ino_t inode = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %lu", &begin, &end, &inode) != 3) continue;
    if (wanted >= begin && wanted < end) return inode;
  }
  ADD_FAILURE() << "no mapping";
  return 0;
}

}  // namespace ringsock::tests
