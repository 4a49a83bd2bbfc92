// Access to application memory that may be gone, or not writable any more: an error instead of a signal.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringsock::soft {

/// Copies with the kernel's help. `own` is memory that is surely there.
/// @return whether all was copied; else a part may have been. errno is kept. Threads: any.
///
/// By process_vm_writev(2) and process_vm_readv(2) on this process, which Yama allows; where a filter or the kernel
/// forbids them, or the memory is of a kind that they do not reach (a device's, memfd_secret(2)), by a pair of sockets.
/// Writing puts the last bytes last, like place_in_order().
[[nodiscard]] bool guarded_write(std::byte* application, const std::byte* own, std::size_t length);
[[nodiscard]] bool guarded_read(std::byte* own, const std::byte* application, std::size_t length);

/// Whether [address, address + length) is mapped, and may be written. Yes when /proc does not tell. May make the pages
/// of a short range present, as ibv_reg_mr(3) does of any.
[[nodiscard]] bool is_mapped_writable(std::uint64_t address, std::uint64_t length);

}  // namespace ringsock::soft
