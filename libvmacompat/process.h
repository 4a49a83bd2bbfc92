// What the library knows in one process: settings, rules, log.
#pragma once

#include "core/config/vma_config.h"
#include "core/config/vma_log.h"
#include "core/config/vma_rules.h"

namespace ringsock::vma {

/// Made when the library is loaded, never destroyed. Threads: any.
class Process {
 public:
  Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  const config::VmaConfig config;
  config::VmaLog log;

  /// libvma.conf is read when first asked for.
  config::VmaRules& rules();
  /// VMA's start-up lines.
  void write_banner() const;
  /// Whether new sockets of that type may use rings at all.
  bool may_use_rings(int type);
};

Process& process();

}  // namespace ringsock::vma
