// What the kernel tells of this process's memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringsock::soft {

/// One line of /proc/self/maps, and what /proc/self/smaps adds.
struct MemoryArea {
  std::uint64_t start = 0, end = 0;
  std::string permissions;  ///< "rw-p"
  std::uint64_t offset = 0;
  std::uint64_t device = 0;  ///< as st_dev
  std::uint64_t inode = 0;   ///< 0: anonymous memory
  std::string name;
  std::string flags;  ///< VmFlags, a blank around each: " rd wr mr "; empty when not asked for
  unsigned long protection_key = 0;
};

enum class AreaDetail { maps, smaps };

/// The areas that touch [start, end), in order. Empty when /proc is not there.
std::vector<MemoryArea> areas_between(std::uint64_t start, std::uint64_t end, AreaDetail detail);

/// Of /proc/self/status.
struct ProcessCounts {
  unsigned long threads = 0;
  unsigned long pinned_kib = 0;  ///< by RDMA devices, io_uring buffers
  unsigned long locked_kib = 0;  ///< mlock(2); also what VFIO has pinned
};
std::optional<ProcessCounts> process_counts();

/// The number in a one-line file of /proc/sys; nullopt when there is none.
std::optional<long> read_sysctl(const char* path);

}  // namespace ringsock::soft
