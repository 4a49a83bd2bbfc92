// Replaces the pages of memory that is in use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/result.h"

namespace ringsock::soft {

/// Whether other threads may write between the copy and the exchange.
enum class OtherWriters { none, threads };

/// Copies [address, address + bytes), private anonymous memory, to the file `memfd` and moves `replacement` (a mapping
/// of the file's first `bytes` with all pages present) to `address`. Users of the memory do not notice it, and no write
/// is lost: userfaultfd(2) write protection holds up writes of other threads meanwhile, which are then carried out on
/// the new pages. All sizes are multiples of a page. The range must not contain the stack of the calling thread.
/// Errors, with nothing changed: those of userfaultfd(2) (EPERM above all), madvise(2), pwrite(2) and mremap(2).
Status swap_pages(std::byte* address, std::byte* replacement, int memfd, std::size_t bytes, OtherWriters writers);

}  // namespace ringsock::soft
