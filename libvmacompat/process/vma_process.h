// What the library keeps for its process: settings, rules, log.
#pragma once

#include "core/config/vma_config.h"
#include "core/config/vma_log.h"
#include "core/config/vma_rules.h"

namespace ringsock::vma {

/// Made when the library is loaded, and never destroyed. Threads: any.
class Process {
 public:
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
};

Process& process();

}  // namespace ringsock::vma
