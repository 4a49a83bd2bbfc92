// Messages that a process logs once.
#pragma once

#include <cstdint>

namespace ringsock {

enum class Notice : std::uint8_t { locked_memory, libbpf_is_missing, no_socketxtreme };

/// Returns true the first time that it is called for this notice. Threads: any.
bool is_first(Notice notice) noexcept;

}  // namespace ringsock
