#include "core/device/shm/memory/guarded_copy.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/rare_calls.h"
#include "core/base/unique_fd.h"
#include "core/device/common/scatter_gather.h"
#include "core/device/shm/memory/address_space.h"
#include "core/device/shm/memory/segment.h"

namespace ringsock::soft {

namespace {

constexpr std::uint64_t kPopulatedBytes = std::uint64_t{256} * 1024;

class ErrnoKept {
 public:
  ErrnoKept() = default;
  ErrnoKept(const ErrnoKept&) = delete;
  ErrnoKept& operator=(const ErrnoKept&) = delete;
  ~ErrnoKept() { errno = saved_; }

 private:
  const int saved_ = errno;
};

/// Returns the number of bytes that were copied.
std::size_t moved(ssize_t answer) { return answer > 0 ? static_cast<std::size_t>(answer) : 0; }

std::size_t write_by_process(std::byte* to, const std::byte* from, std::size_t length) {
  if (!is_permitted(RareCall::process_vm_writev)) return 0;
  const std::size_t head = length > kTailBytes ? length - kTailBytes : 0;
  const iovec local{const_cast<std::byte*>(from), length};
  const iovec remote[] = {{to, head}, {to + head, length - head}};
  return moved(::process_vm_writev(::getpid(), &local, 1, remote, 2, 0));
}

std::size_t read_by_process(std::byte* to, const std::byte* from, std::size_t length) {
  if (!is_permitted(RareCall::process_vm_readv)) return 0;
  const iovec local{to, length};
  const iovec remote{const_cast<std::byte*>(from), length};
  return moved(::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0));
}

/// Copies through a pair of sockets: send(2) and recv(2) fail with EFAULT, and every process with a ring may call them.
/// A piece fits into the smallest buffer that the kernel gives a socket.
bool copy_by_sockets(std::byte* to, const std::byte* from, std::size_t length) {
  constexpr std::size_t kPieceBytes = 1024;
  if (length == 0) return true;
  int pair[2];
  // Without a descriptor the copy is refused: copying without the kernel's help could kill the process.
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return false;
  const UniqueFd in(pair[0]), out(pair[1]);
  while (length != 0) {
    const std::size_t head = length > kTailBytes ? length - kTailBytes : length;
    std::size_t piece = moved(::send(in.get(), from, std::min(head, kPieceBytes), MSG_DONTWAIT | MSG_NOSIGNAL));
    if (piece == 0) return false;
    from += piece;
    length -= piece;
    while (piece != 0) {
      const std::size_t got = moved(::recv(out.get(), to, piece, MSG_DONTWAIT));
      if (got == 0) return false;
      to += got;
      piece -= got;
    }
  }
  return true;
}

}  // namespace

bool guarded_write(std::byte* application, const std::byte* own, std::size_t length) {
  const ErrnoKept kept;
  const std::size_t done = length != 0 ? write_by_process(application, own, length) : 0;
  return copy_by_sockets(application + done, own + done, length - done);
}

bool guarded_read(std::byte* own, const std::byte* application, std::size_t length) {
  const ErrnoKept kept;
  const std::size_t done = length != 0 ? read_by_process(own, application, length) : 0;
  return copy_by_sockets(own + done, application + done, length - done);
}

bool is_mapped_writable(std::uint64_t address, std::uint64_t length) {
  const ErrnoKept kept;
  // One system call; the table of mappings costs 0.1 ms and more.
  if (length <= kPopulatedBytes && is_permitted(RareCall::madvise_populate)) {
    const std::uint64_t start = address & ~(kPageBytes - 1);
    if (::madvise(reinterpret_cast<void*>(start), address + length - start, MADV_POPULATE_WRITE) == 0) return true;
  }
  std::uint64_t at = address;
  for (const MemoryArea& area : areas_between(address, address + length, AreaDetail::maps)) {
    if (area.start > at || area.permissions[1] != 'w') return false;
    at = area.end;
  }
  // If /proc works, it lists at least our own stack.
  const auto here = reinterpret_cast<std::uint64_t>(&kept);
  return at >= address + length || areas_between(here, here + 1, AreaDetail::maps).empty();
}

}  // namespace ringsock::soft
