#include "libvmacompat/tcp/tcp_api.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>

#include "core/extra_api/packet_list.h"
#include "libvmacompat/tcp/tcp_socket.h"

namespace ringsock::vma {

namespace tcp = engine::tcp;

namespace {

/// What only a copy can do.
constexpr int kByCopy = MSG_PEEK | MSG_OOB | MSG_ERRQUEUE | MSG_TRUNC;

SocketAddress name_or_none(const Result<SocketAddress>& name) { return name ? *name : SocketAddress(); }

}  // namespace

std::vector<std::shared_ptr<ethernet::Ring>> TcpApi::receiving_rings() {
  if (!socket_.is_on_ring()) return events_.rings();
  return {connection_.shared_ring()};
}

Status TcpApi::set_callback(vma_recv_callback_t function, void* context) {
  callback_.set(function, context);
  return ok();
}

/// Lends what the engine has, while the list has room. Returns how many bytes; less without memory.
std::size_t TcpApi::lend_pieces(tcp::TcpConnection& engine, Nanos now, PacketList& list) noexcept {
  std::size_t bytes = 0;
  while (list.has_room() && engine.readable() != 0) {
    const TcpLender::Lent lent = lender_.lend(engine, now);
    if (lent.packet == nullptr) break;
    list.add(*lent.packet, lent.piece->bytes);
    bytes += lent.piece->bytes.size();
  }
  return bytes;
}

Result<ApiSocket::Received> TcpApi::failed(Error error) {
  if (error.code == EIO && socket_.is_kernels_now()) return Received{.as = Received::As::nothing};
  return error;
}

Result<ApiSocket::Received> TcpApi::receive_copy(msghdr& message, int flags, bool never_copies) {
  if (never_copies) return Error{EOPNOTSUPP, "recvfrom_zcopy: a copy"};
  const auto copied = socket_.receive(message, flags);
  return copied ? Result<Received>(Received{.bytes = *copied}) : failed(copied.error());
}

Result<ApiSocket::Received> TcpApi::receive_packets(PacketList& list, msghdr& message, int flags, bool never_copies) {
  if (socket_.is_closed()) return Error{EBADF, "recvfrom_zcopy: closed meanwhile"};
  if ((flags & kByCopy) != 0) return receive_copy(message, flags, never_copies);
  message.msg_namelen = 0;  // as recvfrom(2)
  if (callback_.is_set()) [[unlikely]] {
    if (const int error = callback_.comes_first(flags))
      return Error{error, "recvfrom_zcopy: the application's callback"};
  }
  bool is_short = false;
  const auto got = stream_.receive_by([&](tcp::TcpConnection& engine, Nanos now) {
    if (callback_.hides(engine)) return std::size_t{0};
    const std::size_t bytes = lend_pieces(engine, now, list);
    callback_.note_read(engine);
    is_short = bytes == 0 && engine.readable() != 0;
    return bytes;
  });
  // Another thread may have given the connection to the kernel since.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!list.is_empty() && !socket_.is_on_ring()) lender_.leave_to_kernel();
  if (is_short) return Error{ENOBUFS, "recvfrom_zcopy"};
  if (!got) return failed(got.error());
  return Received{.bytes = *got, .as = list.is_empty() ? Received::As::bytes : Received::As::packets};
}

bool TcpApi::trace(std::uint32_t segments) {
  if (!socket_.is_on_ring()) return false;
  connection_.trace(segments);
  return true;
}

void TcpApi::refresh_statistics() {
  const auto info = connection_.with_engine([](tcp::TcpConnection& engine, Nanos) { return engine.info(); });
  const int fd = socket_.fd();
  if (!info || fd < 0) return;
  struct stat status {};
  static_cast<void>(::fstat(fd, &status));
  statistics_.show(*info, {.fd = fd,
                           .inode = status.st_ino,
                           .is_tcp = true,
                           .is_offloaded = true,
                           .is_blocking = !socket_.is_nonblocking(),
                           .local = name_or_none(name_by(::getsockname, fd, "getsockname")),
                           .peer = name_or_none(name_by(::getpeername, fd, "getpeername"))});
}

}  // namespace ringsock::vma
