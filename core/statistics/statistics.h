// Counts what this process's sockets do, for rsstat(1) and for the line at exit.
#pragma once

#include <string>

#include "core/base/mutex.h"
#include "core/base/socket_address.h"
#include "core/statistics/page_parts.h"
#include "core/statistics/statistics_page.h"

namespace ringsock::runtime {

/// The facts about a socket that are shown beside its counters.
struct SocketDescription {
  int descriptor = -1;
  SocketState state = SocketState::created;
  SocketPath path = SocketPath::none;
  SocketAddress local{};
  SocketAddress peer{};
};

/// The sums of counters: of one socket, or of a process's sockets, past and present.
struct CounterSums {
  std::uint64_t bytes_out = 0, messages_out = 0;
  std::uint64_t bytes_in = 0, messages_in = 0;
  std::uint64_t wakeups = 0, spins_paid = 0, errors = 0;

  void add(const SlotCounters& counters);
};

/// One socket's slot. Counting costs two relaxed loads and stores on a line of its own: no lock, no system call, no
/// locked instruction. The first slot of a process makes the process's page.
class SocketStatistics {
 public:
  SocketStatistics();
  SocketStatistics(const SocketStatistics&) = delete;
  SocketStatistics& operator=(const SocketStatistics&) = delete;
  /// Adds the counts to the process's totals.
  ~SocketStatistics();

  /// Stores the description; call it when the socket's state changes. Costs about 50 ns. Threads: any.
  void describe(const SocketDescription& description);
  /// Counts a call that moved `bytes`. Only the thread that may send (receive) at this time calls it.
  void count_sent(std::size_t bytes) {
    add_relaxed(slot_->counters.bytes_out, bytes);
    add_relaxed(slot_->counters.messages_out, 1);
  }
  void count_received(std::size_t bytes) {
    add_relaxed(slot_->counters.bytes_in, bytes);
    add_relaxed(slot_->counters.messages_in, 1);
  }
  [[nodiscard]] std::uint64_t messages_received() const {
    return slot_->counters.messages_in.load(std::memory_order_relaxed);
  }
  /// Count a sleep that the peer's doorbell ended, a spin that made a sleep unnecessary, and a failure that the
  /// application was told. Threads: any; of two concurrent counts one may be lost.
  void count_wakeup();
  void count_spin_paid() { add_relaxed(slot_->counters.spins_paid, 1); }
  void count_error() { add_relaxed(slot_->counters.errors, 1); }
  /// Returns what has been counted. Threads: any; the sums may be outdated.
  [[nodiscard]] CounterSums sums() const;

 private:
  SocketSlot* slot_;
};

/// The process's page. Threads: any. Without /dev/shm, or room in it, the page is private memory: counting works, but
/// rsstat sees nothing. A forked child starts with the sockets that it inherited and counters of its own, and shows its
/// page once it makes a socket or sleeps on one. The file is removed at exit.
class ProcessStatistics {
 public:
  constexpr ProcessStatistics() = default;
  ProcessStatistics(const ProcessStatistics&) = delete;
  ProcessStatistics& operator=(const ProcessStatistics&) = delete;

  /// Counts a connection made by connect(2) or accepted, and for a kernel connection the reason.
  void count_connected(SocketPath path);
  void count_kernel_connected(KernelReason reason);
  void count_accepted(SocketPath path);

  /// Counts a spin for many sockets that made a sleep unnecessary. Of two concurrent counts one may be lost.
  void count_shared_spin_paid() {
    if (PageHeader* header = header_.load(std::memory_order_acquire))
      add_relaxed(header->others.counters.spins_paid, 1);
  }

  /// Sets whether exit(3) prints line() on standard error (RINGSOCK_STATS=1), if the process made or used a socket.
  void set_print_at_exit(bool on) { print_at_exit_.store(on, std::memory_order_relaxed); }
  /// Returns the line for RINGSOCK_STATS=1, without a newline; empty when there was no socket. Its format is in
  /// rsrun(1).
  [[nodiscard]] std::string line();
  /// Returns the file's path, empty while the page is private.
  [[nodiscard]] std::string path();

  // -- for SocketStatistics, fork handlers and exit
  SocketSlot* open_slot();
  void close_slot(SocketSlot& slot);
  void describe(SocketSlot& slot, const SocketDescription& description);
  /// Publishes the page of a child that uses a socket.
  void show_if_forked() {
    if (forked_.load(std::memory_order_relaxed)) show();
  }
  void before_fork() { lock_.lock(); }
  void after_fork_in_parent() { lock_.unlock(); }
  void after_fork_in_child();
  void at_exit() noexcept;
  /// Call it when the library is loaded: programs may overwrite the memory of their arguments later, and the name is
  /// part of it.
  void name_program(const char* name);
  /// Removes the file before unlink(2) is forbidden. rsstat(1) does not see the process any more.
  void remove_file() noexcept;

 private:
  PageHeader& header();
  PageHeader& header_locked();
  void fill_header(PageHeader& header) const;
  bool grow_locked();
  void show();
  void show_locked();
  bool map_file_locked(int fd);
  void leave_parents_page(PageHeader& header);
  std::string line_locked();

  Mutex lock_;
  std::atomic<PageHeader*> header_{nullptr};  ///< null until the first use
  std::atomic<bool> forked_{false};
  std::atomic<bool> print_at_exit_{false};
  bool opened_ = false;            ///< this process made a socket
  std::uint32_t slots_ready_ = 0;  ///< slots that have memory; 0 when only `others` can be had
  // Private copies, since others of this user could write to the page.
  std::uint32_t header_used_ = 0;  ///< slots ever used
  std::uint32_t first_free_ = 0;   ///< index + 1; 0: none
  std::array<std::uint32_t, kStatisticsSlots> next_free_{};
  std::array<char, 64> path_{};  ///< empty: the page is private
  std::array<char, 64> program_{};
  alignas(64) PageHeader spare_{};  ///< used for counting when there is no memory for a page
};

/// The object of this process. It is never destroyed.
extern ProcessStatistics process_statistics;

inline void SocketStatistics::count_wakeup() {
  process_statistics.show_if_forked();
  add_relaxed(slot_->counters.wakeups, 1);
}

}  // namespace ringsock::runtime
