// An environment as a shell script, or an attacker of a log's reader, may have left it: variables between zero bytes.
#include <cstdlib>
#include <string>
#include <vector>

#include "core/config/vma_banner.h"

using namespace ringsock::config;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Each piece as it is, and as the value of a variable: a guess of 30 letters would take long.
  static const std::vector<const char*> names{"VMA_RX_POLL",         "VMA_LOG_COLORS",
                                              "VMA_MEM_ALLOC_TYPE",  "VMA_SPEC",
                                              "VMA_TRACELEVEL",      "VMA_INTERNAL_THREAD_AFFINITY",
                                              "VMA_LOG_CB_FUNC_PTR", "VMA_TX_WRE",
                                              "VMA_TX_WRE_BATCHING", "VMA_RX_SKIP_OS"};
  std::vector<std::string> variables;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (std::size_t at = 0; at < text.size();) {
    const std::string piece = text.c_str() + at;
    at += piece.size() + 1;
    variables.push_back(names[variables.size() / 2 % names.size()] + ("=" + piece));
    variables.push_back(piece);
  }
  std::vector<const char*> environment;
  for (const std::string& variable : variables) environment.push_back(variable.c_str());
  environment.push_back(nullptr);
  const VmaConfig config = load_vma_config(
      environment.data(), [](const std::string& line) { require(line.find('\n') == std::string::npos); });
  require(config.rx_poll >= -1 && config.rx_poll <= 100000000);
  require(config.mem_alloc_type >= 0 && config.mem_alloc_type <= 2);
  require(config.tx_wre >= 2 * config.tx_wre_batching && config.tx_wre_batching >= 1);
  require(config.cq_aim_max_count <= config.rx_wre / 2);
  for (const VmaLogText& line : vma_parameter_lines(config)) require(line.text.find('\n') == std::string::npos);
  return 0;
}
