#include "core/device/shm/memory/address_space.h"

#include <sys/sysmacros.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>

#include "core/base/text_lines.h"

namespace ringsock::soft {

namespace {

bool parse_area(const char* line, MemoryArea& area) {
  char permissions[5] = {};
  unsigned device_major = 0, device_minor = 0;
  int name_at = 0;
  const int fields =
      std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &area.start, &area.end,
                  permissions, &area.offset, &device_major, &device_minor, &area.inode, &name_at);
  if (fields != 7) return false;
  area.permissions = permissions;
  area.device = makedev(device_major, device_minor);
  area.name = line + name_at;
  return true;
}

void parse_detail(const char* line, MemoryArea& area) {
  constexpr char kFlags[] = "VmFlags:";
  if (std::strncmp(line, kFlags, sizeof kFlags - 1) == 0) {
    area.flags = line + sizeof kFlags - 1;
    area.flags += ' ';
  }
  std::sscanf(line, "ProtectionKey: %lu", &area.protection_key);
}

}  // namespace

std::vector<MemoryArea> areas_between(std::uint64_t start, std::uint64_t end, AreaDetail detail) {
  std::vector<MemoryArea> out;
  TextLines lines(detail == AreaDetail::maps ? "/proc/self/maps" : "/proc/self/smaps");
  bool in_range = false;
  while (const char* line = lines.next()) {
    MemoryArea area;
    if (parse_area(line, area)) {
      if (area.start >= end) break;
      in_range = area.end > start;
      if (in_range) out.push_back(std::move(area));
    } else if (in_range) {
      parse_detail(line, out.back());
    }
  }
  return out;
}

std::optional<ProcessCounts> process_counts() {
  ProcessCounts out;
  int found = 0;
  TextLines lines("/proc/self/status");
  while (const char* line = lines.next()) {
    found += std::sscanf(line, "Threads: %lu", &out.threads) == 1;
    found += std::sscanf(line, "VmPin: %lu", &out.pinned_kib) == 1;
    found += std::sscanf(line, "VmLck: %lu", &out.locked_kib) == 1;
  }
  if (found != 3) return std::nullopt;
  return out;
}

std::optional<long> read_sysctl(const char* path) {
  long value = 0;
  const char* line = nullptr;
  TextLines lines(path);
  line = lines.next();
  if (line == nullptr || std::sscanf(line, "%ld", &value) != 1) return std::nullopt;
  return value;
}

}  // namespace ringsock::soft
