#include "core/statistics/statistics_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "core/statistics/page_parts.h"
#include "core/statistics/statistics_file.h"

namespace ringsock::runtime {

namespace {

CounterSums sums_of(const SlotCounters& counters) {
  CounterSums sums;
  sums.add(counters);
  return sums;
}

/// Returns false when the slot is malformed.
bool take_slot(const SocketSlot& slot, ProcessSnapshot& out) {
  const SlotIdentity& identity = slot.identity;
  if (identity.finished.load(std::memory_order_relaxed) != identity.begun.load(std::memory_order_relaxed)) {
    ++out.unsettled;
    return true;
  }
  if (identity.state == SocketState::unused) return true;
  const auto local = address_of(identity.local), peer = address_of(identity.peer);
  if (static_cast<std::size_t>(identity.state) >= kSocketStates ||
      static_cast<std::size_t>(identity.path) >= kSocketPaths || identity.descriptor < -1 || !local || !peer)
    return false;
  const SocketDescription description{identity.descriptor, identity.state, identity.path, *local, *peer};
  out.sockets.push_back({description, sums_of(slot.counters)});
  out.total.add(slot.counters);
  return true;
}

template <std::size_t N>
void copy_counters(std::array<std::uint64_t, N>& to, const std::array<Counter, N>& from) {
  for (std::size_t i = 0; i < N; ++i) to[i] = from[i].load(std::memory_order_relaxed);
}

/// Reads the used part of the page: the header tells the number of slots.
Result<std::vector<std::byte>> read_used_part(int file) {
  auto bytes = read_statistics(file, kPageHeaderBytes);
  if (!bytes || bytes->size() < kPageHeaderBytes) return bytes;
  const Copied<PageHeader> header(*bytes);
  const std::uint32_t slots = std::min(header->slots_used.load(std::memory_order_relaxed), kStatisticsSlots);
  return read_statistics(file, kPageHeaderBytes + slots * sizeof(SocketSlot));
}

}  // namespace

Result<ProcessSnapshot> parse_statistics_page(std::span<const std::byte> bytes) {
  if (bytes.size() < kPageHeaderBytes) return Error{EPROTO, "statistics: short"};
  const Copied<PageHeader> header(bytes);
  if (header->magic != kStatisticsMagic) return Error{EPROTO, "statistics: no page"};
  if (header->version != kStatisticsVersion || header->slot_bytes != sizeof(SocketSlot))
    return Error{EPROTO, "statistics: another version"};
  const std::size_t slots = header->slots_used.load(std::memory_order_relaxed);
  if (slots > kStatisticsSlots || bytes.size() - kPageHeaderBytes < slots * sizeof(SocketSlot))
    return Error{EPROTO, "statistics: cut off"};

  ProcessSnapshot out;
  out.pid = header->pid;
  out.program = printable_text(header->program);
  out.started_ns = header->started_ns;
  copy_counters(out.connected, header->connected);
  copy_counters(out.accepted, header->accepted);
  copy_counters(out.kernel, header->kernel);
  copy_counters(out.refused, header->refused);
  out.others = sums_of(header->others.counters);
  out.total.add(header->gone);
  out.total.add(header->others.counters);
  for (std::size_t i = 0; i < slots; ++i) {
    const Copied<SocketSlot> slot(bytes.subspan(kPageHeaderBytes + i * sizeof(SocketSlot)));
    if (!take_slot(*slot, out)) return Error{EPROTO, "statistics: nonsense"};
  }
  return out;
}

Result<ProcessSnapshot> read_statistics_file(int directory, const char* name) {
  const auto file = open_statistics(directory, name, kStatisticsPrefix, kStatisticsBytes, O_RDONLY);
  if (!file) return file.error();
  auto page = read_until_settled([&]() -> Result<ProcessSnapshot> {
    const auto bytes = read_used_part(file->fd.get());
    if (!bytes) return bytes.error();
    return parse_statistics_page(*bytes);
  });
  if (page && page->pid != static_cast<std::uint32_t>(file->name.pid))
    return Error{EPROTO, "statistics: another process"};
  return page;
}

std::vector<ProcessSnapshot> read_all_statistics(const char* directory, std::vector<std::string>& refused) {
  std::vector<ProcessSnapshot> out;
  const Directory opened(::opendir(directory));
  if (!opened) return out;
  const int fd = ::dirfd(opened.get());
  const std::uint64_t pid_namespace = own_pid_namespace();
  const uid_t uid = ::geteuid();
  while (const dirent* entry = ::readdir(opened.get())) {
    const auto said = parse_statistics_name(entry->d_name);
    if (!said || said->pid_namespace != pid_namespace || (uid != 0 && said->uid != uid)) continue;
    auto page = read_statistics_file(fd, entry->d_name);
    if (page) {
      out.push_back(*std::move(page));
    } else if (page.error().code == ESRCH) {
      ::unlinkat(fd, entry->d_name, 0);
    } else if (page.error().code != ENOENT && page.error().code != EBUSY) {
      refused.push_back(std::string(directory) + "/" + entry->d_name + ": " + page.error().where + " (" +
                        std::strerror(page.error().code) + ")");
    }
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return out;
}

}  // namespace ringsock::runtime
