#include "core/device/shm/memory/segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/file_limit.h"
#include "core/base/process_state.h"
#include "core/base/rare_calls.h"

namespace ringsock::soft {

namespace {

constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL of Linux 6.3
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

/// Returns the bytes of the rings, the lines and the table, not rounded to pages.
constexpr std::uint64_t queue_bytes(std::uint64_t ring_entries, std::uint64_t payload_bytes) {
  return payload_bytes + ring_entries * sizeof(Entry) + kArenaOffset;
}

/// Returns the offset in the inbox of the end of the ring, where the lines begin.
constexpr std::uint64_t lines_offset(const InboxLayout& layout) {
  return layout.bytes - layout.arena_bytes - kArenaOffset;
}

struct MemoryFiles {
  static constexpr ProcessPart kPart = ProcessPart::memory_files;
  std::atomic<unsigned> extra_flags{kNoExecSeal};
  /// The program has called mlockall(2) with MCL_FUTURE, or may have.
  std::atomic<bool> may_lock_all{false};
  std::atomic<unsigned> forks{0};
};

[[gnu::constructor]] void start() { process_state<MemoryFiles>(); }

UniqueFd create_memfd() {
  std::atomic<unsigned>& extra_flags = process_state<MemoryFiles>().extra_flags;
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(::memfd_create("ringsock", kFlags | extra_flags.load(std::memory_order_relaxed)));
  if (!fd && errno == EINVAL) {
    extra_flags.store(0, std::memory_order_relaxed);
    fd.reset(::memfd_create("ringsock", kFlags));
  }
  return out_of_the_way(std::move(fd));
}

/// A larger segment is mostly memory that is not used unless a peer does not read. With mlockall(2) the kernel would
/// give all of it at once.
constexpr std::uint64_t kMaxLockedBytes = std::uint64_t{1} << 20;

bool may_unlock() {
  return is_permitted(RareCall::mincore) && is_permitted(RareCall::munlock) && is_permitted(RareCall::mprotect);
}

/// Returns whether the last page of a mapping has memory, which only locked memory has that nobody has used.
bool has_last_page(std::byte* base, std::uint64_t bytes) {
  unsigned char is_there = 0;
  return ::mincore(base + bytes - kPageBytes, kPageBytes, &is_there) == 0 && (is_there & 1) != 0;
}

void* map_shared(int fd, std::uint64_t bytes, int protection) {
  return ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
}

/// Maps a segment without giving memory to it, whatever the program has locked: memory that cannot be accessed is not
/// given any.
void* map_sparse(int fd, std::uint64_t bytes) {
  std::atomic<bool>& may_lock_all = process_state<MemoryFiles>().may_lock_all;
  if (!may_lock_all.load(std::memory_order_relaxed)) {
    void* const base = map_shared(fd, bytes, PROT_READ | PROT_WRITE);
    if (base == MAP_FAILED || !has_last_page(static_cast<std::byte*>(base), bytes)) return base;
    may_lock_all.store(true, std::memory_order_relaxed);
    ::munlock(base, bytes);
    return base;
  }
  void* const base = map_shared(fd, bytes, PROT_NONE);
  if (base == MAP_FAILED) return base;
  ::munlock(base, bytes);
  if (::mprotect(base, bytes, PROT_READ | PROT_WRITE) == 0) return base;
  ::munmap(base, bytes);
  errno = ENOMEM;
  return MAP_FAILED;
}

Result<std::shared_ptr<MappedSegment>> map_whole(int fd, std::uint64_t bytes) {
  void* const base =
      bytes > kMaxLockedBytes && may_unlock() ? map_sparse(fd, bytes) : map_shared(fd, bytes, PROT_READ | PROT_WRITE);
  if (base == MAP_FAILED) return Error::last("memfd: mmap");
  return std::make_shared<MappedSegment>(static_cast<std::byte*>(base), bytes);
}

}  // namespace

MappedSegment::~MappedSegment() {
  if (bytes_ == 0) return;
  if (whole_) {
    leave_part();
  } else {
    ::munmap(base_, bytes_);
  }
}

void MappedSegment::become_part(std::shared_ptr<const void> whole) {
  whole_ = std::move(whole);
  forks_ = process_state<MemoryFiles>().forks.load(std::memory_order_relaxed);
}

void MappedSegment::note_fork() { process_state<MemoryFiles>().forks.fetch_add(1, std::memory_order_relaxed); }

/// A segment that no connection has had has no pages.
void MappedSegment::leave_part() {
  const bool has_forked = forks_ != process_state<MemoryFiles>().forks.load(std::memory_order_relaxed);
  if (first_lines_ == 0 || has_forked || !is_permitted(RareCall::madvise_remove)) return;
  if (first_producer().left.fetch_add(1, std::memory_order_acq_rel) != 0) ::madvise(base_, bytes_, MADV_REMOVE);
}

std::atomic<std::uint32_t>& MappedSegment::let_go() const { return first_producer().let_go; }

/// The state of a segment whose first inbox is not known is that of nobody.
bool MappedSegment::settle_request(RequestState as) const {
  RequestState open = RequestState::open;
  return first_lines_ == 0 || request().compare_exchange_strong(open, as, std::memory_order_acq_rel);
}

void MappedSegment::tell_first_inbox(const InboxLayout& layout) {
  if (layout.offset == 0 && check_inbox(layout, bytes_)) first_lines_ = lines_offset(layout);
}

void MappedSegment::lend() {
  is_lent_ = true;
  has_told_ = false;
}

bool MappedSegment::keep_sparse(const SparseParts& parts, bool is_read) {
  if (!is_lent_ || has_no_peer()) return false;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool is_same = parts[i].at == sparse_[i].at && parts[i].bytes == sparse_[i].bytes;
    if (!is_same && sparse_[i].memory != 0) return false;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t memory = std::max(sparse_[i].memory, round_up(parts[i].used, kPageBytes));
    sparse_[i] = {parts[i].at, parts[i].bytes, parts[i].used, memory};
  }
  has_told_ = true;
  is_read_ = is_read;
  return true;
}

void MappedSegment::sparse_is_zero() {
  for (SparsePart& part : sparse_) part.used = 0;
}

std::size_t MappedSegment::sparse_memory(const std::byte* start) const {
  for (const SparsePart& part : sparse_)
    if (base_ + part.at == start) return part.memory;
  return 0;
}

void MappedSegment::empty_sparse(bool has_let_go) {
  if (sparse_memory() == 0 || !has_told_ || (!is_read_ && !has_let_go)) return;
  if (!is_permitted(RareCall::madvise_remove)) return;
  for (const SparsePart& part : sparse_)
    if (part.memory != 0) ::madvise(base_ + part.at, part.memory, MADV_REMOVE);
}

InboxLayout plan_inbox(std::uint64_t offset, std::uint32_t ring_entries, std::uint32_t payload_bytes,
                       std::uint64_t arena_bytes) {
  InboxLayout layout{};
  layout.offset = offset;
  layout.ring_entries = std::bit_ceil(std::clamp(ring_entries, kMinRingEntries, kMaxRingEntries));
  layout.payload_bytes = std::bit_ceil(std::clamp(payload_bytes, kMinPayloadBytes, kMaxPayloadBytes));
  const std::uint64_t cold_entries = layout.ring_entries - std::min(layout.ring_entries, kHotEntries);
  const std::uint64_t hot_page = round_up(layout.payload_bytes + cold_entries * sizeof(Entry), kPageBytes);
  const std::uint64_t cold_arena = round_up(arena_bytes - std::min(arena_bytes, kHotArenaBytes), kPageBytes);
  if (arena_bytes != 0) layout.arena_bytes = kHotArenaBytes + cold_arena;
  layout.bytes = hot_page + kPageBytes + cold_arena;
  return layout;
}

Status check_inbox(const InboxLayout& layout, std::uint64_t segment_bytes) {
  const bool aligned =
      layout.offset % kPageBytes == 0 && layout.bytes % kPageBytes == 0 && layout.arena_bytes % kLineBytes == 0;
  const bool queues = std::has_single_bit(layout.ring_entries) && layout.ring_entries >= kMinRingEntries &&
                      layout.ring_entries <= kMaxRingEntries && std::has_single_bit(layout.payload_bytes) &&
                      layout.payload_bytes >= kMinPayloadBytes && layout.payload_bytes <= kMaxPayloadBytes;
  const bool inside = layout.bytes <= segment_bytes && layout.offset <= segment_bytes - layout.bytes;
  const bool fits = layout.arena_bytes <= layout.bytes &&
                    queue_bytes(layout.ring_entries, layout.payload_bytes) <= layout.bytes - layout.arena_bytes;
  if (!aligned || !queues || !inside || !fits) return Error{EPROTO, "inbox layout"};
  return ok();
}

void MappedSegment::abandon() {
  [[maybe_unused]] const void* const nobodys =
      ::mmap(base_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

Result<OwnSegment> make_segment(std::uint64_t bytes) {
  if (!may_make_file_of(bytes)) return Error{EFBIG, "memfd: RLIMIT_FSIZE"};
  UniqueFd fd = create_memfd();
  if (!fd) return Error::last("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return Error::last("memfd: ftruncate");
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return Error::last("memfd: seals");
  auto mapping = map_whole(fd.get(), bytes);
  if (!mapping) return mapping.error();
  return OwnSegment{std::move(fd), *std::move(mapping)};
}

Result<std::uint64_t> check_peer_memfd(int memfd, const MemoryName& name) {
  // Called first, because it cannot block and fails on files other than those of tmpfs and hugetlbfs.
  const int seals = ::fcntl(memfd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return Error{EPROTO, "peer's memfd: not sealed"};
  // Allocating a hugetlb page may fail, which would raise SIGBUS.
  struct statfs filesystem {};
  if (::fstatfs(memfd, &filesystem) != 0 || filesystem.f_type != TMPFS_MAGIC) {
    return Error{EPROTO, "peer's memfd: not ordinary pages"};
  }
  struct stat status {};
  if (::fstat(memfd, &status) != 0 || !S_ISREG(status.st_mode)) return Error{EPROTO, "peer's memfd: not a file"};
  if (status.st_dev != name.device || status.st_ino != name.inode) return Error{EPROTO, "peer's memfd: another one"};
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes == 0 || bytes % kPageBytes != 0) return Error{EPROTO, "peer's memfd: size"};
  return bytes;
}

Result<std::shared_ptr<MappedSegment>> map_peer_segment(UniqueFd memfd, const MemoryName& name, std::uint64_t limit) {
  const auto bytes = check_peer_memfd(memfd.get(), name);
  if (!bytes) return bytes.error();
  if (*bytes > limit) return Error{EFBIG, "peer's memfd: larger than needed"};
  auto mapping = map_whole(memfd.get(), *bytes);
  if (!mapping && mapping.error().code != ENOMEM) return Error{EPROTO, "peer's memfd: cannot be mapped"};
  return mapping;
}

InboxView::InboxView(const MappedSegment& segment, const InboxLayout& layout)
    : lines(segment.base() + layout.offset + lines_offset(layout)),
      ring_entries(layout.ring_entries),
      payload_bytes(layout.payload_bytes),
      arena_bytes(layout.arena_bytes) {}

}  // namespace ringsock::soft
