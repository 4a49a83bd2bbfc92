// What the library keeps for its process: settings, rules, log.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/process_state.h"
#include "core/config/vma_config.h"
#include "core/config/vma_log.h"
#include "core/config/vma_rules.h"
#include "core/ethernet/options.h"
#include "core/extra_api/thread_offload.h"
#include "libvmacompat/process/agent_client.h"
#include "libvmacompat/process/ring_profiles.h"

namespace ringsock::vma {

/// Made when the library is loaded, and never destroyed. Threads: any.
class Process {
 public:
  static constexpr ProcessPart kPart = ProcessPart::vma_process;
  Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  const config::VmaConfig config;
  config::VmaLog log;
  ThreadOffload threads;
  RingProfiles profiles;
  AgentClient agent;

  /// Reads libvma.conf at the first call.
  config::VmaRules& rules();
  /// Writes VMA's start-up lines to the log.
  void write_banner() const;
  /// Returns whether new sockets of this type may use rings.
  bool may_use_rings(int type);
  /// Returns the number of one more choice of rings (runtime::RingChoice).
  std::uint64_t next_choice() noexcept { return choices_.fetch_add(1, std::memory_order_relaxed); }
  /// Called where a socket is to be left to the kernel because rings do not support `what`, before that happens. Logs
  /// it as VMA_EXCEPTION_HANDLING wants. May end the process. Errors: EOPNOTSUPP the call is to fail instead.
  Status leaves_rings(const std::string& what) const;
  /// Called when rings cannot be made. Ends the process if VMA_EXCEPTION_HANDLING is -2.
  void cannot_start(Error why) const;
  /// Has the rings' buffers come from the application's functions. Errors: EINVAL there was a socket that may use
  /// rings.
  Status use_memory(const verbs::UserMemory& memory);
  [[nodiscard]] const verbs::UserMemory& memory() const { return memory_; }

 private:
  std::once_flag rules_once_;
  std::unique_ptr<config::VmaRules> rules_;
  std::atomic<bool> has_told_of_low_limit_{false};
  std::atomic<std::uint64_t> choices_{0};
  std::atomic<bool> has_begun_{false};  ///< there was a socket that may use rings
  verbs::UserMemory memory_;            ///< does not change once has_begun_ is set
};

Process& process();

}  // namespace ringsock::vma
