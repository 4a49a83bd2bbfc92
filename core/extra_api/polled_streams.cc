#include "core/extra_api/polled_streams.h"

#include <sys/stat.h>

#include <algorithm>
#include <mutex>
#include <new>

namespace ringsock::vma {

namespace {
/// So many completions of one stream, then it is the next one's turn.
constexpr int kInOneTurn = 16;

/// Returns the number of the file, 0 for none.
ino_t inode_of(int fd) noexcept {
  struct stat file {};
  return ::fstat(fd, &file) == 0 ? file.st_ino : 0;
}
}  // namespace

void PolledStream::unlist() noexcept {
  if (PolledStreams* const streams = listed_in_.load(std::memory_order_relaxed)) streams->unlist(*this);
}

// -- for streams

void PolledStreams::list_locked(PolledStream& stream) noexcept {
  PolledStreams* nowhere = nullptr;
  if (!stream.listed_in_.compare_exchange_strong(nowhere, this, std::memory_order_relaxed)) return;
  try {
    ready_.push_back(&stream);
  } catch (const std::bad_alloc&) {
    stream.listed_in_.store(nullptr, std::memory_order_relaxed);
    return;
  }
  has_ready_.store(true, std::memory_order_relaxed);
}

void PolledStreams::list(PolledStream& stream) noexcept {
  const std::lock_guard guard(lock_);
  list_locked(stream);
}

void PolledStreams::unlist_locked(PolledStream& stream) noexcept {
  PolledStreams* here = this;
  if (stream.listed_in_.compare_exchange_strong(here, nullptr, std::memory_order_relaxed)) std::erase(ready_, &stream);
}

void PolledStreams::unlist(PolledStream& stream) noexcept {
  const std::lock_guard guard(lock_);
  unlist_locked(stream);
}

void PolledStreams::tell_of_kernels(int fd, std::uint64_t user_data, std::uint32_t events) noexcept {
  const ino_t inode = inode_of(fd);
  const std::lock_guard guard(lock_);
  try {
    left_.push_back({fd, inode, user_data, events});
    has_ready_.store(true, std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {
  }
}

// -- for programs that poll the ring

std::size_t PolledStreams::listed() {
  const std::lock_guard guard(lock_);
  return ready_.size();
}

/// A socket leaves the list before it is destroyed, so the object exists; but its last reference may be gone.
PolledStreams::First PolledStreams::take_first() {
  const std::lock_guard guard(lock_);
  while (!ready_.empty()) {
    PolledStream* const first = ready_.front();
    ready_.pop_front();
    first->listed_in_.store(nullptr, std::memory_order_relaxed);
    if (first->endpoint().try_add_ref()) return {runtime::Ref(&first->endpoint()), first};
  }
  has_ready_.store(!left_.empty(), std::memory_order_relaxed);
  return {};
}

std::size_t PolledStreams::tell_left(std::span<vma_completion_t> out) {
  const std::lock_guard guard(lock_);
  std::size_t count = 0;
  auto next = left_.begin();
  for (; next != left_.end() && count < out.size(); ++next) {
    if (inode_of(next->fd) != next->inode) continue;
    out[count] = {};
    out[count].events = next->events;
    out[count].user_data = next->user_data;
    ++count;
  }
  left_.erase(left_.begin(), next);
  return count;
}

std::size_t PolledStreams::collect(std::span<vma_completion_t> out) {
  if (!has_ready_.load(std::memory_order_relaxed)) return 0;
  std::size_t count = tell_left(out);
  // Not those that are listed again meanwhile.
  for (std::size_t left = std::max<std::size_t>(listed(), 1); left > 0 && count < out.size(); --left) {
    const First first = take_first();
    if (first.stream == nullptr) break;
    int turn = 0;
    while (count < out.size() && turn < kInOneTurn && first.stream->take_event(out[count])) ++count, ++turn;
    const bool may_have_more = turn == kInOneTurn || count == out.size();
    if (may_have_more && !first.socket->is_closed()) list(*first.stream);
  }
  return count;
}

bool PolledStreams::are_any_listed() noexcept {
  const std::lock_guard guard(lock_);
  return !ready_.empty() || !left_.empty();
}

}  // namespace ringsock::vma
