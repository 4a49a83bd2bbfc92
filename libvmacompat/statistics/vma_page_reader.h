// Reads the pages of processes with libvma, for vma_stats(8) and rsstat(1), and sends requests to them. The owner of a
// page may write anything there, so all contents are checked.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/config/vma_log_level.h"
#include "libvmacompat/statistics/vma_page.h"
#include "libvmacompat/statistics/vma_snapshot.h"

namespace ringsock::runtime {

/// Errors: EPROTO not a page of this version, or truncated.
Result<VmaSnapshot> parse_vma_page(std::span<const std::byte> bytes);

/// Returns a slot of this process, or nothing when the slot is free.
std::optional<VmaSocketSnapshot> snapshot_of(const VmaSocketSlot& slot);

/// A request to a process.
struct VmaRequest {
  std::optional<config::VmaLogLevel> log_level{};
  std::optional<int> log_details{};
  std::optional<int> dump_fd{};  ///< 0: all sockets
  config::VmaLogLevel dump_level = config::VmaLogLevel::info;
  std::optional<int> trace_fd{};
  int trace_segments = kVmaTraced;  ///< 1..kVmaMostTraced
};

/// The page of one process, open.
class VmaPage {
 public:
  /// Opens a page in /dev/shm by its name there. ask() and zero() need `may_ask`. Errors: those of open_statistics().
  static Result<VmaPage> open(const char* name, bool may_ask);

  /// Errors: those of read(2); EPROTO.
  [[nodiscard]] Result<VmaSnapshot> read() const;
  /// Sends a request; the process then also updates counters that it keeps only on request. It may not answer, because
  /// it is stopped, or has no ring yet.
  /// @param wait  the longest time to wait for the answer
  /// Errors: those of write(2); ETIMEDOUT no answer.
  [[nodiscard]] Status ask(const VmaRequest& request, std::chrono::milliseconds wait) const;
  /// Resets the counters. Errors: those of read(2), write(2).
  [[nodiscard]] Status zero() const;

  [[nodiscard]] int pid() const { return pid_; }

 private:
  VmaPage(UniqueFd file, std::size_t bytes, int pid) : file_(std::move(file)), bytes_(bytes), pid_(pid) {}

  UniqueFd file_;
  std::size_t bytes_;
  int pid_;
};

/// The target of DIRECTORY/vmastat.PID: the name of a page in /dev/shm.
struct VmaLink {
  int pid;
  std::string name;
};
/// Returns the links in a directory, sorted by pid. With `clean`, removes links of this user whose processes have
/// ended.
std::vector<VmaLink> find_vma_pages(const char* directory, bool clean);

/// Returns the pages of all living processes of this user, or of all users for root, sorted by pid.
std::vector<VmaSnapshot> read_all_vma_pages();

}  // namespace ringsock::runtime
