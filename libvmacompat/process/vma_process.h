// What the library keeps for its process: settings, rules, log.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "core/base/process_state.h"
#include "core/config/vma_config.h"
#include "core/config/vma_log.h"
#include "core/config/vma_rules.h"

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

  /// Reads libvma.conf at the first call.
  config::VmaRules& rules();
  /// Writes VMA's start-up lines to the log.
  void write_banner() const;
  /// Returns whether new sockets of this type may use rings.
  bool may_use_rings(int type);
  /// Returns the number of one more choice of rings (ethernet::RingChoice).
  std::uint64_t next_choice() noexcept { return choices_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::once_flag rules_once_;
  std::unique_ptr<config::VmaRules> rules_;
  std::atomic<bool> has_told_of_low_limit_{false};
  std::atomic<std::uint64_t> choices_{0};
};

Process& process();

}  // namespace ringsock::vma
