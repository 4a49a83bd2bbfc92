// Requests of libc's AIO.
#pragma once

#include <aio.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>

namespace ringsock::testing {

/// A request of libc's AIO, whose helper threads carry it out.
struct LibcRequest {
  LibcRequest(int fd, int operation, char* bytes, std::size_t length) {
    block.aio_fildes = fd;
    block.aio_lio_opcode = operation;
    block.aio_buf = bytes;
    block.aio_nbytes = length;
  }
  /// Waits for the end of the request.
  ssize_t result() {
    const aiocb* const one = &block;
    while (::aio_error(&block) == EINPROGRESS) ::aio_suspend(&one, 1, nullptr);
    return ::aio_return(&block);
  }
  aiocb block{};
};

}  // namespace ringsock::testing
