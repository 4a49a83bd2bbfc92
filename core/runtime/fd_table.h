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
#include "core/base/handlers_wait.h"
#include "core/base/mutex.h"
#include "core/base/own_numbers.h"
#include "core/base/result.h"
#include "core/runtime/endpoint.h"
#include "core/runtime/rcu.h"

namespace ringsock::runtime {

/// The descriptors of the process that belong to the library. find() costs a few nanoseconds: two dependent loads
/// inside an RCU read-side section. insert() and remove() take a lock. Close during use is safe: the table's reference
/// is dropped after a grace period. A forked child may use the table: it holds the same endpoints.
///
///     descriptor = | 17 bits: index into chunks_ | 14 bits: index into the chunk |
///
/// A chunk is mapped with its first descriptor and stays mapped; its pages without entries are never touched. The first
/// chunk is a member, because most descriptors are in it; this saves one load.
class FdTable {
 public:
  /// The result of a look-up, which holds an RCU read-side section: the endpoint stays alive as long as the Lookup.
  /// Never sleep while holding one; first call pin(), which replaces the section by a counted reference. The thread's
  /// signal handlers wait as long as there is one (library_call.h).
  class Lookup {
   public:
    explicit Lookup(const FdTable& table, int fd) noexcept;
    Lookup(const Lookup&) = delete;
    Lookup& operator=(const Lookup&) = delete;
    ~Lookup() { leave(); }
    /// Makes it empty.
    void leave() {
      if (!endpoint_) return;
      if (pinned_) {
        Calls::end(*endpoint_);
        --this_thread.handlers.depth;
      } else {
        rcu_read_leave();
      }
      endpoint_ = nullptr;
    }
    explicit operator bool() const { return endpoint_ != nullptr; }
    // NOLINTBEGIN(clang-analyzer-cplusplus.NewDelete): the section or the reference keeps it
    Endpoint* operator->() const { return endpoint_; }
    Endpoint& operator*() const { return *endpoint_; }
    // NOLINTEND(clang-analyzer-cplusplus.NewDelete)
    /// Ends the read-side section and holds a reference as long as this object exists. Does nothing when it is empty or
    /// pinned.
    void pin() {
      if (!endpoint_ || pinned_) return;
      ++this_thread.handlers.depth;
      endpoint_->references.begin_call();
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
  /// Returns whether `fd` is in the table, by two loads, for calls whose descriptors mostly are not. Another thread may
  /// change it at any time.
  [[nodiscard]] bool holds(int fd) const noexcept {
    const Entry* const place = entry(fd);
    return place && place->load(std::memory_order_relaxed);
  }
  /// Returns whether the entry of `fd` is `endpoint`, by two loads.
  [[nodiscard]] bool refers_to(int fd, const Endpoint& endpoint) const noexcept {
    const Entry* const place = entry(fd);
    return place && place->load(std::memory_order_relaxed) == &endpoint;
  }
  /// Returns a number above every descriptor that is or was in the table.
  [[nodiscard]] int end() const noexcept { return end_.load(std::memory_order_relaxed); }
  /// Returns a counted reference, empty when `fd` is not in the table.
  [[nodiscard]] Ref get(int fd) const noexcept {
    const Lookup lookup(*this, fd);
    return lookup ? Ref::share(*lookup) : Ref();
  }
  /// Enters `endpoint` and keeps the reference. Errors: EBADF negative, ENOMEM, EIO in a child that was made without
  /// our fork handlers. A stale entry (closed by the raw system call, its number then reused by the kernel) is removed
  /// first, and its endpoint closed if that was its last descriptor.
  Status insert(int fd, Ref endpoint);
  /// Removes, as insert() does, an entry under a number that the kernel has just handed out and that is therefore
  /// stale.
  void drop_stale(int fd) noexcept {
    own_numbers().remove(fd);
    if (holds(fd)) [[unlikely]]
      drop_stale_entry(fd);
  }
  /// Removes the entry. Returns a reference, empty when `fd` is not in the table. The table's own reference is dropped
  /// when no reader is inside any more: at once, or by the service thread within some milliseconds (in the process's
  /// table; remove() of another table waits). Calls neither close(2) nor Endpoint::retire(); the caller calls the
  /// latter if Endpoint::has_descriptors() is false then. Must not be called inside a read-side section.
  Ref remove(int fd);
  /// As remove(), for a number that is still open in the kernel: calls on the number fail with EBADF until end_close(),
  /// so that no thread reaches the kernel's file under it. In a process with one thread the same as remove(). The
  /// reference is also empty when another thread is closing the number.
  Ref begin_close(int fd);
  /// The same for many numbers, after a grace period. References of numbers that are not in the table are empty.
  std::vector<Ref> begin_close(std::span<const int> fds);
  /// Called when the number has been closed, or has become another file's.
  void end_close(int fd) noexcept;
  /// Returns whether this is what a look-up finds between begin_close() and end_close().
  [[nodiscard]] static bool is_being_closed(const Endpoint& found) noexcept { return &found == being_closed(); }
  /// Waits for end_close() of another thread: libc may have opened a file under the number already, past this library
  /// (fopen(3), mkstemp(3)). Returns false after a tenth of a second, when the close itself takes long. Not inside a
  /// read-side section.
  bool wait_for_close(int fd) const noexcept;
  /// As get(), but waits for a close that another thread is about to end.
  [[nodiscard]] Ref get_settled(int fd) const noexcept {
    Ref endpoint = get(fd);
    if (endpoint && is_being_closed(*endpoint) && wait_for_close(fd)) [[unlikely]]
      endpoint = get(fd);
    return endpoint;
  }
  /// Removes a descriptor that becomes a kernel socket, without waiting: the table's reference is dropped later,
  /// together with others. Returns false when `fd` is not in the table.
  bool let_go(int fd);
  /// Returns a descriptor of `endpoint`. Searches the whole table.
  [[nodiscard]] std::optional<int> number_of(const Endpoint& endpoint);
  /// Visits every entry as visit(int fd, Endpoint&), under the lock: `visit` must not call insert() or remove().
  template <class Visit>
  void for_each(Visit visit);

  /// Handlers for fork(2), as for pthread_atfork(3); installed for fd_table().
  void before_fork() { lock_.lock(); }
  void after_fork() { lock_.unlock(); }
  void after_fork_in_child();
  /// Called in a child that was made without these handlers: operations that kernel descriptors do not support by
  /// themselves are refused there. Takes no locks and allocates no memory.
  void leave_to_parent() noexcept;

 private:
  static constexpr unsigned kChunkBits = 14;
  static constexpr std::size_t kChunkSize = std::size_t{1} << kChunkBits;
  static constexpr std::size_t kChunks = std::size_t{1} << (31 - kChunkBits);
  using Entry = std::atomic<Endpoint*>;
  struct Chunk {
    std::array<Entry, kChunkSize> entries;
  };

  /// Returns null when no descriptor of that chunk has ever been in the table, or `fd` is negative.
  [[nodiscard]] Entry* entry(int fd) const noexcept {
    const auto number = static_cast<std::uint32_t>(fd);
    if (number < kChunkSize) [[likely]]
      return &first_.entries[number];
    if (number >> 31) return nullptr;
    Chunk* chunk = chunks_[number >> kChunkBits].load(std::memory_order_acquire);
    return chunk ? &chunk->entries[number & (kChunkSize - 1)] : nullptr;
  }
  static constexpr std::size_t kMostRetired = 32;
  static constexpr std::uint32_t kManyDescriptors = 1U << 30;
  Result<Entry*> make_entry(int fd);
  void drop_stale_entry(int fd) noexcept;
  static void end_stale(int fd, Ref endpoint) noexcept;
  Endpoint* exchange(Entry& entry, Endpoint* endpoint);
  static Endpoint* make_refusing(void* place, Error why) noexcept;
  static Endpoint* being_closed() noexcept;
  Endpoint* take_locked(Entry* place, bool is_marked);
  Ref take(int fd, bool is_marked);
  /// Endpoints that have left the table and whose references it still holds, because readers may be inside.
  struct Retired {
    std::array<Endpoint*, kMostRetired> endpoints{};
    std::size_t count = 0;
    void add(Endpoint& endpoint) { endpoints[count++] = &endpoint; }
    void drop() {
      while (count > 0) endpoints[--count]->drop_ref();
    }
  };
  void put_back(Retired& retired);
  void reclaim();
  void clear_mark(Entry* place) noexcept;

  Mutex lock_;
  Retired retired_;
  std::atomic<bool> is_reclaim_due_{false};  ///< the service thread will reclaim
  std::size_t chunks_end_ =
      0;  ///< behind the last chunk there is, but for the first; all zero, so that no file holds it
  std::atomic<int> end_{0};
  mutable Chunk first_{};
  std::array<std::atomic<Chunk*>, kChunks> chunks_{};  ///< chunks_[0] stays null: it is first_
};

inline FdTable::Lookup::Lookup(const FdTable& table, int fd) noexcept {
  const Entry* entry = table.entry(fd);
  if (!entry) return;
  // Called before the section begins and the entry is read, because it changes the entry in a strange child.
  static_cast<void>(is_known_process());
  rcu_read_enter();
  endpoint_ = entry->load(std::memory_order_acquire);
  if (!endpoint_) rcu_read_leave();
}

template <class Visit>
void FdTable::for_each(Visit visit) {
  static_cast<void>(is_known_process());
  const Endpoint* const mark = being_closed();
  const std::lock_guard guard(lock_);
  for (std::size_t i = 0; i == 0 || i < chunks_end_; ++i) {
    Chunk* chunk = i == 0 ? &first_ : chunks_[i].load(std::memory_order_relaxed);
    if (!chunk) continue;
    for (std::size_t j = 0; j < kChunkSize; ++j) {
      Endpoint* endpoint = chunk->entries[j].load(std::memory_order_relaxed);
      if (endpoint && endpoint != mark) visit(static_cast<int>((i << kChunkBits) | j), *endpoint);
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

/// The table of the process, shared by all libraries on this core.
extern FdTable process_fd_table;
inline FdTable& fd_table() { return process_fd_table; }

}  // namespace ringsock::runtime
