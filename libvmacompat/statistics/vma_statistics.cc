#include "libvmacompat/statistics/vma_statistics.h"

#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string_view>

#include "core/base/at_fork.h"
#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/poll/process_waits.h"
#include "core/statistics/statistics_file.h"
#include "libvmacompat/statistics/vma_page_reader.h"

namespace ringsock::runtime {

namespace {

/// Size of the step by which socket slots get memory. The header and the rings get theirs together with the first step.
constexpr std::size_t kStepBytes = 8192;

std::byte* at(VmaPageHeader* header, std::size_t offset) { return reinterpret_cast<std::byte*>(header) + offset; }
VmaRingSlot* rings_of(VmaPageHeader* header) { return reinterpret_cast<VmaRingSlot*>(at(header, kVmaHeaderBytes)); }
VmaIomuxSlot* iomux_of(VmaPageHeader* header) { return reinterpret_cast<VmaIomuxSlot*>(at(header, kVmaIomuxOffset)); }
VmaSocketSlot* sockets_of(VmaPageHeader* header) {
  return reinterpret_cast<VmaSocketSlot*>(at(header, kVmaSocketsOffset));
}

template <class Slot>
void clear_counts(Slot& slot) {
  for (auto* const counters : {&slot.counts, &slot.zero}) {
    for (Counter& counter : *counters) counter.store(0, std::memory_order_relaxed);
  }
}
template <class Slot>
void clear(Slot& slot) {
  clear_counts(slot);
  for (Counter& level : slot.levels) level.store(0, std::memory_order_relaxed);
}

void be_unchanged(VmaControls& controls) {
  for (auto* const one : {&controls.log_level, &controls.log_details, &controls.dump_fd, &controls.dump_level,
                          &controls.trace_fd, &controls.trace_segments})
    one->store(kVmaUnchanged, std::memory_order_relaxed);
}

/// Takes a request's field, and resets it. Returns kVmaUnchanged for values that are out of range.
int take(std::atomic<std::int32_t>& field, int least, int most) {
  const int value = field.exchange(kVmaUnchanged, std::memory_order_relaxed);
  return value >= least && value <= most ? value : kVmaUnchanged;
}

bool is_own_leftover(const char* path) {
  struct stat status {};
  return ::lstat(path, &status) == 0 && (S_ISLNK(status.st_mode) || S_ISREG(status.st_mode)) &&
         status.st_uid == ::geteuid();
}

template <std::size_t N>
std::uint32_t first_free(const std::array<bool, N>& taken, std::uint32_t count) {
  return static_cast<std::uint32_t>(std::find(taken.begin(), taken.begin() + count, false) - taken.begin());
}

}  // namespace

constinit VmaStatistics vma_statistics;

namespace {
[[gnu::constructor]] void prepare_vma_statistics() {
  vma_statistics.at_load(::program_invocation_short_name);
  at_fork(ForkStep::vma_statistics, nullptr, nullptr, [] { vma_statistics.after_fork_in_child(); });
}
[[gnu::destructor]] void finish_vma_statistics() { vma_statistics.at_exit(); }
}  // namespace

// -- slots -----------------------------------------------------------------------------------------

template <class Slot>
VmaSlot<Slot>::VmaSlot() : slot_(vma_statistics.open(static_cast<Slot*>(nullptr))) {
  if (slot_ != nullptr) return;
  own_ = std::make_unique<Slot>();
  slot_ = own_.get();
}
template <class Slot>
VmaSlot<Slot>::~VmaSlot() {
  if (!own_) vma_statistics.close(*slot_);
}
template class VmaSlot<VmaSocketSlot>;
template class VmaSlot<VmaRingSlot>;

void VmaStatistics::at_load(const char* program) {
  std::snprintf(program_.data(), program_.size(), "%s", program);
  hold_across_fork(lock_);
}

void VmaStatistics::describe(VmaSocketSlot& slot, const VmaSocketDescription& description) {
  const std::lock_guard guard(lock_);
  change_identity(slot.identity, [&](VmaSocketIdentity& out) {
    out.fd = description.fd;
    out.inode = description.inode;
    out.is_tcp = description.is_tcp ? 1 : 0;
    out.is_offloaded = description.is_offloaded ? 1 : 0;
    out.is_blocking = description.is_blocking ? 1 : 0;
    out.multicast_loop = description.multicast_loop ? 1 : 0;
    out.local = slot_address(description.local);
    out.peer = slot_address(description.peer);
    out.multicast_interface = slot_address(description.multicast_interface);
    out.ring_user_id_rx = description.ring_user_id_rx;
    out.ring_user_id_tx = description.ring_user_id_tx;
    const std::size_t groups = std::min(description.groups.size(), kVmaGroups);
    out.groups_used = static_cast<std::uint32_t>(groups);
    for (std::size_t i = 0; i < groups; ++i) out.groups[i] = slot_address(description.groups[i]);
  });
}

VmaSocketSlot* VmaStatistics::open(VmaSocketSlot* /*kind*/) {
  const std::lock_guard guard(lock_);
  VmaPageHeader* const header = header_locked();
  if (header == nullptr) return nullptr;
  if (forked_) show_locked();
  const std::uint32_t index = first_free(socket_taken_, sockets_);
  if (index == sockets_ || !reserve_locked(vma_page_bytes(index + 1))) return nullptr;
  socket_taken_[index] = true;
  VmaSocketSlot& slot = sockets_of(header)[index];
  clear(slot);
  slot.identity.fd = -1;
  sockets_used_ = std::max(sockets_used_, index + 1);
  header->sockets_used.store(sockets_used_, std::memory_order_release);
  return &slot;
}

VmaRingSlot* VmaStatistics::open(VmaRingSlot* /*kind*/) {
  const std::lock_guard guard(lock_);
  VmaPageHeader* const header = header_locked();
  const std::uint32_t index = first_free(ring_taken_, kVmaRings);
  if (header == nullptr || index == kVmaRings) return nullptr;
  ring_taken_[index] = true;
  VmaRingSlot& slot = rings_of(header)[index];
  clear(slot);
  slot.used.store(1, std::memory_order_relaxed);
  rings_used_ = std::max(rings_used_, index + 1);
  header->rings_used.store(rings_used_, std::memory_order_release);
  return &slot;
}

void VmaStatistics::close(VmaSocketSlot& slot) {
  const std::lock_guard guard(lock_);
  change_identity(slot.identity, [](VmaSocketIdentity& identity) { identity.fd = -1; });
  socket_taken_[static_cast<std::size_t>(&slot - sockets_of(header_))] = false;
}

void VmaStatistics::close(VmaRingSlot& slot) {
  const std::lock_guard guard(lock_);
  slot.used.store(0, std::memory_order_relaxed);
  ring_taken_[static_cast<std::size_t>(&slot - rings_of(header_))] = false;
}

static_assert(WaitCounters::kSelect == kVmaSelectSlot && WaitCounters::kPoll == kVmaPollSlot);

int VmaStatistics::open_epoll(int epoll_fd) {
  const std::lock_guard guard(lock_);
  const std::uint32_t index = first_free(iomux_taken_, kVmaIomuxSlots);
  if (header_ == nullptr || index == kVmaIomuxSlots) return kNowhere;
  iomux_taken_[index] = true;
  VmaIomuxSlot& slot = iomux_of(header_)[index];
  clear_counts(slot);
  slot.epoll_fd = epoll_fd;
  slot.used.store(1, std::memory_order_release);
  return static_cast<int>(index);
}

void VmaStatistics::close_epoll(int slot) {
  const std::lock_guard guard(lock_);
  iomux_of(header_)[slot].used.store(0, std::memory_order_relaxed);
  iomux_taken_[static_cast<std::size_t>(slot)] = false;
}

void VmaStatistics::count(int slot, const Result<int>& ready, const WaitTally& tally) {
  VmaIomuxSlot& counts = iomux_of(header_)[slot];
  if (tally.slept) add_relaxed(counts[VmaIomuxCount::poll_misses], 1);
  if (tally.polling_percent) counts.polling_percent.store(*tally.polling_percent, std::memory_order_relaxed);
  if (!ready) {
    add_relaxed(counts[VmaIomuxCount::errors], 1);
  } else if (*ready == 0) {
    add_relaxed(counts[VmaIomuxCount::timeouts], 1);
  } else {
    // select(2) counts a descriptor once for each set that holds it.
    const int from_endpoints = std::min(*ready, tally.from_endpoints);
    add_relaxed(counts[VmaIomuxCount::offloaded_ready], static_cast<std::uint64_t>(from_endpoints));
    add_relaxed(counts[VmaIomuxCount::os_ready], static_cast<std::uint64_t>(*ready - from_endpoints));
    if (!tally.slept && from_endpoints > 0) add_relaxed(counts[VmaIomuxCount::poll_hits], 1);
  }
}

void VmaStatistics::show_pool(std::size_t index, bool is_rx, std::uint64_t buffers, std::uint64_t no_buffers) {
  const std::lock_guard guard(lock_);
  if (header_ == nullptr || index >= kVmaPools) return;
  VmaPoolSlot& slot = header_->pools[index];
  slot.buffers.store(buffers, std::memory_order_relaxed);
  slot.no_buffers.store(no_buffers, std::memory_order_relaxed);
  slot.is_rx.store(is_rx ? 1 : 0, std::memory_order_relaxed);
  slot.used.store(1, std::memory_order_relaxed);
}

void VmaStatistics::show_pools(std::size_t count) {
  const std::lock_guard guard(lock_);
  for (std::size_t i = count; header_ != nullptr && i < kVmaPools; ++i)
    header_->pools[i].used.store(0, std::memory_order_relaxed);
}

// -- requests --------------------------------------------------------------------------------------

Result<int> VmaStatistics::asked_fd() {
  const std::lock_guard guard(lock_);
  if (asked_fd_ >= 0) return asked_fd_;
  if (header_locked() != nullptr && forked_) show_locked();
  if (path_[0] == '\0') return Error{ENOENT, "statistics"};
  UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!watch) return Error::last("inotify_init1");
  if (::inotify_add_watch(watch.get(), path_.data(), IN_MODIFY) < 0) return Error::last("inotify_add_watch");
  asked_fd_ = out_of_the_way(std::move(watch)).release();
  return asked_fd_;
}

std::optional<VmaAsked> VmaStatistics::take_asked() {
  const std::lock_guard guard(lock_);
  std::array<std::byte, 4096> events;
  while (asked_fd_ >= 0 && ::read(asked_fd_, events.data(), events.size()) > 0) {
  }
  if (header_ == nullptr) return std::nullopt;
  VmaControls& controls = header_->controls;
  // `asked` is written last: before that, a request may be incomplete.
  VmaAsked out{.number = controls.asked.load(std::memory_order_acquire)};
  if (out.number == taken_) return std::nullopt;
  taken_ = out.number;
  constexpr int kLeastLevel = -1, kMostLevel = 8, kMostDetails = 3;
  out.log_level = take(controls.log_level, kLeastLevel, kMostLevel);
  out.log_details = take(controls.log_details, 0, kMostDetails);
  out.dump_fd = take(controls.dump_fd, 0, INT32_MAX);
  out.dump_level = take(controls.dump_level, kLeastLevel, kMostLevel);
  out.trace_fd = take(controls.trace_fd, 0, INT32_MAX);
  out.trace_segments = take(controls.trace_segments, 1, kVmaMostTraced);
  return out;
}

void VmaStatistics::answer(std::uint32_t number) {
  const std::lock_guard guard(lock_);
  if (header_ != nullptr) header_->controls.done.store(number, std::memory_order_release);
}

Result<VmaSnapshot> VmaStatistics::snapshot() {
  std::vector<std::byte> copy;
  {
    const std::lock_guard guard(lock_);
    if (header_ == nullptr) return Error{ENOENT, "statistics"};
    copy.resize(used_bytes());
    // Copied word by word, because the owners of the counters go on counting.
    const auto* const words = reinterpret_cast<const std::uint64_t*>(header_);
    for (std::size_t at = 0; at + sizeof *words <= copy.size(); at += sizeof *words) {
      const std::uint64_t word = __atomic_load_n(words + at / sizeof *words, __ATOMIC_RELAXED);
      std::memcpy(&copy[at], &word, sizeof word);
    }
  }
  return parse_vma_page(copy);
}

std::string VmaStatistics::path() {
  const std::lock_guard guard(lock_);
  return path_.data();
}

// -- the memory of the page ------------------------------------------------------------------------

void VmaStatistics::configure(const std::string& directory, std::uint32_t sockets) {
  const std::lock_guard guard(lock_);
  if (directory.empty() || directory.size() >= directory_.size()) return;
  std::snprintf(directory_.data(), directory_.size(), "%s", directory.c_str());
  sockets_ = std::min(sockets, kVmaMostSockets);
  wanted_ = true;
}

std::size_t VmaStatistics::used_bytes() const { return vma_page_bytes(sockets_used_); }

void VmaStatistics::fill_header(VmaPageHeader& header) const {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  header.magic = kVmaMagic;
  header.version = kVmaPageVersion;
  header.socket_slot_bytes = sizeof(VmaSocketSlot);
  header.ring_slot_bytes = sizeof(VmaRingSlot);
  header.pid = static_cast<std::uint32_t>(::getpid());
  header.sockets = sockets_;
  header.started_ns = now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
  header.program = program_;
  header.sockets_used.store(sockets_used_, std::memory_order_relaxed);
  header.rings_used.store(rings_used_, std::memory_order_relaxed);
  be_unchanged(header.controls);
}

VmaPageHeader* VmaStatistics::header_locked() {
  if (header_ != nullptr || !wanted_) return header_;
  header_ = static_cast<VmaPageHeader*>(map_private_statistics(bytes()));
  if (header_ == nullptr) {
    wanted_ = false;
    return nullptr;
  }
  fill_header(*header_);
  for (const std::size_t index : {kVmaSelectSlot, kVmaPollSlot}) iomux_of(header_)[index].used.store(1);
  show_locked();
  process_waits().counters.store(this, std::memory_order_release);
  return header_;
}

bool VmaStatistics::reserve_locked(std::size_t end) {
  if (path_[0] == '\0' || end <= ready_) return true;
  end = std::min(end + kStepBytes, bytes());
  if (!reserve_statistics(header_, ready_, end)) return false;
  ready_ = end;
  return true;
}

void VmaStatistics::show_locked() {
  forked_ = false;
  const int saved_errno = errno;
  if (auto file = create_statistics_file(bytes(), kVmaPagePrefix)) {
    if (map_file_locked(file->fd.get())) {
      path_ = file->path;
      remove_stale_statistics(path_.data(), kVmaPagePrefix);
      link_locked();
    } else {
      ::unlink(file->path.data());
    }
  }
  errno = saved_errno;
}

/// Maps the file in place of the private memory, with the same contents.
bool VmaStatistics::map_file_locked(int fd) {
  const std::size_t ready = std::min(used_bytes() + kStepBytes, bytes());
  if (!show_statistics(header_, bytes(), used_bytes(), ready, fd)) return false;
  ready_ = ready;
  return true;
}

/// Makes the link under the name that VMA uses. Replaces a link that an earlier process with this pid has left.
void VmaStatistics::link_locked() {
  const char* const slash = std::string_view(directory_.data()).ends_with('/') ? "" : "/";
  std::snprintf(link_.data(), link_.size(), "%s%s%s%d", directory_.data(), slash, kVmaLinkPrefix, ::getpid());
  if (::symlink(path_.data(), link_.data()) == 0) return;
  if (errno == EEXIST && is_own_leftover(link_.data()) && ::unlink(link_.data()) == 0 &&
      ::symlink(path_.data(), link_.data()) == 0)
    return;
  log_info("vma_stats will not find this process: %s: %s", link_.data(), std::strerror(errno));
  link_ = {};
}

// -- fork and exit ---------------------------------------------------------------------------------

void VmaStatistics::after_fork_in_child() {
  if (asked_fd_ >= 0) ::close(asked_fd_);
  asked_fd_ = -1;
  taken_ = 0;
  path_ = {};
  link_ = {};
  if (header_ != nullptr) {
    forked_ = true;
    // Maps fresh memory at the same addresses: the same sockets, with counters from zero.
    if (auto* const fresh = static_cast<VmaPageHeader*>(map_private_statistics(bytes()))) {
      fill_header(*fresh);
      for (std::uint32_t i = 0; i < sockets_used_; ++i)
        std::memcpy(static_cast<void*>(&sockets_of(fresh)[i].identity), &sockets_of(header_)[i].identity,
                    sizeof(VmaSocketIdentity));
      for (std::size_t i = 0; i < kVmaIomuxSlots; ++i) {
        iomux_of(fresh)[i].epoll_fd = iomux_of(header_)[i].epoll_fd;
        iomux_of(fresh)[i].used.store(iomux_of(header_)[i].used.load());
      }
      replace_statistics(header_, bytes(), fresh, used_bytes());
    }
  }
}

void VmaStatistics::at_exit() noexcept {
  const std::unique_lock guard(lock_, std::try_to_lock);
  // Does nothing when a signal handler exits during a change, nor in a child that shares its parent's memory.
  if (!guard || header_ == nullptr || header_->pid != static_cast<std::uint32_t>(::getpid())) return;
  if (link_[0] != '\0') ::unlink(link_.data());
  if (path_[0] != '\0') ::unlink(path_.data());
  link_ = {};
  path_ = {};
}

}  // namespace ringsock::runtime
