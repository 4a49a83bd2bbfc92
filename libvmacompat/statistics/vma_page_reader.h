// Reading the pages of processes with libvma, for vma_stats(8) and rsstat(1), and asking something of them. A page is
// its owner's: whatever it holds is checked.
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

/// Error: EPROTO when it is no page of this version, or is cut off.
Result<VmaSnapshot> parse_vma_page(std::span<const std::byte> bytes);

/// One slot of our own. Nothing while it is nobody's.
std::optional<VmaSocketSnapshot> snapshot_of(const VmaSocketSlot& slot);

/// What a process may be asked for.
struct VmaRequest {
  std::optional<config::VmaLogLevel> log_level{};
  std::optional<int> log_details{};
  std::optional<int> dump_fd{};  ///< 0: all sockets
  config::VmaLogLevel dump_level = config::VmaLogLevel::info;
};

/// The page of one process, open.
class VmaPage {
 public:
  /// A page in /dev/shm, by its name there. `may_ask`: for ask() and zero().
  /// Errors: those of open_statistics().
  static Result<VmaPage> open(const char* name, bool may_ask);

  /// Errors: those of read(2); EPROTO.
  [[nodiscard]] Result<VmaSnapshot> read() const;
  /// Has the process do it, and bring up to date what it does not count all the time. It need not answer: it may be
  /// stopped, or have no ring yet.
  /// @param wait  how long for its answer
  /// Errors: those of write(2); ETIMEDOUT no answer.
  [[nodiscard]] Status ask(const VmaRequest& request, std::chrono::milliseconds wait) const;
  /// What was counted until now does not count any more. Errors: those of read(2), write(2).
  [[nodiscard]] Status zero() const;

  [[nodiscard]] int pid() const { return pid_; }

 private:
  VmaPage(UniqueFd file, std::size_t bytes, int pid) : file_(std::move(file)), bytes_(bytes), pid_(pid) {}

  UniqueFd file_;
  std::size_t bytes_;
  int pid_;
};

/// What DIRECTORY/vmastat.PID leads to: the name of a page in /dev/shm.
struct VmaLink {
  int pid;
  std::string name;
};
/// The links in a directory, by pid. Those of this user whose processes are no more are removed when `clean`.
std::vector<VmaLink> find_vma_pages(const char* directory, bool clean);

/// The pages of all living processes, by pid: this user's, for root everybody's.
std::vector<VmaSnapshot> read_all_vma_pages();

}  // namespace ringsock::runtime
