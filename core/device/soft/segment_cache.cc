#include "core/device/soft/segment_cache.h"
#include "core/base/at_fork.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/rare_calls.h"

namespace ringsock::soft {

namespace {

/// How many descriptors may be spent on keeping segments: a process that has few needs them for itself.
std::size_t descriptor_allowance() {
  constexpr rlim_t kShare = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur / kShare, SegmentCache::kMaxKept));
}

/// Zeroes what was ever written, which the kernel knows also of pages that it has swapped out. Not the rest, whose
/// first touch is dear. False when the kernel does not tell.
bool zero_touched(const UniqueFd& memfd, const MappedSegment& mapping) {
  const auto end = static_cast<off_t>(mapping.bytes());
  for (off_t at = 0; at < end;) {
    const off_t data = ::lseek(memfd.get(), at, SEEK_DATA);
    if (data < 0) return errno == ENXIO;
    // After a short connection single pages were touched here and there: only for the second in a row it pays to ask
    // how many there are.
    const off_t hole = data == at && at != 0 ? ::lseek(memfd.get(), data, SEEK_HOLE) : data + off_t{kPageBytes};
    if (data < at || hole <= data || hole > end) return false;
    std::memset(mapping.base() + data, 0, static_cast<std::size_t>(hole - data));
    at = hole;
  }
  return true;
}

}  // namespace

/// What a connection holds of the cache: its end is the return.
struct SegmentCache::MadeLoan {
  SegmentCache& cache;
  Kept kept;
  ~MadeLoan() { cache.take_back_made(std::move(kept)); }
};
struct SegmentCache::GivenLoan {
  SegmentCache& cache;
  Kept kept;
  ~GivenLoan() { cache.take_back_given(std::move(kept)); }
};

SegmentCache::Made SegmentCache::lend_made(Kept kept, bool reused) {
  MappedSegment* const mapping = kept.mapping.get();
  const std::shared_ptr<MadeLoan> loan(new MadeLoan{*this, std::move(kept)});
  const Inode inode = loan->kept.inode;
  const MemoryName name{inode.device, inode.number, static_cast<std::uint32_t>(loan->kept.memfd.fd.get()), 0};
  return {{loan, mapping}, {loan, &loan->kept.memfd.fd}, name, reused};
}

std::shared_ptr<MappedSegment> SegmentCache::lend_given(Kept kept) {
  MappedSegment* const mapping = kept.mapping.get();
  const std::shared_ptr<GivenLoan> loan(new GivenLoan{*this, std::move(kept)});
  return {loan, mapping};
}

SegmentCache::Inode SegmentCache::inode_of(const UniqueFd& fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

bool SegmentCache::restore(const Kept& kept) {
  return kept.memfd.is_still_ours() && zero_touched(kept.memfd.fd, *kept.mapping);
}

Result<SegmentCache::Made> SegmentCache::make(std::uint64_t bytes, std::optional<PeerProcess> peer) {
  List found, dropped;
  bool keep = peer && bytes <= kMaxKeptBytes;
  unsigned forks = 0;
  if (keep) {
    const std::lock_guard guard(lock_);
    forks = forks_;
    const auto fits = [&](const Kept& kept) {
      return kept.peer == *peer && kept.mapping->bytes() == bytes &&
             kept.mapping->let_go().load(std::memory_order_acquire) != 0;
    };
    const auto place = std::find_if(made_.begin(), made_.end(), fits);
    if (place != made_.end()) {
      place->forks = forks;
      found.splice(found.end(), made_, place);
    } else {
      keep = reserve_place(dropped);
    }
  }
  // If that fails, its place goes to a new one.
  if (!found.empty() && restore(found.front())) return lend_made(std::move(found.front()), true);
  auto fresh = make_segment(bytes);
  if (!fresh) {
    const std::lock_guard guard(lock_);
    if (keep) --made_places_;
    return fresh.error();
  }
  const Inode inode = inode_of(fresh->memfd);
  if (!keep) {
    const MemoryName name{inode.device, inode.number, static_cast<std::uint32_t>(fresh->memfd.get()), 0};
    return Made{std::move(fresh->mapping), std::make_shared<const UniqueFd>(std::move(fresh->memfd)), name, false};
  }
  KeptDescriptor memfd(std::move(fresh->memfd), inode);
  return lend_made({std::move(fresh->mapping), std::move(memfd), *peer, inode, forks}, false);
}

/// Under the lock: room for one more descriptor, if need be in the place of the one that was idle longest.
bool SegmentCache::reserve_place(List& dropped) {
  if (made_places_ < descriptor_allowance()) {
    ++made_places_;
    return true;
  }
  if (made_.empty()) return false;
  dropped.splice(dropped.end(), made_, std::prev(made_.end()));
  return true;
}

void SegmentCache::take_back_made(Kept kept) {
  List dropped;
  dropped.push_back(std::move(kept));
  const std::lock_guard guard(lock_);
  if (dropped.front().forks == forks_ && !dropped.front().mapping->has_no_peer()) {
    made_.splice(made_.begin(), dropped);
    drop_oldest_of_dead(made_, dropped);
  }
  made_places_ -= dropped.size();
}

std::shared_ptr<MappedSegment> SegmentCache::find(const MemoryName& name, PeerProcess maker) {
  const Inode inode{static_cast<dev_t>(name.device), static_cast<ino_t>(name.inode)};
  const std::lock_guard guard(lock_);
  const auto is_it = [&](const Kept& kept) { return kept.inode == inode && kept.peer == maker; };
  const auto place = std::find_if(given_.begin(), given_.end(), is_it);
  if (place == given_.end()) return nullptr;
  Kept kept = std::move(*place);
  given_.erase(place);
  kept.forks = forks_;
  return lend_given(std::move(kept));
}

Result<std::shared_ptr<MappedSegment>> SegmentCache::map(UniqueFd memfd, const MemoryName& name, std::uint64_t limit,
                                                         std::optional<PeerProcess> maker) {
  unsigned forks = 0;
  {
    const std::lock_guard guard(lock_);
    forks = forks_;
  }
  auto mapped = map_peer_segment(std::move(memfd), name, limit);
  if (!mapped || !maker) return mapped;
  const Inode inode{static_cast<dev_t>(name.device), static_cast<ino_t>(name.inode)};
  return lend_given({std::move(*mapped), {}, *maker, inode, forks});
}

bool SegmentCache::is_of_own_user(const Kept& kept) { return kept.peer.uid == ::geteuid(); }

void SegmentCache::take_back_given(Kept kept) {
  List dropped;
  dropped.push_back(std::move(kept));
  const std::lock_guard guard(lock_);
  Kept& back = dropped.front();
  // A child of a fork may still read and write here.
  if (back.forks != forks_) return;
  const bool keep = back.mapping->bytes() <= kMaxKeptBytes && !back.mapping->has_no_peer();
  if (keep || is_of_own_user(back)) back.mapping->let_go().store(1, std::memory_order_release);
  if (!keep) return;
  given_.splice(given_.begin(), dropped);
  drop_oldest_of_dead(given_, dropped);
  if (given_.size() <= kMaxKept) return;
  withdraw_let_go(given_.back());
  dropped.splice(dropped.end(), given_, std::prev(given_.end()));
}

/// Before a mapping is given up: its maker need not offer what would be refused.
void SegmentCache::withdraw_let_go(const Kept& kept) {
  if (!is_of_own_user(kept)) kept.mapping->let_go().store(0, std::memory_order_release);
}

void SegmentCache::forget(PeerProcess peer) {
  List dropped;
  const std::lock_guard guard(lock_);
  for (auto place = made_.begin(); place != made_.end();) {
    const auto next = std::next(place);
    if (place->peer == peer) {
      --made_places_;
      dropped.splice(dropped.end(), made_, place);
    }
    place = next;
  }
}

/// One at each return, so that what dead processes leave behind goes away with the traffic of others.
void SegmentCache::drop_oldest_of_dead(List& idle, List& dropped) {
  const PeerProcess oldest = idle.back().peer;
  if (oldest == idle.front().peer || oldest.pid == kAnyProcess || !is_permitted(RareCall::kill)) return;
  const int saved_errno = errno;
  if (::kill(oldest.pid, 0) != 0 && errno == ESRCH) dropped.splice(dropped.end(), idle, std::prev(idle.end()));
  errno = saved_errno;
}

std::size_t SegmentCache::idle() {
  const std::lock_guard guard(lock_);
  return made_.size() + given_.size();
}

void SegmentCache::clear() {
  List dropped;
  const std::lock_guard guard(lock_);
  clear_locked(dropped);
}

void SegmentCache::clear_locked(List& dropped) {
  for (const Kept& kept : given_) withdraw_let_go(kept);
  made_places_ -= made_.size();
  dropped.splice(dropped.end(), made_);
  dropped.splice(dropped.end(), given_);
}

void SegmentCache::before_fork() {
  lock_.lock();
  List dropped;
  clear_locked(dropped);
}

void SegmentCache::after_fork() {
  ++forks_;
  lock_.unlock();
}

SegmentCache& segment_cache() {
  static auto* const instance = new SegmentCache;
  return *instance;
}

namespace {
[[gnu::constructor]] void install_fork_handlers() {
  segment_cache();
  at_fork([] { segment_cache().before_fork(); }, [] { segment_cache().after_fork(); },
          [] { segment_cache().after_fork(); });
}
}  // namespace

}  // namespace ringsock::soft
