// A statistics page as another process may have made it.
#include <cstdlib>

#include "core/statistics/statistics_reader.h"

using namespace ringsock::runtime;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto page = parse_statistics_page(std::as_bytes(std::span(data, size)));
  if (!page) return 0;
  if (page->sockets.size() > kStatisticsSlots) std::abort();
  for (const char c : page->program) {
    if (c < ' ' || c > '~') std::abort();
  }
  for (const SocketSnapshot& socket : page->sockets) {
    if (*to_string(socket.description.state) == '?' || *to_string(socket.description.path) == '?') std::abort();
    if (socket.description.local.to_string().empty() || socket.description.peer.to_string().empty()) std::abort();
  }
  return 0;
}
