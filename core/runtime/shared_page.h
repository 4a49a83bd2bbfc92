// Memory that a process shares with those that it forks.
#pragma once

#include <cstddef>
#include <memory>

namespace ringsock::runtime {

/// Returns `bytes` bytes of zeros, aligned to 8, that this process shares with its future children, or nullptr without
/// memory. A page of the kernel holds many such pieces. Each process unmaps it with the last piece that it has. A
/// process takes pieces only from pages that it has made itself. Threads: only the forking one.
/// @param bytes at most a page
std::shared_ptr<void> shared_piece(std::size_t bytes) noexcept;

}  // namespace ringsock::runtime
