// Members of the Extra API that give packets in buffers of the rings to the program. They are not there yet: a receive
// copies, as VMA's does where it cannot do otherwise.
#include "core/base/notice.h"
#include "core/base/user_memory.h"
#include "libvmacompat/extra_api/api_call.h"
#include "libvmacompat/extra_api/members.h"
#include "libvmacompat/process/vma_process.h"

// recvfrom(2) of the preload library, by the name that the linker does not send to libc (preload/route.h).
extern "C" decltype(recvfrom) ringsock_recvfrom;

namespace ringsock::vma::extra {

namespace {

constexpr Error kNoSocket{EINVAL, "the Extra API: the library does not carry the descriptor"};

int not_there() {
  return api_call([]() -> Result<int> {
    if (is_first(Notice::no_socketxtreme))
      process().log.write(config::VmaLogLevel::warning, "the functions of SocketXtreme are not available");
    return Error{EOPNOTSUPP, "SocketXtreme"};
  });
}

bool has_socket(int fd) {
  return api_call([&] { return with_socket(fd, 0, [](ApiSocket&) -> Result<int> { return 1; }); }) == 1;
}

}  // namespace

int register_recv_callback(int fd, vma_recv_callback_t callback, void*) {
  return api_call([&] {
    return with_socket(fd, kNoSocket, [&](ApiSocket&) -> Result<int> {
      if (callback == nullptr) return 0;
      return Error{ENOSYS, "register_recv_callback"};
    });
  });
}

int recvfrom_zcopy(int fd, void* room, std::size_t bytes, int* flags, sockaddr* from, socklen_t* from_length) {
  constexpr int kOurFlags = MSG_VMA_ZCOPY | MSG_VMA_ZCOPY_FORCE;
  if (flags == nullptr || !are_writable(flags)) {
    errno = EFAULT;
    return -1;
  }
  const bool is_ours = has_socket(fd);
  if (is_ours && (*flags & MSG_VMA_ZCOPY_FORCE) != 0) {
    errno = EIO;
    return -1;
  }
  // No call of the library is under way here: this one may wait.
  const ssize_t got = ringsock_recvfrom(fd, room, bytes, *flags & ~kOurFlags, from, from_length);
  if (is_ours) *flags &= ~kOurFlags;
  return static_cast<int>(got);
}

int free_packets(int fd, vma_packet_t*, std::size_t count) {
  return api_call([&] {
    return with_socket(fd, kNoSocket, [&](ApiSocket&) -> Result<int> {
      if (count == 0) return 0;
      return Error{ENOENT, "free_packets"};
    });
  });
}

int socketxtreme_poll(int, vma_completion_t*, unsigned int, int) { return not_there(); }
int socketxtreme_free_vma_packets(vma_packet_desc_t*, int) { return not_there(); }
int socketxtreme_ref_vma_buff(vma_buff_t*) { return not_there(); }
int socketxtreme_free_vma_buff(vma_buff_t*) { return not_there(); }

}  // namespace ringsock::vma::extra
