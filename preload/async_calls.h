// What AIO and io_uring ask the kernel to do with descriptors, before it does.
#pragma once

#include <linux/aio_abi.h>

#include <span>

namespace ringsock::preload {

/// From now on those of them that are ours are kernel sockets, with their connections. Bytes on their way go on.
void make_kernel_sockets(std::span<const int> fds) noexcept;

/// The same for what io_submit(2) is about to be given.
void look_at_aio(long count, const iocb* const* requests) noexcept;

}  // namespace ringsock::preload
