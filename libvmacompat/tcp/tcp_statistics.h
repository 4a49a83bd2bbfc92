// A TCP connection's entry in the statistics page.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/base/mutex.h"
#include "core/engine/tcp/settings.h"
#include "libvmacompat/statistics/vma_statistics.h"

namespace ringsock::vma {

/// The engine counts. The entry is made, and brought up to date, when vma_stats(8) or dump_fd_stats() asks: nothing is
/// copied while there is no reader, and short connections have no entry. Threads: any.
class TcpStatistics {
 public:
  /// Called for calls that had to wait, and for dummy sends.
  void count_receive_eagain() noexcept { receive_eagains_.fetch_add(1, std::memory_order_relaxed); }
  void count_send_eagain() noexcept { send_eagains_.fetch_add(1, std::memory_order_relaxed); }
  void count_dummy() noexcept { dummies_.fetch_add(1, std::memory_order_relaxed); }

  /// Shows the connection at `info`. Does nothing behind forget().
  void show(const engine::tcp::Info& info, const runtime::VmaSocketDescription& description);
  /// Appends the entry to VMA_STATS_FILE, if there is one.
  void write_file();
  /// No ring carries the connection any more: gives the entry back.
  void forget() noexcept;
  /// Held across fork(2) with the locks of the socket.
  Mutex& lock() { return lock_; }

 private:
  Mutex lock_;
  bool is_over_ = false;
  std::optional<runtime::VmaSocketStatistics> entry_;
  std::atomic<std::uint64_t> receive_eagains_{0}, send_eagains_{0}, dummies_{0};
};

}  // namespace ringsock::vma
