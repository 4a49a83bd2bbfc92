// AIO and io_uring: the kernel works on the descriptors that a request names, without libc's functions, and the
// descriptor of a ring connection is its doorbell. So the sockets that a request names become kernel sockets before the
// kernel sees the request. Files, and sockets that no request names, are left alone.
#include <aio.h>
#include <dlfcn.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "core/base/log.h"
#include "core/base/user_memory.h"
#include "preload/async_calls.h"
#include "preload/route.h"

namespace ringsock::preload {

namespace {

/// A request that waits for an epoll set in the kernel sees events of kernel sockets only.
void leave_members_to_kernel() {
  leave_to_kernel("an epoll set in an asynchronous request");
  transports::give_everything_to_kernel();
}

void make_kernel_socket(const runtime::Ref& endpoint) {
  auto* const chosen = endpoint->as_chosen_socket();
  if (chosen != nullptr) {
    chosen->give_up_way();
    if (chosen->is_connecting_by_way()) hand_overs().become_kernels(endpoint);
  } else {
    endpoint->passed_on();  // datagrams that came by rings are in the kernel's socket from now on
  }
  if (endpoint->become_kernels() || !hand_overs().is_connection(*endpoint)) return;
  if (const auto done = hand_overs().hand_over_for_good(std::span(&endpoint, 1)); !done)
    log_warn("a connection cannot become the kernel's for an asynchronous request: %s", done.error().where);
}

void make_kernel_socket(int fd) noexcept {
  if (fd < 0 || !fd_table().holds(fd)) [[likely]]
    return;
  const LibraryCall no_handlers;
  const int saved_errno = errno;
  try {
    const runtime::Ref endpoint = fd_table().get(fd);
    if (endpoint) endpoint->as_epoll_set() != nullptr ? leave_members_to_kernel() : make_kernel_socket(endpoint);
  } catch (const std::bad_alloc&) {
    log_warn("descriptor %d: no memory to make it the kernel's for an asynchronous request", fd);
  }
  errno = saved_errno;
}

// -- AIO of libc ------------------------------------------------------------------------------------

/// Helper threads inside libc carry the requests out. A request that cannot be read is libc's matter.
template <class Request>
void look_at_request(const Request* request) {
  if (are_readable(request)) make_kernel_socket(request->aio_fildes);
}

/// libc skips null entries and those with LIO_NOP.
template <class Request>
void look_at_list(const Request* const* requests, int count) {
  constexpr std::size_t kPointerBytes = sizeof(void*);
  for (int i = 0; i < count && is_readable(&requests[i], kPointerBytes); ++i) {
    if (are_readable(requests[i]) && requests[i]->aio_lio_opcode != LIO_NOP)
      make_kernel_socket(requests[i]->aio_fildes);
  }
}

// -- io_uring by liburing --------------------------------------------------------------------------

/// Flags with which the entries lie as UringQueue says, and the kernel reads them only in the functions below.
constexpr unsigned kPlainFlags = IORING_SETUP_IOPOLL | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP |
                                 IORING_SETUP_ATTACH_WQ | IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL |
                                 IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CQE32 |
                                 IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;

/// The beginning of liburing's `struct io_uring`, whose ABI has not changed since 2.0 (liburing.h).
struct UringQueue {
  unsigned* kernel_head;
  unsigned* kernel_tail;
  unsigned* mask;
  unsigned* entries;
  unsigned* flags;
  unsigned* dropped;
  unsigned* array;
  io_uring_sqe* requests;
  unsigned head;  ///< the first request that the kernel has not been told of
  unsigned tail;
};

void look_at(const io_uring_sqe& request) {
  if ((request.flags & IOSQE_FIXED_FILE) == 0) make_kernel_socket(request.fd);
  switch (request.opcode) {
    case IORING_OP_SPLICE:
    case IORING_OP_TEE:
      if ((request.splice_flags & SPLICE_F_FD_IN_FIXED) == 0) make_kernel_socket(request.splice_fd_in);
      break;
    case IORING_OP_EPOLL_CTL: make_kernel_socket(static_cast<int>(request.off)); break;
    case IORING_OP_FILES_UPDATE:
      make_kernel_sockets(
          std::span(reinterpret_cast<const int*>(static_cast<std::uintptr_t>(request.addr)), request.len));
      break;
    default: break;
  }
}

void look_at_queue(const void* ring) {
  const auto& queue = *static_cast<const UringQueue*>(ring);
  const unsigned waiting = std::min(queue.tail - queue.head, *queue.mask + 1);
  for (unsigned i = 0; i < waiting; ++i) look_at(queue.requests[(queue.head + i) & *queue.mask]);
}

// -- the libraries ---------------------------------------------------------------------------------

/// Returns a function of liburing or libaio, or null. The library may be loaded where RTLD_NEXT does not look.
void* find(const char* name) {
  if (void* const found = ::dlsym(RTLD_NEXT, name)) return found;
  for (const char* library : {"liburing.so.2", "liburing.so.1", "libaio.so.1", "libaio.so.1t64"}) {
    void* const handle = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    void* const found = ::dlsym(handle, name);
    ::dlclose(handle);
    if (found != nullptr) return found;
  }
  return nullptr;
}

/// A function of these libraries, looked up at its first call. Returns -ENOSYS without the library.
class LateCall {
 public:
  explicit constexpr LateCall(const char* name) : name_(name) {}
  template <class... Arguments>
  int operator()(Arguments... arguments) {
    void* found = found_.load(std::memory_order_acquire);
    if (found == nullptr) found_.store(found = find(name_), std::memory_order_release);
    return found != nullptr ? reinterpret_cast<int (*)(Arguments...)>(found)(arguments...) : -ENOSYS;
  }

 private:
  const char* name_;
  std::atomic<void*> found_{nullptr};
};

unsigned flags_of(const void* parameters) {
  return parameters != nullptr ? static_cast<const io_uring_params*>(parameters)->flags : 0;
}

void before_set_up(unsigned flags) {
  if ((flags & ~kPlainFlags) != 0) leave_to_kernel("an io_uring whose requests are not seen");
}

}  // namespace

void make_kernel_sockets(std::span<const int> fds) noexcept {
  for (const int fd : fds) make_kernel_socket(fd);
}

void look_at_aio(long count, const iocb* const* requests) noexcept {
  for (long i = 0; i < count; ++i) {
    if (!is_readable(&requests[i], sizeof(void*))) return;
    if (are_readable(requests[i])) make_kernel_socket(static_cast<int>(requests[i]->aio_fildes));
  }
}

}  // namespace ringsock::preload

using namespace ringsock::preload;

// -- AIO -------------------------------------------------------------------------------------------

RS_INTERCEPT int aio_read(aiocb* request) {
  look_at_request(request);
  return real.aio_read(request);
}
RS_INTERCEPT int aio_read64(aiocb64* request) {
  look_at_request(request);
  return real.aio_read64(request);
}
RS_INTERCEPT int aio_write(aiocb* request) {
  look_at_request(request);
  return real.aio_write(request);
}
RS_INTERCEPT int aio_write64(aiocb64* request) {
  look_at_request(request);
  return real.aio_write64(request);
}
RS_INTERCEPT int lio_listio(int mode, aiocb* const* requests, int count, sigevent* told) {
  look_at_list(requests, count);
  return real.lio_listio(mode, requests, count, told);
}
RS_INTERCEPT int lio_listio64(int mode, aiocb64* const* requests, int count, sigevent* told) {
  look_at_list(requests, count);
  return real.lio_listio64(mode, requests, count, told);
}

RS_INTERCEPT int io_submit(void* context, long count, iocb** requests) {
  look_at_aio(count, requests);
  static constinit LateCall call(__func__);
  return call(context, count, requests);
}

// -- io_uring --------------------------------------------------------------------------------------

/// A program that makes the bare system call writes its requests where only the kernel reads them.
RS_INTERCEPT int io_uring_setup(unsigned entries, void* parameters) {
  leave_to_kernel(__func__);
  static constinit LateCall call(__func__);
  return call(entries, parameters);
}
RS_INTERCEPT int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) {
  before_set_up(flags);
  static constinit LateCall call(__func__);
  return call(entries, ring, flags);
}
RS_INTERCEPT int io_uring_queue_init_params(unsigned entries, void* ring, void* parameters) {
  before_set_up(flags_of(parameters));
  static constinit LateCall call(__func__);
  return call(entries, ring, parameters);
}
RS_INTERCEPT int io_uring_queue_init_mem(unsigned entries, void* ring, void* parameters, void* memory, size_t size) {
  before_set_up(flags_of(parameters));
  static constinit LateCall call(__func__);
  return call(entries, ring, parameters, memory, size);
}

RS_INTERCEPT int io_uring_submit(void* ring) {
  look_at_queue(ring);
  static constinit LateCall call(__func__);
  return call(ring);
}
RS_INTERCEPT int io_uring_submit_and_wait(void* ring, unsigned count) {
  look_at_queue(ring);
  static constinit LateCall call(__func__);
  return call(ring, count);
}
RS_INTERCEPT int io_uring_submit_and_get_events(void* ring) {
  look_at_queue(ring);
  static constinit LateCall call(__func__);
  return call(ring);
}
RS_INTERCEPT int io_uring_submit_and_wait_timeout(void* ring, void* completions, unsigned count, void* timeout,
                                                  void* mask) {
  look_at_queue(ring);
  static constinit LateCall call(__func__);
  return call(ring, completions, count, timeout, mask);
}
RS_INTERCEPT int io_uring_submit_and_wait_min_timeout(void* ring, void* completions, unsigned count, void* timeout,
                                                      unsigned min_wait, void* mask) {
  look_at_queue(ring);
  static constinit LateCall call(__func__);
  return call(ring, completions, count, timeout, min_wait, mask);
}
RS_INTERCEPT int io_uring_submit_and_wait_reg(void* ring, void* completions, unsigned count, int index) {
  look_at_queue(ring);
  static constinit LateCall call(__func__);
  return call(ring, completions, count, index);
}
RS_INTERCEPT int io_uring_wait_cqes(void* ring, void* completions, unsigned count, void* timeout, void* mask) {
  look_at_queue(ring);
  static constinit LateCall call(__func__);
  return call(ring, completions, count, timeout, mask);
}
RS_INTERCEPT int io_uring_wait_cqes_min_timeout(void* ring, void* completions, unsigned count, void* timeout,
                                                unsigned min_wait, void* mask) {
  look_at_queue(ring);
  static constinit LateCall call(__func__);
  return call(ring, completions, count, timeout, min_wait, mask);
}
RS_INTERCEPT int io_uring_wait_cqe_timeout(void* ring, void* completions, void* timeout) {
  look_at_queue(ring);
  static constinit LateCall call(__func__);
  return call(ring, completions, timeout);
}

RS_INTERCEPT int io_uring_register_files(void* ring, const int* fds, unsigned count) {
  make_kernel_sockets({fds, fds != nullptr ? count : 0});
  static constinit LateCall call(__func__);
  return call(ring, fds, count);
}
RS_INTERCEPT int io_uring_register_files_tags(void* ring, const int* fds, const void* tags, unsigned count) {
  make_kernel_sockets({fds, fds != nullptr ? count : 0});
  static constinit LateCall call(__func__);
  return call(ring, fds, tags, count);
}
RS_INTERCEPT int io_uring_register_files_update(void* ring, unsigned offset, const int* fds, unsigned count) {
  make_kernel_sockets({fds, fds != nullptr ? count : 0});
  static constinit LateCall call(__func__);
  return call(ring, offset, fds, count);
}
RS_INTERCEPT int io_uring_register_files_update_tag(void* ring, unsigned offset, const int* fds, const void* tags,
                                                    unsigned count) {
  make_kernel_sockets({fds, fds != nullptr ? count : 0});
  static constinit LateCall call(__func__);
  return call(ring, offset, fds, tags, count);
}
