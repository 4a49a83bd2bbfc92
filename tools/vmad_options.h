// The options of vmad.
#pragma once

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include "libvmacompat/agent/messages.h"

namespace ringsock::tools {

struct VmadOptions {
  bool console = false;  ///< stays in the foreground, and logs to standard error
  std::string notify_directory = vma::agent::kNotifyDirectory;
  std::string socket = vma::agent::kServiceSocket;
  std::string lock_file = "/var/lock/vmad.lock";
  int verbosity = 4;  ///< VMA's levels: what has a syslog(3) priority above it is not logged
  bool forced_resets = false;
  std::chrono::milliseconds retry_interval = std::chrono::seconds(1);
  bool help = false, version = false;
};

/// Errors are texts about the wrong option, empty when getopt_long(3) has printed one.
struct VmadParsed {
  std::optional<VmadOptions> options{};
  std::string problem{};
};
VmadParsed parse_vmad_options(int argc, char** argv);

void print_vmad_usage(std::FILE* out);

}  // namespace ringsock::tools
