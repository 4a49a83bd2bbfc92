#include "core/net/path.h"

#include <functional>

namespace ringsock::net {

std::size_t PathQuery::hash() const {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15U;
  std::uint64_t out = destination.hash();
  const auto mix = [&out](std::uint64_t value) { out = (out ^ value) * kOdd + (out >> 29); };
  mix(source.hash());
  mix(std::uint64_t{source_port} << 16 | destination_port);
  mix(static_cast<std::uint64_t>(oif) << 32 | mark);
  mix(std::uint64_t{tos} << 8 | protocol);
  return out;
}

}  // namespace ringsock::net
