#include "core/device/shm/memory/peer_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "core/device/shm/link/open_memory.h"

namespace ringsock::soft {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_SEAL;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 40;

}  // namespace

Result<std::unique_ptr<MappedSegment>> map_memory_of(pid_t process, const SharedPlace& place) {
  if (place.bytes == 0 || place.bytes % kPageBytes != 0 || place.bytes > kMaxBytes || place.fd > INT32_MAX) {
    return Error{EPROTO, "peer's memory: size"};
  }
  auto file = open_memory_of(process, place.fd, place.inode);
  if (!file) return file.error();
  const int seals = ::fcntl(file->get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return Error{EPROTO, "peer's memory: not sealed"};
  struct stat status {};
  if (::fstat(file->get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) < place.bytes) {
    return Error{EPROTO, "peer's memory: smaller than it said"};
  }
  void* base = ::mmap(nullptr, place.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
  if (base == MAP_FAILED) return Error::last("peer's memory: mmap");
  return std::make_unique<MappedSegment>(static_cast<std::byte*>(base), place.bytes);
}

/// The file belongs to the right process, because that process has the mark both before and after the file is opened by
/// its pid.
void PeerMemory::map(PeerSpace& space) {
  const pid_t process = space.find(mark_);
  if (process == 0) return;
  auto mapped = map_memory_of(process, place_);
  if (mapped && space.still_has(mark_)) mapping_ = *std::move(mapped);
}

std::byte* PeerMemory::find(PeerSpace& space, const SpaceMark& mark, const SharedPlace& place, std::uint64_t address,
                            std::uint64_t length) {
  if (place != place_ || mark != mark_) {
    place_ = place;
    mark_ = mark;
    mapping_.reset();
    if (place.inode != 0) map(space);
  }
  const std::uint64_t skip = address - place_.start;
  if (!mapping_ || address < place_.start || length > place_.bytes || skip > place_.bytes - length) return nullptr;
  return mapping_->base() + skip;
}

}  // namespace ringsock::soft
