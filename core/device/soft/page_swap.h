// Putting other pages under memory that is in use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/result.h"

namespace ringsock::soft {

/// Whose writes can come between copying the memory and exchanging it.
enum class OtherWriters { none, threads };

/// Copies [address, address + bytes), private anonymous memory, to the file `memfd` and moves `replacement` (a mapping
/// of the file's first `bytes`, all pages there) to `address`, so that nobody who uses the memory notices and no write
/// is lost. With other threads their writes are held up meanwhile by userfaultfd(2) write protection; once the pages
/// are exchanged they are carried out on the new ones. All sizes are multiples of a page; the stack of the calling
/// thread must not be in there.
/// Errors, with nothing changed: those of userfaultfd(2) (EPERM above all), madvise(2), pwrite(2) and mremap(2).
Status swap_pages(std::byte* address, std::byte* replacement, int memfd, std::size_t bytes, OtherWriters writers);

}  // namespace ringsock::soft
