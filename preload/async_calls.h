// Prepares descriptors that AIO and io_uring requests name.
#pragma once

#include <linux/aio_abi.h>

#include <span>

namespace ringsock::preload {

/// Makes the endpoints among these descriptors kernel sockets. Their connections and the bytes under way are kept.
void make_kernel_sockets(std::span<const int> fds) noexcept;

/// Calls make_kernel_sockets() for the descriptors of these io_submit(2) requests.
void look_at_aio(long count, const iocb* const* requests) noexcept;

}  // namespace ringsock::preload
