#include "core/device/shm/memory/ready_maps.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "core/base/at_fork.h"
#include "core/device/shm/link/open_memory.h"

namespace ringsock::soft {

namespace {

constexpr std::uint64_t kMapBytes = (sizeof(ReadyBits) + kPageBytes - 1) / kPageBytes * kPageBytes;

ReadyBits& bits_in(const MappedSegment& segment) { return *reinterpret_cast<ReadyBits*>(segment.base()); }

}  // namespace

// -- our own

Result<std::shared_ptr<ReadyMap>> OwnReadyMap::make() {
  auto segment = make_segment(kMapBytes);
  if (!segment) return segment.error();
  return std::shared_ptr<ReadyMap>(std::make_shared<OwnReadyMap>(*std::move(segment)));
}

OwnReadyMap::OwnReadyMap(OwnSegment segment) : ReadyMap(bits_in(*segment.mapping)), segment_(std::move(segment)) {
  struct stat status {};
  ::fstat(segment_.memfd.get(), &status);
  name_ = {status.st_dev, status.st_ino, static_cast<std::uint32_t>(segment_.memfd.get()), 0};
}

OwnReadyMap::~OwnReadyMap() {
  if (memfd() < 0) static_cast<void>(segment_.memfd.release());
}

int OwnReadyMap::memfd() const {
  struct stat status {};
  const int saved_errno = errno;
  const bool is_ours =
      ::fstat(segment_.memfd.get(), &status) == 0 && status.st_dev == name_.device && status.st_ino == name_.inode;
  errno = saved_errno;
  return is_ours ? segment_.memfd.get() : -1;
}

// -- other processes'

std::shared_ptr<ReadyBits> PeerReadyMaps::find(const MemoryName& name, uid_t owner) {
  const std::lock_guard guard(lock_);
  const auto found = std::ranges::find_if(known_, [&](const Known& known) {
    return known.inode == name.inode && known.device == name.device && known.owner == owner;
  });
  if (found == known_.end()) return nullptr;
  known_.splice(known_.begin(), known_, found);
  return found->bits;
}

Result<std::shared_ptr<ReadyBits>> PeerReadyMaps::open(const MemoryName& name, PeerProcess process) {
  auto memfd = open_memory_of(process.pid, name.descriptor, name.inode);
  if (!memfd) return memfd.error();
  return add(*std::move(memfd), name, process.uid);
}

Result<std::shared_ptr<ReadyBits>> PeerReadyMaps::add(UniqueFd memfd, const MemoryName& name, uid_t owner) {
  const auto bytes = check_peer_memfd(memfd.get(), name);
  if (!bytes) return bytes.error();
  if (*bytes != kMapBytes) return Error{EPROTO, "peer's map: size"};
  std::list<Known> dropped;
  const std::lock_guard guard(lock_);
  if (!make_room(owner, dropped)) return Error{ENOSPC, "peer's map: too many"};
  auto mapped = map_peer_segment(std::move(memfd), name, kMapBytes);
  if (!mapped) return mapped.error();
  ReadyBits& bits = bits_in(**mapped);
  known_.push_front({name.device, name.inode, owner, {*std::move(mapped), &bits}});
  return known_.front().bits;
}

/// Gives up maps that no connection uses, the least recently found first, as far as the limits demand it.
bool PeerReadyMaps::make_room(uid_t owner, std::list<Known>& dropped) {
  const auto of_owner = [&] { return std::ranges::count(known_, owner, &Known::owner); };
  const bool is_stranger = owner != ::geteuid();
  const auto is_full = [&] {
    return known_.size() >= kMax || (is_stranger && of_owner() >= static_cast<std::ptrdiff_t>(kMaxOfAStranger));
  };
  for (auto place = known_.end(); is_full() && place != known_.begin();) {
    --place;
    if (place->bits.use_count() > 1 || (known_.size() < kMax && place->owner != owner)) continue;
    const auto next = std::next(place);
    dropped.splice(dropped.end(), known_, place);
    place = next;
  }
  return !is_full();
}

bool PeerReadyMaps::may_try(const MemoryName& name, Nanos now) {
  constexpr Nanos kAnswerTime{20'000'000};
  const std::lock_guard guard(lock_);
  const auto found = std::ranges::find(tried_, name.inode, &Tried::inode);
  if (found != tried_.end() && now - found->at < kAnswerTime) return false;
  if (found != tried_.end()) tried_.erase(found);
  tried_.push_front({name.inode, now});
  if (tried_.size() > kMax) tried_.pop_back();
  return true;
}

void PeerReadyMaps::survive_fork() { hold_across_fork(lock_); }

namespace {
[[gnu::constructor]] void start() { peer_ready_maps().survive_fork(); }
}  // namespace

}  // namespace ringsock::soft
