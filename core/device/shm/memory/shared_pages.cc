#include "core/device/shm/memory/shared_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/at_fork.h"
#include "core/base/file_limit.h"
#include "core/base/process_state.h"

namespace ringsock::soft {

namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;
/// The size of the file, independent of the mapping: realloc(3) may extend a mapping with mremap(2), and accessing
/// pages behind the end of a file raises SIGBUS. Untouched pages use no memory.
constexpr off_t kFileBytes = off_t{1} << 45;

UniqueFd make_file() {
  if (!may_make_file_of(kFileBytes)) return {};
  UniqueFd fd = out_of_the_way(UniqueFd(::memfd_create("ringsock-riomap", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (fd && (::ftruncate(fd.get(), kFileBytes) != 0 ||
             ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)) {
    fd.reset();
  }
  return fd;
}

int protection_of(const MemoryArea& area) {
  const std::string& letters = area.permissions;
  return (letters.find('r') != letters.npos ? PROT_READ : 0) | (letters.find('w') != letters.npos ? PROT_WRITE : 0) |
         (letters.find('x') != letters.npos ? PROT_EXEC : 0);
}

/// A part of the file and its present mapping in the application.
struct Piece {
  explicit Piece(const MemoryArea& area)
      : memory(reinterpret_cast<void*>(area.start)),
        bytes(area.end - area.start),
        offset(static_cast<off_t>(area.offset)),
        protection(protection_of(area)) {}
  void* memory;
  std::uint64_t bytes;
  off_t offset;
  int protection;
};

/// The copy of a piece for a child of fork(2).
struct Snapshot {
  Piece piece;
  void* copy;  ///< MAP_FAILED: no memory; the child then sees the pages as they are when it first writes them
  int fd;
};

struct PagesOfProcess {
  static constexpr ProcessPart kPart = ProcessPart::shared_pages;
  std::mutex lock;
  std::vector<SharedPages*> all;  ///< in no order
  std::vector<Snapshot> snapshots;
};

/// SharedPages::lock() must be held.
std::vector<SharedPages*>& all_pages() { return process_state<PagesOfProcess>().all; }

/// Makes the mapping private, atomically for other threads. mmap(2) is called by number, because a sanitizer that
/// intercepts it cannot know that.
bool see_privately(const Piece& piece, int fd) {
  constexpr int kFlags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
  return ::syscall(SYS_mmap, piece.memory, piece.bytes, piece.protection, kFlags, fd, piece.offset) != -1;
}

bool read_file(int fd, std::byte* to, std::uint64_t bytes, off_t offset) {
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd, to + done, bytes - done, offset + static_cast<off_t>(done));
    if (got <= 0) return false;
    done += static_cast<std::uint64_t>(got);
  }
  return true;
}

/// Returns anonymous memory elsewhere with the same contents and permissions, MAP_FAILED without memory.
void* copy_of(const Piece& piece, int fd) {
  void* copy = ::mmap(nullptr, piece.bytes, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return copy;
  if (read_file(fd, static_cast<std::byte*>(copy), piece.bytes, piece.offset) &&
      ::mprotect(copy, piece.bytes, piece.protection) == 0) {
    return copy;
  }
  ::munmap(copy, piece.bytes);
  return MAP_FAILED;
}

bool move_under(void* copy, const Piece& piece) {
  return ::mremap(copy, piece.bytes, piece.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, piece.memory) != MAP_FAILED;
}

/// Replaces the file's pages by private ones with the same contents and permissions. Writable memory is first mapped
/// privately, so that no thread's write is lost, and then copied page by page; other memory is copied aside.
bool make_private(const Piece& piece, int fd) {
  if ((piece.protection & PROT_WRITE) != 0) {
    return see_privately(piece, fd) && ::madvise(piece.memory, piece.bytes, MADV_POPULATE_WRITE) == 0;
  }
  void* copy = copy_of(piece, fd);
  if (copy == MAP_FAILED) return false;
  if (move_under(copy, piece)) return true;
  ::munmap(copy, piece.bytes);
  return false;
}

/// Returns a mapping with all pages present, nullptr without memory.
std::byte* map_populated(int fd, std::uint64_t bytes) {
  void* base = ::mmap(nullptr, bytes, kReadWrite, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return nullptr;
  if (::madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return static_cast<std::byte*>(base);
  ::munmap(base, bytes);
  return nullptr;
}

}  // namespace

std::mutex& SharedPages::lock() { return process_state<PagesOfProcess>().lock; }

SharedPages::SharedPages(UniqueFd memfd, const SharedPlace& place, std::uint64_t device)
    : memfd_(std::move(memfd)), place_(place), device_(device) {
  all_pages().push_back(this);
}

bool SharedPages::has_file() {
  struct stat status {};
  if (::fstat(memfd_.get(), &status) == 0 && status.st_ino == place_.inode && status.st_dev == device_) return true;
  static_cast<void>(memfd_.release());
  return false;
}

std::vector<MemoryArea> SharedPages::areas() const {
  auto out = areas_between(0, UINT64_MAX, AreaDetail::maps);
  std::erase_if(out, [this](const MemoryArea& area) {
    return area.inode != place_.inode || area.device != device_ || !area.permissions.ends_with('s');
  });
  return out;
}

std::shared_ptr<SharedPages> SharedPages::find(std::uint64_t start, std::uint64_t end) {
  for (SharedPages* pages : all_pages()) {
    const SharedPlace& place = pages->place_;
    if (!pages->has_file() || start < place.start || end > place.start + place.bytes) continue;
    const auto areas = pages->areas();
    const bool whole = std::ranges::any_of(areas, [&](const MemoryArea& area) {
      return area.permissions == "rw-s" && area.start <= start && end <= area.end &&
             area.offset == area.start - place.start;
    });
    if (whole) return pages->shared_from_this();
  }
  return nullptr;
}

/// The forking thread makes the child's copy before the fork, because the parent goes on writing afterwards.
struct SharedPages::ForkHandlers {
  static std::vector<Snapshot>& snapshots() { return process_state<PagesOfProcess>().snapshots; }

  static void prepare() {
    lock().lock();
    for (SharedPages* pages : all_pages()) {
      const int fd = pages->has_file() ? pages->memfd_.get() : -1;
      for (const MemoryArea& area : pages->areas()) {
        const Piece piece(area);
        void* const copy = fd >= 0 ? copy_of(piece, fd) : MAP_FAILED;
        pages->child_needs_file_ = pages->child_needs_file_ || copy == MAP_FAILED;
        snapshots().push_back({piece, copy, fd});
      }
    }
  }
  static void in_parent() {
    for (const Snapshot& snapshot : snapshots()) {
      if (snapshot.copy != MAP_FAILED) ::munmap(snapshot.copy, snapshot.piece.bytes);
    }
    snapshots().clear();
    lock().unlock();
  }
  static void in_child() {
    for (const Snapshot& snapshot : snapshots()) {
      if (snapshot.copy == MAP_FAILED) {
        see_privately(snapshot.piece, snapshot.fd);
      } else {
        move_under(snapshot.copy, snapshot.piece);
      }
    }
    snapshots().clear();
    for (SharedPages* pages : all_pages()) {
      if (pages->has_file()) pages->memfd_.reset();
    }
    lock().unlock();
  }
  [[gnu::constructor]] static void install() {
    process_state<PagesOfProcess>();
    at_fork(ForkStep::shared_pages, prepare, in_parent, in_child);
  }
};

std::shared_ptr<SharedPages> SharedPages::put_under(std::uint64_t start, std::uint64_t bytes, OtherWriters writers) {
  UniqueFd fd = make_file();
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return nullptr;
  std::byte* fresh = map_populated(fd.get(), bytes);
  if (fresh == nullptr) return nullptr;
  const SharedPlace place{start, bytes, status.st_ino, static_cast<std::uint32_t>(fd.get())};
  // Constructed before the exchange, because a page of the application may be one that we allocate from.
  auto out = std::make_shared<SharedPages>(std::move(fd), place, status.st_dev);
  if (Status swapped = swap_pages(reinterpret_cast<std::byte*>(start), fresh, out->memfd_.get(), bytes, writers);
      !swapped) {
    ::munmap(fresh, bytes);
    return nullptr;
  }
  return out;
}

/// Makes the pages private, wherever the application has them now and whatever their permissions. The file's pages are
/// freed last, and only when nothing refers to them. The memory then behaves as anonymous memory, also for an allocator
/// that expects zeros after madvise(2).
SharedPages::~SharedPages() {
  std::erase(all_pages(), this);
  const int saved_errno = errno;
  if (has_file()) {
    bool all_private = true;
    for (const MemoryArea& area : areas()) all_private = make_private(Piece(area), memfd_.get()) && all_private;
    // Another thread may have moved or split a mapping meanwhile.
    if (all_private && !child_needs_file_ && areas().empty()) {
      ::fallocate(memfd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kFileBytes);
    }
  }
  errno = saved_errno;
}

}  // namespace ringsock::soft
