// From descriptor to endpoint: wait-free look-up for any descriptor number (liburcu, flavour bp).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/rcu.h"

namespace ringsock::runtime {

/// The process's descriptors that are ours.
/// find() costs a few nanoseconds: two dependent loads inside an RCU read-side section. insert() and remove() take a
/// lock. Close during use is safe: remove() waits for a grace period before it gives the table's reference away. A
/// forked child may use the table: it holds the same endpoints.
///
///     descriptor = | 17 bits: index into chunks_ | 14 bits: index into the chunk |
///
/// Chunks are mapped when their first descriptor comes and stay; pages of them that hold nothing are never touched. The
/// first one is a member: most descriptors are in it, and whether they are ours costs one load less.
class FdTable {
 public:
  /// Inside an RCU read-side section: the endpoint stays alive until the Lookup is gone or released. Never sleep while
  /// holding one: pin() it first, which trades the section for a counted reference.
  class Lookup {
   public:
    explicit Lookup(const FdTable& table, int fd) noexcept;
    Lookup(const Lookup&) = delete;
    Lookup& operator=(const Lookup&) = delete;
    ~Lookup() {
      if (!endpoint_) return;
      if (pinned_) {
        endpoint_->drop_ref();
      } else {
        rcu_read_leave();
      }
    }
    explicit operator bool() const { return endpoint_ != nullptr; }
    Endpoint* operator->() const { return endpoint_; }
    Endpoint& operator*() const { return *endpoint_; }
    /// Ends the read-side section; the reference lives as long as this object. Nothing to do when it is empty or
    /// pinned.
    void pin() {
      if (!endpoint_ || pinned_) return;
      endpoint_->add_ref();
      pinned_ = true;
      rcu_read_leave();
    }

   private:
    Endpoint* endpoint_ = nullptr;
    bool pinned_ = false;
  };

  constexpr FdTable() = default;
  FdTable(const FdTable&) = delete;
  FdTable& operator=(const FdTable&) = delete;

  [[nodiscard]] Lookup find(int fd) const noexcept { return Lookup(*this, fd); }
  /// Whether `fd` is ours, by two loads: for calls that mostly are not. Another thread may change it at any time.
  [[nodiscard]] bool holds(int fd) const noexcept {
    const Entry* const place = entry(fd);
    return place && place->load(std::memory_order_relaxed);
  }
  /// Above every descriptor that is ours, or was.
  [[nodiscard]] int end() const noexcept { return end_.load(std::memory_order_relaxed); }
  /// A counted reference, empty when `fd` is not ours.
  [[nodiscard]] Ref get(int fd) const noexcept {
    const Lookup lookup(*this, fd);
    return lookup ? Ref::share(*lookup) : Ref();
  }
  /// Takes over `endpoint`. Errors: EBADF negative, ENOMEM, EIO in a child that was made without our fork handlers. A
  /// stale entry (closed behind our back with the raw system call, number used again by the kernel) is removed first,
  /// and its endpoint closed when that was its last descriptor.
  Status insert(int fd, Ref endpoint);
  /// The table's reference, after a grace period; empty when `fd` is not ours. Does not close(2) the number and does
  /// not call Endpoint::close(): the caller does, when Endpoint::has_descriptors() says that this one was the last. Not
  /// inside a read-side section.
  Ref remove(int fd);
  /// The same for many, with one grace period; those that are not ours are empty.
  std::vector<Ref> remove(std::span<const int> fds);
  /// The same for a descriptor that goes on as the kernel's, and without waiting: the table's reference is dropped
  /// later, with those of others. False when `fd` is not ours.
  bool let_go(int fd);
  /// A descriptor that means `endpoint`. Looks at every descriptor of ours.
  [[nodiscard]] std::optional<int> number_of(const Endpoint& endpoint);
  /// Visits every entry as visit(int fd, Endpoint&), under the lock: `visit` must not call insert() or remove().
  template <class Visit>
  void for_each(Visit visit);

  /// Around fork(2), as pthread_atfork(3) calls them; installed for fd_table().
  void before_fork() { lock_.lock(); }
  void after_fork() { lock_.unlock(); }
  /// In a child that was made without those: what the kernel's descriptors cannot do by themselves is refused. Without
  /// locks and memory allocation.
  void leave_to_parent() noexcept;

 private:
  static constexpr unsigned kChunkBits = 14;
  static constexpr std::size_t kChunkSize = std::size_t{1} << kChunkBits;
  static constexpr std::size_t kChunks = std::size_t{1} << (31 - kChunkBits);
  using Entry = std::atomic<Endpoint*>;
  struct Chunk {
    std::array<Entry, kChunkSize> entries;
  };

  /// Null when no descriptor of that chunk has ever been ours, or `fd` is negative.
  [[nodiscard]] Entry* entry(int fd) const noexcept {
    const auto number = static_cast<std::uint32_t>(fd);
    if (number < kChunkSize) [[likely]]
      return &first_.entries[number];
    if (number >> 31) return nullptr;
    Chunk* chunk = chunks_[number >> kChunkBits].load(std::memory_order_acquire);
    return chunk ? &chunk->entries[number & (kChunkSize - 1)] : nullptr;
  }
  static constexpr std::size_t kMostRetired = 32;
  Result<Entry*> make_entry(int fd);
  Endpoint* exchange(Entry& entry, Endpoint* endpoint);

  Mutex lock_;
  std::array<Endpoint*, kMostRetired> retired_{};  ///< let go; readers may still be inside
  std::size_t retired_count_ = 0;
  std::size_t chunks_end_ =
      0;  ///< behind the last chunk there is, but for the first; all zero, so that no file holds it
  std::atomic<int> end_{0};
  mutable Chunk first_{};
  std::array<std::atomic<Chunk*>, kChunks> chunks_{};  ///< chunks_[0] stays null: it is first_
};

inline FdTable::Lookup::Lookup(const FdTable& table, int fd) noexcept {
  const Entry* entry = table.entry(fd);
  if (!entry) return;
  // Before the section, and before the entry is read: a strange child changes it.
  static_cast<void>(is_known_process());
  rcu_read_enter();
  endpoint_ = entry->load(std::memory_order_acquire);
  if (!endpoint_) rcu_read_leave();
}

template <class Visit>
void FdTable::for_each(Visit visit) {
  static_cast<void>(is_known_process());
  const std::lock_guard guard(lock_);
  for (std::size_t i = 0; i == 0 || i < chunks_end_; ++i) {
    Chunk* chunk = i == 0 ? &first_ : chunks_[i].load(std::memory_order_relaxed);
    if (!chunk) continue;
    for (std::size_t j = 0; j < kChunkSize; ++j) {
      Endpoint* endpoint = chunk->entries[j].load(std::memory_order_relaxed);
      if (endpoint) visit(static_cast<int>((i << kChunkBits) | j), *endpoint);
    }
  }
}

inline std::optional<int> FdTable::number_of(const Endpoint& endpoint) {
  std::optional<int> number;
  for_each([&](int fd, const Endpoint& entry) {
    if (&entry == &endpoint) number = fd;
  });
  return number;
}

/// The one table of the process, shared by all libraries on this core.
extern FdTable process_fd_table;
inline FdTable& fd_table() { return process_fd_table; }

}  // namespace ringsock::runtime
