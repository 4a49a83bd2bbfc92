#include "libvmacompat/statistics/vma_page_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <memory>
#include <string_view>

#include "core/base/clock.h"
#include "core/statistics/page_parts.h"
#include "core/statistics/statistics_file.h"

namespace ringsock::runtime {

namespace {

std::uint64_t value(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

/// Returns the count since the last reset.
std::uint64_t since(const Counter& counter, const Counter& zero) {
  const std::uint64_t now = value(counter), then = value(zero);
  return then <= now ? now - then : now;  // the slot has been given to another socket since
}
template <class Slot, class Which>
std::uint64_t count_of(const Slot& slot, Which which) {
  const auto index = static_cast<std::size_t>(which);
  return since(slot.counts[index], slot.zero[index]);
}
template <class Slot, class Which>
std::uint64_t level_of(const Slot& slot, Which which) {
  return value(slot.levels[static_cast<std::size_t>(which)]);
}

/// Reads four counters that follow each other.
VmaFlow flow_of(const VmaSocketSlot& slot, VmaSocketCount first) {
  const auto at = [&](std::size_t offset) {
    return count_of(slot, static_cast<VmaSocketCount>(static_cast<std::size_t>(first) + offset));
  };
  return {.packets = at(0), .bytes = at(1), .eagains = at(2), .errors = at(3)};
}

bool is_flag(std::uint8_t byte) { return byte <= 1; }

/// Returns false when the slot holds invalid values.
bool take_identity(const VmaSocketIdentity& identity, VmaSocketSnapshot& out) {
  const auto local = address_of(identity.local), peer = address_of(identity.peer);
  const auto interface = address_of(identity.multicast_interface);
  if (!local || !peer || !interface || identity.groups_used > kVmaGroups || !is_flag(identity.is_tcp) ||
      !is_flag(identity.is_offloaded) || !is_flag(identity.is_blocking) || !is_flag(identity.multicast_loop))
    return false;
  out.fd = identity.fd;
  out.inode = identity.inode;
  out.is_tcp = identity.is_tcp != 0;
  out.is_offloaded = identity.is_offloaded != 0;
  out.is_blocking = identity.is_blocking != 0;
  out.multicast_loop = identity.multicast_loop != 0;
  out.multicast_interface = *interface;
  out.local = *local;
  out.peer = *peer;
  out.ring_user_id_rx = identity.ring_user_id_rx;
  out.ring_user_id_tx = identity.ring_user_id_tx;
  for (std::size_t i = 0; i < identity.groups_used; ++i) {
    const auto group = address_of(identity.groups[i]);
    if (!group) return false;
    out.groups.push_back(*group);
  }
  return true;
}

/// Returns the name of a state of the kernel's numbering; empty for none.
const char* state_name(std::uint64_t state) {
  constexpr std::array kNames{"",          "ESTABLISHED", "SYN_SENT",   "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2",
                              "TIME_WAIT", "CLOSE",       "CLOSE_WAIT", "LAST_ACK", "LISTEN",    "CLOSING"};
  return state < kNames.size() ? kNames[state] : "";
}

void take_tcp(const VmaSocketSlot& slot, VmaSocketSnapshot& out) {
  out.tcp_state = state_name(level_of(slot, VmaSocketLevel::tcp_state));
  out.tcp_rtt_us = level_of(slot, VmaSocketLevel::tcp_rtt_us);
  out.tcp_rttvar_us = level_of(slot, VmaSocketLevel::tcp_rttvar_us);
  out.tcp_cwnd = level_of(slot, VmaSocketLevel::tcp_cwnd);
  out.tcp_in_flight = level_of(slot, VmaSocketLevel::tcp_in_flight);
  out.tx_time_outs = count_of(slot, VmaSocketCount::tx_time_outs);
  out.tx_reorderings = count_of(slot, VmaSocketCount::tx_reorderings);
  out.rx_out_of_order = count_of(slot, VmaSocketCount::rx_out_of_order);
}

void take_counts(const VmaSocketSlot& slot, VmaSocketSnapshot& out) {
  using Count = VmaSocketCount;
  using Level = VmaSocketLevel;
  const auto count = [&](Count which) { return count_of(slot, which); };
  const auto level = [&](Level which) { return level_of(slot, which); };
  out.rx_thread = static_cast<int>(level(Level::rx_thread) & INT32_MAX);
  out.tx_thread = static_cast<int>(level(Level::tx_thread) & INT32_MAX);
  out.rx = flow_of(slot, Count::rx_packets);
  out.rx_os = flow_of(slot, Count::rx_os_packets);
  out.tx = flow_of(slot, Count::tx_packets);
  out.tx_os = flow_of(slot, Count::tx_os_packets);
  out.tx_dummies = count(Count::tx_dummies);
  out.tx_paced = count(Count::tx_paced);
  out.tx_paced_waits = count(Count::tx_paced_waits);
  out.tx_rate_kbps = level(Level::tx_rate_kbps);
  out.retransmits = count(Count::retransmits);
  out.poll_hits = count(Count::poll_hits);
  out.poll_misses = count(Count::poll_misses);
  out.rx_migrations = count(Count::rx_migrations);
  out.tx_migrations = count(Count::tx_migrations);
  out.ready_packets_dropped = count(Count::ready_packets_dropped);
  out.ready_bytes_dropped = count(Count::ready_bytes_dropped);
  out.ready_packets = level(Level::ready_packets);
  out.ready_bytes = level(Level::ready_bytes);
  out.ready_byte_limit = level(Level::ready_byte_limit);
  out.zero_copy_packets = level(Level::zero_copy_packets);
  out.is_left_to_netfilter = level(Level::left_to_netfilter) != 0;
  out.tx_ready_bytes = level(Level::tx_ready_bytes);
  out.ready_packets_max = level(Level::ready_packets_max);
  out.ready_bytes_max = level(Level::ready_bytes_max);
  take_tcp(slot, out);
}

/// Returns false when the slot holds invalid values.
bool take_socket(const VmaSocketSlot& slot, VmaSnapshot& out) {
  const VmaSocketIdentity& identity = slot.identity;
  if (identity.finished.load(std::memory_order_relaxed) != identity.begun.load(std::memory_order_relaxed)) {
    ++out.unsettled;
    return true;
  }
  if (identity.fd < 0) return identity.fd == -1;
  VmaSocketSnapshot socket;
  if (!take_identity(identity, socket)) return false;
  take_counts(slot, socket);
  out.sockets.push_back(std::move(socket));
  return true;
}

void take_ring(const VmaRingSlot& slot, VmaSnapshot& out) {
  using Count = VmaRingCount;
  if (slot.used.load(std::memory_order_relaxed) == 0) return;
  out.cqs.push_back({.packets_dropped = count_of(slot, Count::rx_dropped) + count_of(slot, Count::device_drops),
                     .queue_length = level_of(slot, VmaRingLevel::queue_length),
                     .drained_max = level_of(slot, VmaRingLevel::drained_max),
                     .buffers = level_of(slot, VmaRingLevel::buffers)});
  out.rings.push_back({.tx_packets = count_of(slot, Count::tx_packets),
                       .tx_bytes = count_of(slot, Count::tx_bytes),
                       .rx_packets = count_of(slot, Count::rx_packets),
                       .rx_bytes = count_of(slot, Count::rx_bytes),
                       .retransmits = count_of(slot, Count::retransmits),
                       .tx_joined = count_of(slot, Count::tx_joined),
                       .tx_trains = count_of(slot, Count::tx_trains),
                       .tx_dropped = count_of(slot, Count::tx_dropped),
                       .interrupts_requested = count_of(slot, Count::interrupts_requested),
                       .interrupts_received = count_of(slot, Count::interrupts_received),
                       .moderation_packets = level_of(slot, VmaRingLevel::moderation_packets),
                       .moderation_period_us = level_of(slot, VmaRingLevel::moderation_period_us)});
}

/// Returns false when the slot holds invalid values.
bool take_iomux(const VmaIomuxSlot& slot, std::size_t index, VmaSnapshot& out) {
  using Count = VmaIomuxCount;
  if (slot.used.load(std::memory_order_relaxed) == 0) return true;
  const bool is_set = index >= kVmaFirstEpollSlot;
  if (is_set && slot.epoll_fd < 0) return false;
  const char* const call = index == kVmaSelectSlot ? "select" : "poll";
  out.iomux.push_back({.name = is_set ? "epoll[" + std::to_string(slot.epoll_fd) + "]" : call,
                       .os_ready = count_of(slot, Count::os_ready),
                       .offloaded_ready = count_of(slot, Count::offloaded_ready),
                       .timeouts = count_of(slot, Count::timeouts),
                       .errors = count_of(slot, Count::errors),
                       .poll_hits = count_of(slot, Count::poll_hits),
                       .poll_misses = count_of(slot, Count::poll_misses),
                       .polling_cpu_percent = std::min(slot.polling_percent.load(std::memory_order_relaxed), 100U)});
  return true;
}

void take_pool(const VmaPoolSlot& slot, VmaSnapshot& out) {
  if (slot.used.load(std::memory_order_relaxed) == 0) return;
  out.pools.push_back({.is_rx = slot.is_rx.load(std::memory_order_relaxed) != 0,
                       .buffers = value(slot.buffers),
                       .no_buffers = since(slot.no_buffers, slot.zero)});
}

template <class Slot>
Copied<Slot> slot_at(std::span<const std::byte> bytes, std::size_t offset, std::size_t index) {
  return Copied<Slot>(bytes.subspan(offset + index * sizeof(Slot), sizeof(Slot)));
}

Status write_at(int file, std::size_t offset, const void* data, std::size_t bytes) {
  for (;;) {
    const ssize_t written = ::pwrite(file, data, bytes, static_cast<off_t>(offset));
    if (written == static_cast<ssize_t>(bytes)) return ok();
    if (written < 0 && errno == EINTR) continue;
    return written < 0 ? Error::last("write") : Error{EIO, "write"};
  }
}

constexpr std::size_t kControls = offsetof(VmaPageHeader, controls);

std::optional<int> pid_of_link(std::string_view name) {
  constexpr std::string_view kPrefix = kVmaLinkPrefix;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int pid = 0;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (error != std::errc() || rest != name.data() + name.size() || pid <= 0) return std::nullopt;
  return pid;
}

/// Returns the page's name, when the link leads to a page of that process in this PID namespace. The page itself is
/// checked when it is opened.
std::optional<std::string> target_of(int directory, const char* link, int pid) {
  std::array<char, 256> text;
  const ssize_t length = ::readlinkat(directory, link, text.data(), text.size());
  if (length <= 0 || static_cast<std::size_t>(length) == text.size()) return std::nullopt;
  std::string_view target(text.data(), static_cast<std::size_t>(length));
  const std::string place = std::string(kStatisticsDirectory) + "/";
  if (!target.starts_with(place)) return std::nullopt;
  target.remove_prefix(place.size());
  const auto said = parse_statistics_name(target, kVmaPagePrefix);
  if (!said || said->pid != pid || said->pid_namespace != own_pid_namespace()) return std::nullopt;
  return std::string(target);
}

bool is_link_of(int directory, const char* name, uid_t uid) {
  struct stat status {};
  return ::fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode) &&
         status.st_uid == uid;
}

}  // namespace

Result<VmaSnapshot> parse_vma_page(std::span<const std::byte> bytes) {
  if (bytes.size() < kVmaHeaderBytes) return Error{EPROTO, "statistics: short"};
  const Copied<VmaPageHeader> header(bytes.first(sizeof(VmaPageHeader)));
  if (header->magic != kVmaMagic) return Error{EPROTO, "statistics: no page"};
  if (header->version != kVmaPageVersion || header->socket_slot_bytes != sizeof(VmaSocketSlot) ||
      header->ring_slot_bytes != sizeof(VmaRingSlot))
    return Error{EPROTO, "statistics: another version"};
  const std::size_t sockets = header->sockets_used.load(std::memory_order_relaxed);
  const std::size_t rings = header->rings_used.load(std::memory_order_relaxed);
  if (sockets > kVmaMostSockets || rings > kVmaRings || bytes.size() < vma_page_bytes(0) ||
      bytes.size() - vma_page_bytes(0) < sockets * sizeof(VmaSocketSlot))
    return Error{EPROTO, "statistics: cut off"};

  VmaSnapshot out;
  out.pid = static_cast<int>(header->pid & INT32_MAX);
  out.program = printable_text(header->program);
  out.started_ns = header->started_ns;
  for (std::size_t i = 0; i < sockets; ++i) {
    if (!take_socket(*slot_at<VmaSocketSlot>(bytes, kVmaSocketsOffset, i), out))
      return Error{EPROTO, "statistics: nonsense"};
  }
  for (std::size_t i = 0; i < rings; ++i) take_ring(*slot_at<VmaRingSlot>(bytes, kVmaHeaderBytes, i), out);
  for (std::size_t i = 0; i < kVmaIomuxSlots; ++i) {
    if (!take_iomux(*slot_at<VmaIomuxSlot>(bytes, kVmaIomuxOffset, i), i, out))
      return Error{EPROTO, "statistics: nonsense"};
  }
  for (const VmaPoolSlot& pool : header->pools) take_pool(pool, out);
  std::sort(out.sockets.begin(), out.sockets.end(), [](const auto& a, const auto& b) { return a.fd < b.fd; });
  return out;
}

std::optional<VmaSocketSnapshot> snapshot_of(const VmaSocketSlot& slot) {
  VmaSocketSnapshot out;
  if (slot.identity.fd < 0 || !take_identity(slot.identity, out)) return std::nullopt;
  take_counts(slot, out);
  return out;
}

Result<VmaPage> VmaPage::open(const char* name, bool may_ask) {
  const UniqueFd directory(::open(kStatisticsDirectory, O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return Error::last(kStatisticsDirectory);
  auto file = open_statistics(directory.get(), name, kVmaPagePrefix, vma_page_bytes(kVmaMostSockets),
                              may_ask ? O_RDWR : O_RDONLY);
  if (!file) return file.error();
  return VmaPage(std::move(file->fd), file->bytes, file->name.pid);
}

Result<VmaSnapshot> VmaPage::read() const {
  auto page = read_until_settled([&]() -> Result<VmaSnapshot> {
    const auto bytes = read_statistics(file_.get(), bytes_);
    if (!bytes) return bytes.error();
    return parse_vma_page(*bytes);
  });
  if (page && page->pid != pid_) return Error{EPROTO, "statistics: another process"};
  return page;
}

Status VmaPage::ask(const VmaRequest& request, std::chrono::milliseconds wait) const {
  const auto header = read_statistics(file_.get(), sizeof(VmaPageHeader));
  if (!header) return header.error();
  if (header->size() < sizeof(VmaPageHeader)) return Error{EPROTO, "statistics: short"};
  const std::uint32_t number = Copied<VmaPageHeader>(*header)->controls.asked.load() + 1;
  const auto write = [&](std::size_t field, std::int32_t word) {
    return write_at(file_.get(), kControls + field, &word, sizeof word);
  };
  Status written = ok();
  const auto level = [](config::VmaLogLevel one) { return static_cast<std::int32_t>(one); };
  if (request.log_level) written = write(offsetof(VmaControls, log_level), level(*request.log_level));
  if (written && request.log_details) written = write(offsetof(VmaControls, log_details), *request.log_details);
  if (written && request.dump_fd) {
    written = write(offsetof(VmaControls, dump_level), level(request.dump_level));
    if (written) written = write(offsetof(VmaControls, dump_fd), *request.dump_fd);
  }
  if (written && request.trace_fd) {
    written = write(offsetof(VmaControls, trace_segments), request.trace_segments);
    if (written) written = write(offsetof(VmaControls, trace_fd), *request.trace_fd);
  }
  if (written) written = write(offsetof(VmaControls, asked), static_cast<std::int32_t>(number));
  if (!written) return written;
  const Nanos end = monotonic_now() + wait;
  for (;;) {
    std::uint32_t done = 0;
    if (::pread(file_.get(), &done, sizeof done, kControls + offsetof(VmaControls, done)) == sizeof done &&
        done == number)
      return ok();
    if (monotonic_now() >= end) return Error{ETIMEDOUT, "statistics: no answer"};
    ::poll(nullptr, 0, 1);
  }
}

Status VmaPage::zero() const {
  const auto bytes = read_statistics(file_.get(), bytes_);
  if (!bytes) return bytes.error();
  const auto page = parse_vma_page(*bytes);
  if (!page) return page.error();
  const Copied<VmaPageHeader> header(*bytes);
  Status written = ok();
  const auto put = [&](std::size_t offset, const void* data, std::size_t length) {
    if (written) written = write_at(file_.get(), offset, data, length);
  };
  const std::uint64_t nothing = 0;
  const std::size_t sockets = header->sockets_used.load(), rings = header->rings_used.load();
  for (std::size_t i = 0; i < sockets; ++i) {
    const std::size_t slot = kVmaSocketsOffset + i * sizeof(VmaSocketSlot);
    const auto now = slot_at<VmaSocketSlot>(*bytes, kVmaSocketsOffset, i);
    put(slot + offsetof(VmaSocketSlot, zero), &now->counts, sizeof now->counts);
    for (const auto most : {VmaSocketLevel::ready_packets_max, VmaSocketLevel::ready_bytes_max})
      put(slot + offsetof(VmaSocketSlot, levels) + static_cast<std::size_t>(most) * sizeof(Counter), &nothing,
          sizeof nothing);
  }
  for (std::size_t i = 0; i < rings; ++i) {
    const std::size_t slot = kVmaHeaderBytes + i * sizeof(VmaRingSlot);
    const auto now = slot_at<VmaRingSlot>(*bytes, kVmaHeaderBytes, i);
    put(slot + offsetof(VmaRingSlot, zero), &now->counts, sizeof now->counts);
    put(slot + offsetof(VmaRingSlot, levels) + static_cast<std::size_t>(VmaRingLevel::drained_max) * sizeof(Counter),
        &nothing, sizeof nothing);
  }
  for (std::size_t i = 0; i < kVmaIomuxSlots; ++i) {
    const auto now = slot_at<VmaIomuxSlot>(*bytes, kVmaIomuxOffset, i);
    put(kVmaIomuxOffset + i * sizeof(VmaIomuxSlot) + offsetof(VmaIomuxSlot, zero), &now->counts, sizeof now->counts);
  }
  for (std::size_t i = 0; i < kVmaPools; ++i) {
    const std::size_t slot = offsetof(VmaPageHeader, pools) + i * sizeof(VmaPoolSlot);
    const std::uint64_t now = value(header->pools[i].no_buffers);
    put(slot + offsetof(VmaPoolSlot, zero), &now, sizeof now);
  }
  return written;
}

std::vector<VmaLink> find_vma_pages(const char* directory, bool clean) {
  std::vector<VmaLink> out;
  const Directory opened(::opendir(directory));
  if (!opened) return out;
  const int fd = ::dirfd(opened.get());
  while (const dirent* entry = ::readdir(opened.get())) {
    const auto pid = pid_of_link(entry->d_name);
    if (!pid) continue;
    auto target = target_of(fd, entry->d_name, *pid);
    if (!target) continue;
    if (is_process_there(*pid)) {
      out.push_back({*pid, *std::move(target)});
    } else if (clean && is_link_of(fd, entry->d_name, ::geteuid())) {
      ::unlinkat(fd, entry->d_name, 0);
    }
  }
  if (clean) remove_stale_statistics({}, kVmaPagePrefix);
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return out;
}

std::vector<VmaSnapshot> read_all_vma_pages() {
  std::vector<VmaSnapshot> out;
  const Directory opened(::opendir(kStatisticsDirectory));
  if (!opened) return out;
  const std::uint64_t pid_namespace = own_pid_namespace();
  const uid_t uid = ::geteuid();
  while (const dirent* entry = ::readdir(opened.get())) {
    const auto said = parse_statistics_name(entry->d_name, kVmaPagePrefix);
    if (!said || said->pid_namespace != pid_namespace || (uid != 0 && said->uid != uid)) continue;
    const auto page = VmaPage::open(entry->d_name, false);
    if (!page) continue;
    if (auto snapshot = page->read()) out.push_back(*std::move(snapshot));
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return out;
}

}  // namespace ringsock::runtime
