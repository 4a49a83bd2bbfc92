// Writing headers one after the other.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

namespace ringsock::wire {

/// Writes a header at the start of `out` and returns the rest of `out`. The header must fit.
template <class Header>
std::span<std::byte> emit(std::span<std::byte> out, const Header& header) {
  static_assert(alignof(Header) == 1 && std::is_trivially_copyable_v<Header>);
  std::memcpy(out.data(), &header, sizeof header);
  return out.subspan(sizeof header);
}

}  // namespace ringsock::wire
