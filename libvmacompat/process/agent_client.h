// Tells vmad(8) that there is this process, so that it cleans up if the process dies.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/runtime/service_thread.h"
#include "libvmacompat/agent/messages.h"

namespace ringsock::vma {

/// Without a service nothing happens, and the process leaves no files. Threads: any.
class AgentClient {
 public:
  /// @param notify_directory  VMA_VMAD_NOTIFY_DIR; empty: the service is not told
  explicit AgentClient(std::string notify_directory) : directory_(std::move(notify_directory)) {}
  AgentClient(const AgentClient&) = delete;
  AgentClient& operator=(const AgentClient&) = delete;

  /// The process has begun to use rings. Does not wait for the service. May be called again; a forked child, which is
  /// another process to the service, calls it when it begins.
  void begin();
  /// A ring begins to carry a TCP connection, or no longer does: the service resets the connections of a process that
  /// is killed, whose peers would wait otherwise. The messages have no room for IPv6.
  void tell(const agent::State& connection) noexcept;
  /// Returns an id for a connection, which is not 0.
  std::uint32_t next_id() noexcept { return last_id_.fetch_add(1, std::memory_order_relaxed) + 1; }
  /// The process ends by itself: takes leave, and removes the files.
  void end() noexcept;
  /// A leaf lock, which is held across fork(2).
  Mutex& lock() { return lock_; }

 private:
  int introduce_once();
  Status introduce();
  void receive_answer();
  [[nodiscard]] std::string file(const char* suffix) const;

  const std::string directory_;
  Mutex lock_;
  pid_t pid_ = 0;  ///< the process that the service has been told of; 0: none
  UniqueFd socket_;
  UniqueFd pid_file_;  ///< stays open as long as the process lives: VMA's service watches it
  std::atomic<runtime::ServiceThread::Id> watch_{0};
  std::atomic<std::uint32_t> last_id_{0};
};

}  // namespace ringsock::vma
