// Accesses application memory that may be unmapped or protected by now, with an error instead of a signal.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringsock::soft {

/// Copies with the kernel's help. `own` is memory that is surely mapped.
/// @return whether all was copied; otherwise a part may have been. errno is kept. Threads: any.
///
/// Uses process_vm_writev(2) and process_vm_readv(2) on this process, which Yama permits. A pair of sockets is used
/// where a filter or the kernel forbids these calls, or they do not reach the memory (that of a device,
/// memfd_secret(2)). The last bytes are written last, as by place_in_order().
[[nodiscard]] bool guarded_write(std::byte* application, const std::byte* own, std::size_t length);
[[nodiscard]] bool guarded_read(std::byte* own, const std::byte* application, std::size_t length);

/// Returns whether [address, address + length) is mapped writable, true without /proc. May make the pages of a short
/// range present, as ibv_reg_mr(3) does for any range.
[[nodiscard]] bool is_mapped_writable(std::uint64_t address, std::uint64_t length);

}  // namespace ringsock::soft
