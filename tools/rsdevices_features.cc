// Tries the kernel features that the embedded device uses.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/barrier.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/memory/page_swap.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/names/sock_diag.h"
#include "tools/rsdevices_system.h"

namespace ringsock::tools {

namespace {

int error_of(bool succeeded) { return succeeded ? 0 : errno; }

int error_of(const Status& status) { return status ? 0 : status.error().code; }

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

/// Tries the segment of a connection.
int try_segment() {
  const auto segment = soft::make_segment(page_bytes());
  return segment ? 0 : segment.error().code;
}

int try_unix_socket() {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return errno;
  // With only the family, the kernel chooses an abstract name.
  const sockaddr_un address{AF_UNIX, {}};
  return error_of(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sa_family_t)) == 0);
}

int try_peer_writes() {
  char from = 1;
  char to = 0;
  const iovec local{&from, 1};
  const iovec remote{&to, 1};
  return error_of(::process_vm_writev(::getpid(), &local, 1, &remote, 1, 0) == 1);
}

/// A mapping of one page, unmapped with the object; null and errno on failure.
class MappedPage {
 public:
  MappedPage(std::size_t bytes, int flags, int fd)
      : bytes_(bytes), page_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0)) {}
  MappedPage(const MappedPage&) = delete;
  MappedPage& operator=(const MappedPage&) = delete;
  ~MappedPage() {
    if (page_ != MAP_FAILED) ::munmap(page_, bytes_);
  }
  [[nodiscard]] std::byte* get() const { return page_ == MAP_FAILED ? nullptr : static_cast<std::byte*>(page_); }
  /// Called when the mapping was moved elsewhere.
  void forget() { page_ = MAP_FAILED; }

 private:
  const std::size_t bytes_;
  void* page_;
};

/// Tries what a registration of riomap() does, on a page of this process.
int try_page_sharing(soft::OtherWriters writers) {
  const std::size_t bytes = page_bytes();
  const auto segment = soft::make_segment(bytes);
  if (!segment) return segment.error().code;
  const int file = segment->memfd.get();
  const MappedPage memory(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  MappedPage replacement(bytes, MAP_SHARED, file);
  if (memory.get() == nullptr || replacement.get() == nullptr) return errno;
  if (::madvise(replacement.get(), bytes, MADV_POPULATE_WRITE) != 0) return errno;
  const Status swapped = soft::swap_pages(memory.get(), replacement.get(), file, bytes, writers);
  if (swapped) replacement.forget();
  return error_of(swapped);
}

int try_port_owners() {
  const auto holders = soft::kernel_holders(verbs::PortSpace::tcp, 1);
  return holders ? 0 : holders.error().code;
}

int try_port_names() {
  const auto holders = soft::named_holders(verbs::PortSpace::tcp, 1);
  return holders ? 0 : holders.error().code;
}

}  // namespace

int ask_kernel(KernelFeature feature) {
  switch (feature) {
    case KernelFeature::sealed_memfd: return try_segment();
    case KernelFeature::unix_sockets: return try_unix_socket();
    case KernelFeature::membarrier: return AsymmetricBarrier::register_process() ? 0 : ENOSYS;
    case KernelFeature::peer_writes: return try_peer_writes();
    case KernelFeature::page_sharing: return try_page_sharing(soft::OtherWriters::none);
    case KernelFeature::write_protection: return try_page_sharing(soft::OtherWriters::threads);
    case KernelFeature::port_owners: return try_port_owners();
    case KernelFeature::port_names: break;
  }
  return try_port_names();
}

}  // namespace ringsock::tools
