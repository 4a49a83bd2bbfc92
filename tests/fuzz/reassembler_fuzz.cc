// Fragments as a network may bring them: each is a length, a time in units of 0.25 s since the last, and a frame.
#include <cstdlib>

#include "core/wire/ip.h"
#include "core/wire/reassembler.h"

using namespace ringsock;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kIpAt = 14;
  auto left = std::as_bytes(std::span(data, size));
  wire::Reassembler reassembler;
  Nanos now{};
  while (left.size() >= 2) {
    const auto length = std::min(std::to_integer<std::size_t>(left[0]), left.size() - 2);
    now += std::chrono::milliseconds(250 * std::to_integer<int>(left[1]));
    const auto frame = left.subspan(2, length);
    left = left.subspan(2 + length);
    const auto fragment = wire::parse_fragment(frame, kIpAt);
    if (!fragment) continue;
    if (fragment->payload.empty() || fragment->end() > 65535) std::abort();
    const auto whole = reassembler.add(*fragment, now);
    if (reassembler.count() > wire::Reassembler::kMostPackets) std::abort();
    if (whole.empty()) continue;
    const auto packet = whole.subspan(kIpAt);
    if (fragment->name.is_ipv6) {
      const auto ip = wire::parse_ipv6(packet);
      if (!ip || ip->header.next_header != wire::kIpProtocolUdp || ip->payload.empty()) std::abort();
    } else {
      const auto ip = wire::parse_ipv4(packet);
      if (!ip || ip->header.is_fragment() || ip->payload.empty()) std::abort();
    }
  }
  return 0;
}
