#include "core/device/shm/memory/segment_cache.h"
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

/// Returns how many descriptors may be used for kept segments: fewer where RLIMIT_NOFILE is small.
std::size_t descriptor_allowance() {
  constexpr rlim_t kShare = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur / kShare, SegmentCache::kMaxKept));
}

}  // namespace

/// A connection's loan of a segment, which its destruction returns to the cache. The element moves between the lists of
/// the cache and the loan, so that the return needs no memory.
struct SegmentCache::MadeLoan {
  SegmentCache& cache;
  List kept;               ///< at most one
  bool has_place = false;  ///< counted in made_places_
  unsigned forks = 0;      ///< when the loan began
  explicit MadeLoan(SegmentCache& lender) : cache(lender) {}
  MadeLoan(const MadeLoan&) = delete;
  MadeLoan& operator=(const MadeLoan&) = delete;
  ~MadeLoan() {
    if (has_place && cache.take_back_made(kept)) empty_sparse(kept);
  }
};
struct SegmentCache::GivenLoan {
  SegmentCache& cache;
  List kept;  ///< one, as soon as it is lent
  explicit GivenLoan(SegmentCache& lender) : cache(lender) {}
  GivenLoan(const GivenLoan&) = delete;
  GivenLoan& operator=(const GivenLoan&) = delete;
  ~GivenLoan() {
    if (!kept.empty()) cache.take_back_given(kept);
  }
};

SegmentCache::Made SegmentCache::lend_made(const std::shared_ptr<MadeLoan>& loan, bool reused) {
  const Kept& kept = loan->kept.front();
  kept.mapping->lend();
  const MemoryName name{kept.inode.device, kept.inode.number, static_cast<std::uint32_t>(kept.memfd.fd.get()), 0};
  return {{loan, kept.mapping.get()}, {loan, &kept.memfd.fd}, name, reused};
}

std::shared_ptr<MappedSegment> SegmentCache::lend_given(const std::shared_ptr<GivenLoan>& loan) {
  loan->kept.front().mapping->lend();
  return {loan, loan->kept.front().mapping.get()};
}

namespace {

/// Calls `use` with the pieces of [at, end) that are outside of the memory of the sparse parts.
template <class Use>
void for_each_outside(const SparseParts& parts, std::size_t at, std::size_t end, Use use) {
  while (at < end) {
    std::size_t until = end;
    std::size_t next = end;
    for (const SparsePart& part : parts) {
      const std::size_t behind = part.at + part.memory;
      if (behind <= at || part.at >= until) continue;
      until = std::max(at, part.at);
      next = behind;
    }
    if (until > at) use(at, until - at);
    at = next;
  }
}

}  // namespace

/// Zeroes all pages that were ever written, which the kernel knows even if they are swapped out; of the sparse parts
/// only what was used. Leaves the others, whose first touch is expensive. False when the kernel does not report them,
/// or there are too many.
bool SegmentCache::restore(Kept& kept) {
  constexpr blkcnt_t kBlockBytes = 512;
  MappedSegment& mapping = *kept.mapping;
  struct stat status {};
  if (::fstat(kept.memfd.fd.get(), &status) != 0 || Inode{status.st_dev, status.st_ino} != kept.inode) return false;
  const std::size_t most = kMaxKeptMemory + mapping.sparse_memory();
  if (status.st_blocks > static_cast<blkcnt_t>(most) / kBlockBytes) return false;
  // If the number of blocks is unchanged they are the same blocks, because only those of sparse parts are given back.
  const bool are_known = status.st_blocks == kept.known_blocks && mapping.sparse_memory() == 0;
  if (!are_known && !find_touched(kept, status.st_blocks)) return false;
  for (const auto& [at, bytes] : kept.touched) std::memset(mapping.base() + at, 0, bytes);
  for (const SparsePart& part : mapping.sparse()) std::memset(mapping.base() + part.at, 0, part.used);
  mapping.sparse_is_zero();
  return true;
}

bool SegmentCache::find_touched(Kept& kept, blkcnt_t blocks) {
  const int memfd = kept.memfd.fd.get();
  const auto end = static_cast<off_t>(kept.mapping->bytes());
  kept.known_blocks = 0;
  kept.touched.clear();
  for (off_t at = 0; at < end;) {
    const off_t data = ::lseek(memfd, at, SEEK_DATA);
    if (data < 0 && errno != ENXIO) return false;
    if (data < 0) break;
    const off_t hole = ::lseek(memfd, data, SEEK_HOLE);
    if (data < at || hole <= data || hole > end) return false;
    for_each_outside(kept.mapping->sparse(), static_cast<std::size_t>(data), static_cast<std::size_t>(hole),
                     [&](std::size_t from, std::size_t bytes) {
                       kept.touched.push_back({from, bytes});
                     });
    at = hole;
  }
  kept.known_blocks = blocks;
  return true;
}

/// Returns a loan with a segment that fits, or with a place for a new one, or nothing where no place is free.
std::shared_ptr<SegmentCache::MadeLoan> SegmentCache::begin_loan(PeerProcess peer, std::uint64_t bytes) {
  auto loan = std::make_shared<MadeLoan>(*this);
  const auto fits = [&](const Kept& kept) {
    return kept.peer == peer && kept.mapping->bytes() == bytes &&
           kept.mapping->let_go().load(std::memory_order_acquire) != 0;
  };
  List dropped;
  {
    const std::lock_guard guard(lock_);
    loan->forks = forks_;
    const auto place = std::find_if(made_.begin(), made_.end(), fits);
    if (place != made_.end()) {
      place->forks = forks_;
      take_out(made_, place, loan->kept);
      loan->has_place = true;
    } else {
      loan->has_place = reserve_place(dropped);
    }
  }
  empty_sparse(dropped);
  return loan->has_place ? loan : nullptr;
}

Result<SegmentCache::Made> SegmentCache::make(std::uint64_t bytes, std::optional<SegmentPeer> peer) {
  const auto loan = peer && bytes <= kMaxKeptBytes ? begin_loan(peer->process, bytes) : nullptr;
  // If that fails, a new segment takes its place.
  if (loan && !loan->kept.empty() && restore(loan->kept.front())) return lend_made(loan, true);
  if (!loan) return make_new(bytes, peer);
  auto fresh = make_segment(bytes);
  if (!fresh) return fresh.error();
  const Inode inode = Inode::of(fresh->memfd);
  empty_sparse(loan->kept);
  loan->kept.clear();
  KeptDescriptor memfd(std::move(fresh->memfd), inode);
  loan->kept.push_back({std::move(fresh->mapping), std::move(memfd), peer->process, inode, loan->forks});
  return lend_made(loan, false);
}

/// Makes a segment that is not kept.
Result<SegmentCache::Made> SegmentCache::make_new(std::uint64_t bytes, std::optional<SegmentPeer> peer) {
  const bool may_share = peer && peer->opens_memory && peer->process == PeerProcess{kAnyProcess, ::geteuid()};
  if (may_share && is_permitted(RareCall::madvise_remove)) {
    const std::lock_guard guard(lock_);
    if (auto taken = own_batch_.take(bytes))
      return Made{std::move(taken->mapping), std::move(taken->memfd), taken->name, false, taken->part, taken->parts};
  }
  auto fresh = make_segment(bytes);
  if (!fresh) return fresh.error();
  const Inode inode = Inode::of(fresh->memfd);
  const MemoryName name{inode.device, inode.number, static_cast<std::uint32_t>(fresh->memfd.get()), 0};
  return Made{std::move(fresh->mapping), std::make_shared<const UniqueFd>(std::move(fresh->memfd)), name, false};
}

/// Makes room for one more descriptor, if necessary by dropping the segment that was idle longest. lock_ must be held.
bool SegmentCache::reserve_place(List& dropped) {
  if (made_places_ < descriptor_allowance()) {
    ++made_places_;
    return true;
  }
  if (made_.empty()) return false;
  take_out(made_, std::prev(made_.end()), dropped);
  return true;
}

/// Moves an idle segment to `out`. lock_ must be held.
void SegmentCache::take_out(List& idle, List::iterator place, List& out) {
  const std::size_t memory = place->mapping->sparse_memory();
  sparse_memory_.store(sparse_memory_.load(std::memory_order_relaxed) - memory, std::memory_order_relaxed);
  out.splice(out.end(), idle, place);
}

/// lock_ must be held.
void SegmentCache::drop(List& idle, List::iterator place, List& dropped) {
  if (&idle == &given_) withdraw_let_go(*place);
  take_out(idle, place, dropped);
}

/// Gives the sparse memory of own segments that were dropped to the kernel: a peer may keep its mapping, and what was
/// used first by this process is charged to it. A peer never does: once it has let go, the maker may use the segment
/// for another connection at any time.
void SegmentCache::empty_sparse(const List& made) {
  for (const Kept& kept : made) kept.mapping->empty_sparse(kept.mapping->let_go().load(std::memory_order_acquire) != 0);
}

/// Enters the one segment of `kept`, and drops others if they keep too much memory together. lock_ must be held.
void SegmentCache::add_idle(List& idle, List& kept, List& dropped) {
  Kept& added = kept.front();
  idle.splice(idle.begin(), kept);
  drop_oldest_of_dead(idle, dropped);
  const std::size_t memory = added.mapping->sparse_memory();
  if (memory == 0) return;
  added.unused_since = monotonic_now();
  sparse_memory_.store(sparse_memory_.load(std::memory_order_relaxed) + memory, std::memory_order_relaxed);
  for (auto place = idle.end();
       sparse_memory_.load(std::memory_order_relaxed) > kMaxSparseMemory && place != idle.begin();) {
    const auto oldest = std::prev(place);
    if (oldest->mapping->sparse_memory() == 0) {
      place = oldest;
    } else {
      drop(idle, oldest, dropped);
    }
  }
}

/// lock_ must be held.
void SegmentCache::drop_unused_since(Nanos when, List& idle, List& dropped) {
  for (auto place = idle.begin(); place != idle.end();) {
    const auto one = place++;
    if (one->mapping->sparse_memory() != 0 && one->unused_since <= when) drop(idle, one, dropped);
  }
}

bool SegmentCache::give_back(Nanos now) {
  constexpr Nanos kUnused{1'000'000'000};
  List made;
  List given;
  {
    const std::lock_guard guard(lock_);
    const std::size_t before = made_.size();
    drop_unused_since(now - kUnused, made_, made);
    made_places_ -= before - made_.size();
    drop_unused_since(now - kUnused, given_, given);
  }
  empty_sparse(made);
  return idle_sparse_memory() != 0;
}

/// `kept` has at most one segment, and a place. What does not stay in the cache is in `kept` afterwards. Returns
/// whether its sparse memory may be given back: a forked child may still use what was lent before.
bool SegmentCache::take_back_made(List& kept) {
  const std::lock_guard guard(lock_);
  const std::size_t before = made_.size();
  const bool is_of_this_process = kept.empty() || kept.front().forks == forks_;
  if (!kept.empty() && is_of_this_process && !kept.front().mapping->has_no_peer() &&
      kept.front().mapping->knows_sparse()) {
    List dropped;
    add_idle(made_, kept, dropped);
    kept.splice(kept.end(), dropped);
  }
  made_places_ -= before + 1 - made_.size();
  return is_of_this_process;
}

std::shared_ptr<MappedSegment> SegmentCache::find(const MemoryName& name, PeerProcess maker) {
  const Inode inode{static_cast<dev_t>(name.device), static_cast<ino_t>(name.inode)};
  const std::lock_guard guard(lock_);
  const auto is_it = [&](const Kept& kept) { return kept.inode == inode && kept.peer == maker; };
  const auto place = std::find_if(given_.begin(), given_.end(), is_it);
  if (place == given_.end()) return nullptr;
  const auto loan = std::make_shared<GivenLoan>(*this);
  place->forks = forks_;
  take_out(given_, place, loan->kept);
  return lend_given(loan);
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
  const auto loan = std::make_shared<GivenLoan>(*this);
  loan->kept.push_back({std::move(*mapped), {}, *maker, inode, forks});
  return lend_given(loan);
}

std::shared_ptr<MappedSegment> SegmentCache::find_part(const MemoryName& name, PeerProcess maker, std::uint32_t part) {
  const std::lock_guard guard(lock_);
  return given_batches_.take({static_cast<dev_t>(name.device), static_cast<ino_t>(name.inode)}, maker, part);
}

Result<std::shared_ptr<MappedSegment>> SegmentCache::map_part(UniqueFd memfd, const MemoryName& name, PeerProcess maker,
                                                              std::uint32_t part, std::uint32_t parts) {
  const std::lock_guard guard(lock_);  // fork(2) waits, so that a child has no part that is not known
  auto whole = map_peer_segment(std::move(memfd), name, kMostBatchBytes);
  if (!whole) return whole;
  if (part >= parts || (*whole)->bytes() % (parts * kPageBytes) != 0) return Error{EPROTO, "peer's memfd: parts"};
  return given_batches_.add({static_cast<dev_t>(name.device), static_cast<ino_t>(name.inode)}, maker,
                            MappedParts(**whole, parts), part);
}

bool SegmentCache::is_of_own_user(const Kept& kept) { return kept.peer.uid == ::geteuid(); }

/// `kept` has one segment. What does not stay in the cache is in `kept` afterwards.
void SegmentCache::take_back_given(List& kept) {
  const std::lock_guard guard(lock_);
  Kept& back = kept.front();
  // A forked child may still access the segment.
  if (back.forks != forks_) return;
  const bool keep =
      back.mapping->bytes() <= kMaxKeptBytes && !back.mapping->has_no_peer() && back.mapping->knows_sparse();
  if (keep || is_of_own_user(back)) back.mapping->let_go().store(1, std::memory_order_release);
  if (!keep) return;
  List dropped;
  add_idle(given_, kept, dropped);
  if (given_.size() > kMaxKept) drop(given_, std::prev(given_.end()), dropped);
  kept.splice(kept.end(), dropped);
}

/// Called before a mapping is given up, so that its maker does not offer a segment that would be refused.
void SegmentCache::withdraw_let_go(const Kept& kept) {
  if (!is_of_own_user(kept)) kept.mapping->let_go().store(0, std::memory_order_release);
}

void SegmentCache::forget(PeerProcess peer) {
  List dropped;
  {
    const std::lock_guard guard(lock_);
    for (auto place = made_.begin(); place != made_.end();) {
      const auto one = place++;
      if (one->peer != peer) continue;
      --made_places_;
      take_out(made_, one, dropped);
    }
  }
  empty_sparse(dropped);
}

std::optional<PeerProcess> SegmentCache::accepters_of(PeerProcess listener, std::optional<PeerProcess> at_first) {
  const std::lock_guard guard(lock_);
  const auto known = std::ranges::find(accepters_, listener, &Accepters::listener);
  return known != accepters_.end() ? known->who : at_first;
}

void SegmentCache::learn_accepters(PeerProcess listener, std::optional<PeerProcess> accepters, Nanos now) {
  const std::lock_guard guard(lock_);
  Accepters& known = accepters_at(listener);
  if (now >= known.refusing_until) known.who = accepters;
}

void SegmentCache::learn_opening(PeerProcess listener, PeerProcess accepters, bool opens) {
  const std::lock_guard guard(lock_);
  Accepters& known = accepters_at(listener, accepters);
  known.do_open = opens && !known.has_refused_part;
}

void SegmentCache::part_refused(PeerProcess listener, PeerProcess accepters) {
  const std::lock_guard guard(lock_);
  Accepters& known = accepters_at(listener, accepters);
  known.do_open = false;
  known.has_refused_part = true;
  // The program may have closed the descriptor of the memfd.
  own_batch_ = {};
}

bool SegmentCache::do_open(PeerProcess listener) {
  const std::lock_guard guard(lock_);
  const auto known = std::ranges::find(accepters_, listener, &Accepters::listener);
  return known != accepters_.end() && known->do_open;
}

void SegmentCache::accepters_refused(PeerProcess listener, Nanos now) {
  constexpr Nanos kRefusing{1'000'000'000};
  const std::lock_guard guard(lock_);
  Accepters& known = accepters_at(listener);
  known.who = std::nullopt;
  known.refusing_until = now + kRefusing;
}

/// lock_ must be held.
SegmentCache::Accepters& SegmentCache::accepters_at(PeerProcess listener) {
  const auto known = std::ranges::find(accepters_, listener, &Accepters::listener);
  if (known != accepters_.end()) return *known;
  accepters_.push_front({listener, std::nullopt, Nanos::zero()});
  if (accepters_.size() > kMaxKept) accepters_.pop_back();
  return accepters_.front();
}

/// @param who  the accepters, if nothing is known of them; lock_ must be held
SegmentCache::Accepters& SegmentCache::accepters_at(PeerProcess listener, PeerProcess who) {
  const bool is_new = std::ranges::find(accepters_, listener, &Accepters::listener) == accepters_.end();
  Accepters& known = accepters_at(listener);
  if (is_new) known.who = who;
  return known;
}

/// Drops one segment at each return, so that segments of dead processes disappear with the traffic of others.
void SegmentCache::drop_oldest_of_dead(List& idle, List& dropped) {
  const PeerProcess oldest = idle.back().peer;
  if (oldest == idle.front().peer || oldest.pid == kAnyProcess || !is_permitted(RareCall::kill)) return;
  const int saved_errno = errno;
  if (::kill(oldest.pid, 0) != 0 && errno == ESRCH) take_out(idle, std::prev(idle.end()), dropped);
  errno = saved_errno;
}

std::size_t SegmentCache::idle() {
  const std::lock_guard guard(lock_);
  return made_.size() + given_.size();
}

void SegmentCache::clear() {
  List made;
  List given;
  {
    const std::lock_guard guard(lock_);
    clear_locked(made, given);
  }
  empty_sparse(made);
}

void SegmentCache::clear_locked(List& made, List& given) {
  own_batch_ = {};
  given_batches_ = {};
  for (const Kept& kept : given_) withdraw_let_go(kept);
  made_places_ -= made_.size();
  sparse_memory_.store(0, std::memory_order_relaxed);
  made.splice(made.end(), made_);
  given.splice(given.end(), given_);
}

void SegmentCache::before_fork() {
  lock_.lock();
  MappedSegment::note_fork();
  List made;
  List given;
  clear_locked(made, given);
  empty_sparse(made);
}

void SegmentCache::after_fork() {
  ++forks_;
  lock_.unlock();
}

namespace {
[[gnu::constructor]] void install_fork_handlers() {
  segment_cache();
  at_fork(
      ForkStep::segments, [] { segment_cache().before_fork(); }, [] { segment_cache().after_fork(); },
      [] { segment_cache().after_fork(); });
}
}  // namespace

}  // namespace ringsock::soft
