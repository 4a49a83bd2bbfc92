// Reads what the kernel reports of this process's memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringsock::soft {

/// One line of /proc/self/maps, with what /proc/self/smaps adds.
struct MemoryArea {
  std::uint64_t start = 0, end = 0;
  std::string permissions;  ///< "rw-p"
  std::uint64_t offset = 0;
  std::uint64_t device = 0;  ///< as st_dev
  std::uint64_t inode = 0;   ///< 0: anonymous memory
  std::string name;
  std::string flags;  ///< VmFlags with blanks around each: " rd wr mr "; empty when not asked for
  unsigned long protection_key = 0;
};

enum class AreaDetail { maps, smaps };

/// Returns the areas that overlap [start, end), in order. Empty without /proc.
std::vector<MemoryArea> areas_between(std::uint64_t start, std::uint64_t end, AreaDetail detail);

/// Numbers of /proc/self/status.
struct ProcessCounts {
  unsigned long threads = 0;
  unsigned long pinned_kib = 0;  ///< by RDMA devices, io_uring buffers
  unsigned long locked_kib = 0;  ///< mlock(2); also what VFIO has pinned
};
std::optional<ProcessCounts> process_counts();

/// Returns the number in a one-line file of /proc/sys, nullopt when there is none.
std::optional<long> read_sysctl(const char* path);

}  // namespace ringsock::soft
