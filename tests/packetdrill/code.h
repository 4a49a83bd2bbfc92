// The Python code of a script: snippets see TCP_INFO of their moment as variables, and run at the end of the script.
#pragma once

#include <linux/tcp.h>

#include <string>

#include "tests/packetdrill/script.h"

namespace ringsock::packetdrill {

class Code {
 public:
  explicit Code(std::string path) : path_(std::move(path)) {}
  void add(const CodeSpec& snippet, const tcp_info& info);
  /// Runs what was added. Returns what Python says when it fails; empty: nothing.
  [[nodiscard]] std::string run() const;

 private:
  const std::string path_;
  std::string program_;
};

}  // namespace ringsock::packetdrill
