#include "core/device/shm/memory/page_swap.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/rare_calls.h"
#include "core/base/signals_blocked.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

namespace {

constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;

/// Opens a userfaultfd that also holds up writes by the kernel (read(2) into the memory); with a user-mode-only one
/// they would fail.
UniqueFd open_userfaultfd() {
  if (!is_permitted(RareCall::userfaultfd)) {
    errno = EPERM;
    return {};
  }
  UniqueFd fd(static_cast<int>(::syscall(SYS_userfaultfd, kFlags)));
#ifdef USERFAULTFD_IOC_NEW
  if (!fd) {
    // Since Linux 6.1 a process that may open this device may have one.
    const UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
    if (device) fd.reset(::ioctl(device.get(), USERFAULTFD_IOC_NEW, kFlags));
  }
#endif
  return out_of_the_way(std::move(fd));
}

/// Write-protects a range. Closing the result lets waiting threads go on.
Result<UniqueFd> protect(std::byte* address, std::size_t bytes) {
  UniqueFd fd = open_userfaultfd();
  if (!fd) return Error::last("userfaultfd");
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP;
  if (::ioctl(fd.get(), UFFDIO_API, &api) != 0) return Error::last("userfaultfd: write protection");
  // Only present pages can be protected.
  if (::madvise(address, bytes, MADV_POPULATE_WRITE) != 0) return Error::last("madvise");
  uffdio_register range{};
  range.range = {reinterpret_cast<std::uint64_t>(address), bytes};
  range.mode = UFFDIO_REGISTER_MODE_WP;
  if (::ioctl(fd.get(), UFFDIO_REGISTER, &range) != 0) return Error::last("userfaultfd: register");
  uffdio_writeprotect protection{};
  protection.range = range.range;
  protection.mode = UFFDIO_WRITEPROTECT_MODE_WP;
  // On the error path, closing it removes the protection.
  if (::ioctl(fd.get(), UFFDIO_WRITEPROTECT, &protection) != 0) return Error::last("userfaultfd: protect");
  return fd;
}

/// The kernel copies, not memcpy(3): whole pages hold bytes beside the buffer of which sanitizers would complain.
Status copy_to_file(const std::byte* from, std::size_t bytes, int memfd) {
  for (std::size_t done = 0; done < bytes;) {
    const long step = ::syscall(SYS_pwrite64, memfd, from + done, bytes - done, done);
    if (step <= 0) return Error::last("pwrite");
    done += static_cast<std::size_t>(step);
  }
  return ok();
}

}  // namespace

Status swap_pages(std::byte* address, std::byte* replacement, int memfd, std::size_t bytes, OtherWriters writers) {
  const SignalsBlocked no_handlers;
  UniqueFd protection;
  if (writers == OtherWriters::threads) {
    auto made = protect(address, bytes);
    if (!made) return made.error();
    protection = std::move(*made);
  }
  // Until the end of the protection this thread must not write to the memory either: no allocation, no lock.
  if (Status copied = copy_to_file(address, bytes, memfd); !copied) return copied;
  if (::mremap(replacement, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED) {
    return Error::last("mremap");
  }
  return ok();
}

}  // namespace ringsock::soft
