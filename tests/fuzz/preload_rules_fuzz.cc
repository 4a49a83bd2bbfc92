// A preload_config as an administrator, or a disk, may have left it.
#include <cstdlib>
#include <string>

#include "core/config/preload_rules.h"

using namespace ringsock;
using config::PreloadAction;
using config::PreloadRules;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto report = [](const std::string& line) {
    if (line.find('\n') != std::string::npos || !line.starts_with("F:")) std::abort();
  };
  const PreloadRules rules = PreloadRules::parse(text, "F", "p", report);
  for (const int domain : {AF_INET, AF_INET6}) {
    for (const std::uint16_t port : {std::uint16_t{0}, std::uint16_t{80}, std::uint16_t{65535}}) {
      const SocketAddress address =
          domain == AF_INET ? SocketAddress::v4(0x0a000001, port) : SocketAddress::v6(in6addr_loopback, port);
      const PreloadAction later = rules.for_address(domain, address);
      if (later == PreloadAction::off) std::abort();
      // A socket that was left to the kernel never turns out to be ours.
      if (later == PreloadAction::rdma && rules.for_socket(domain, SOCK_STREAM, 0) != PreloadAction::rdma) std::abort();
    }
  }
  return 0;
}
