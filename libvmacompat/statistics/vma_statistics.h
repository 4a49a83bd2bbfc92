// Counts what a process with libvma does, for vma_stats(8) and rsstat(1).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/at_fork.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/poll/wait_tally.h"
#include "core/statistics/page_parts.h"
#include "libvmacompat/statistics/vma_page.h"
#include "libvmacompat/statistics/vma_snapshot.h"

namespace ringsock::runtime {

/// What the page says of a socket beside its counters.
struct VmaSocketDescription {
  int fd = -1;
  std::uint64_t inode = 0;  ///< of the kernel's socket
  bool is_tcp = false;
  bool is_offloaded = false;
  bool is_blocking = true;
  bool multicast_loop = true;
  SocketAddress multicast_interface{};
  SocketAddress local{};
  SocketAddress peer{};
  std::vector<SocketAddress> groups{};  ///< only the first kVmaGroups are shown
  std::uint64_t ring_user_id_rx = 0;
  std::uint64_t ring_user_id_tx = 0;
};

/// A slot of the page, or private memory when the page has none left.
template <class Slot>
class VmaSlot {
 public:
  VmaSlot();
  VmaSlot(const VmaSlot&) = delete;
  VmaSlot& operator=(const VmaSlot&) = delete;
  ~VmaSlot();

  /// Adds by a plain load and store. Called by the thread that may receive or send at this time; of two calls at the
  /// same time one may be lost.
  template <class Count>
  [[gnu::always_inline]] void count(Count which, std::uint64_t amount = 1) {
    add_relaxed((*slot_)[which], amount);
  }
  template <class Level>
  void set(Level which, std::uint64_t amount) {
    (*slot_)[which].store(amount, std::memory_order_relaxed);
  }
  template <class Level>
  void raise(Level which, std::uint64_t amount) {
    Counter& most = (*slot_)[which];
    if (amount > most.load(std::memory_order_relaxed)) most.store(amount, std::memory_order_relaxed);
  }
  template <class Which>
  [[nodiscard]] std::uint64_t value(Which which) const {
    return (*slot_)[which].load(std::memory_order_relaxed);
  }
  [[nodiscard]] Slot& slot() const { return *slot_; }

 private:
  Slot* slot_;
  std::unique_ptr<Slot> own_;
};

/// One socket's counters.
class VmaSocketStatistics : public VmaSlot<VmaSocketSlot> {
 public:
  /// Called when something in the description has changed. Threads: any.
  inline void describe(const VmaSocketDescription& description);
};

/// One ring's counters.
class VmaRingStatistics : public VmaSlot<VmaRingSlot> {
 public:
  explicit VmaRingStatistics(int ifindex) { slot().ifindex = static_cast<std::uint32_t>(ifindex); }
};

/// A request of vma_stats(8), checked. kVmaUnchanged stands for fields without a request.
struct VmaAsked {
  std::uint32_t number = 0;
  int log_level = kVmaUnchanged;
  int log_details = kVmaUnchanged;
  int dump_fd = kVmaUnchanged;
  int dump_level = kVmaUnchanged;
  int trace_fd = kVmaUnchanged;
  int trace_segments = kVmaUnchanged;
};

/// The statistics page of the process. It is private memory when /dev/shm is missing or full. A forked child begins
/// with the inherited sockets and with counters of its own, and shows its page once it makes a socket. File and link
/// are removed at exit. Threads: any.
class VmaStatistics final : public WaitCounters {
 public:
  constexpr VmaStatistics() = default;
  VmaStatistics(const VmaStatistics&) = delete;
  VmaStatistics& operator=(const VmaStatistics&) = delete;

  /// Called before the first socket.
  /// @param directory  the directory for vmastat.PID; empty: no page
  /// @param sockets    the number of socket slots, at most kVmaMostSockets
  void configure(const std::string& directory, std::uint32_t sockets);

  /// Returns a descriptor that becomes readable on a request. The service thread watches it and then calls
  /// take_asked(). It stays open. Makes the page unless it is there. Errors: ENOENT there is no page; those of
  /// inotify_init1(2), inotify_add_watch(2).
  Result<int> asked_fd();
  /// Takes the request made since the last call, or nothing when no request is complete. The descriptor is not readable
  /// afterwards.
  std::optional<VmaAsked> take_asked();
  /// Reports that request `number` is done.
  void answer(std::uint32_t number);

  // WaitCounters; used once there is a page.
  int open_epoll(int epoll_fd) override;
  void close_epoll(int slot) override;
  void count(int slot, const Result<int>& ready, const WaitTally& tally) override;

  /// Sets a pool's numbers, on request. Pools from index kVmaPools on are not shown.
  void show_pool(std::size_t index, bool is_rx, std::uint64_t buffers, std::uint64_t no_buffers);
  /// Sets the number of pools.
  void show_pools(std::size_t count);
  /// Returns this process's page as other processes read it.
  Result<VmaSnapshot> snapshot();

  /// The path of the page; empty while it is private.
  [[nodiscard]] std::string path();

  // -- for VmaSlot, and for fork and exit handlers
  void describe(VmaSocketSlot& slot, const VmaSocketDescription& description);
  VmaSocketSlot* open(VmaSocketSlot* /*kind*/);
  VmaRingSlot* open(VmaRingSlot* /*kind*/);
  void close(VmaSocketSlot& slot);
  void close(VmaRingSlot& slot);
  /// Copies the name, which is a part of the arguments' memory that programs overwrite later. Holds the lock across
  /// forks: rings make their counters while they hold their own locks, so this lock must be the innermost.
  void at_load(const char* program);
  void after_fork_in_child();
  void at_exit() noexcept;

 private:
  VmaPageHeader* header_locked();
  void fill_header(VmaPageHeader& header) const;
  [[nodiscard]] std::size_t bytes() const { return vma_page_bytes(sockets_); }
  [[nodiscard]] std::size_t used_bytes() const;
  bool reserve_locked(std::size_t end);
  void show_locked();
  bool map_file_locked(int fd);
  void link_locked();

  Mutex lock_;
  bool wanted_ = false;  ///< configured
  bool forked_ = false;  ///< the next socket shows the page
  std::uint32_t sockets_ = 0;
  std::size_t ready_ = 0;  ///< bytes of the file that have memory
  VmaPageHeader* header_ = nullptr;
  // Private copies, since other processes of this user can write to the page.
  std::uint32_t sockets_used_ = 0, rings_used_ = 0;
  std::array<bool, kVmaMostSockets> socket_taken_{};
  std::array<bool, kVmaRings> ring_taken_{};
  std::array<bool, kVmaIomuxSlots> iomux_taken_{true, true};
  std::array<char, 64> program_{};
  std::array<char, 64> path_{};  ///< empty: the page is private
  std::array<char, 256> directory_{};
  std::array<char, 300> link_{};  ///< empty: there is no link
  int asked_fd_ = -1;
  std::uint32_t taken_ = 0;  ///< number of the last request
};

/// The object of the process, which is never destroyed.
extern VmaStatistics vma_statistics;

inline void VmaSocketStatistics::describe(const VmaSocketDescription& description) {
  vma_statistics.describe(slot(), description);
}

}  // namespace ringsock::runtime
