#include "libvmacompat/tcp/tcp_api.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <new>
#include <utility>

#include "core/engine/tcp/lending.h"
#include "libvmacompat/tcp/tcp_socket.h"

namespace ringsock::vma {

namespace tcp = engine::tcp;

namespace {

/// What only a copy can do.
constexpr int kByCopy = MSG_PEEK | MSG_OOB | MSG_ERRQUEUE | MSG_TRUNC;
/// What one more packet takes in a list.
constexpr std::size_t kRoomOfPiece = sizeof(vma_packet_t) + sizeof(iovec);

SocketAddress name_or_none(const Result<SocketAddress>& name) { return name ? *name : SocketAddress(); }

}  // namespace

/// A lent piece. It may outlive the socket.
class TcpApi::Memory final : public LentMemory {
 public:
  explicit Memory(std::shared_ptr<std::atomic<std::size_t>> returned) : returned_(std::move(returned)) {}
  ~Memory() override { returned_->fetch_add(piece.bytes.size(), std::memory_order_relaxed); }
  tcp::ByteQueue::Piece piece;

 private:
  std::shared_ptr<std::atomic<std::size_t>> returned_;
};

std::vector<std::shared_ptr<ethernet::Ring>> TcpApi::receiving_rings() {
  if (socket_.as_ring_user() == nullptr) return {};
  return {connection_.shared_ring()};
}

Status TcpApi::set_callback(vma_recv_callback_t, void*) { return Error{EINVAL, "register_recv_callback: a stream"}; }

/// Lends the next piece. Its place is taken before its bytes, so nothing is lost without memory. Returns false when
/// there is none, or no memory.
bool TcpApi::lend_piece(tcp::TcpConnection& engine, Nanos now, Received& out) noexcept {
  const LentPacket* packet = nullptr;
  try {
    out.pieces.emplace_back();
    auto made = std::make_unique<Memory>(returned_);
    Memory& memory = *made;
    packet = lent_packets().lend(lender(), std::move(made));
    if (packet != nullptr) {
      memory.piece = tcp::Lending(engine).lend(SIZE_MAX, now);
      out.pieces.back() = {packet, memory.piece.bytes};
      out.bytes += static_cast<ssize_t>(memory.piece.bytes.size());
      return true;
    }
  } catch (const std::bad_alloc&) {
    if (packet != nullptr) lent_packets().take_back(lender(), packet);
  }
  while (!out.pieces.empty() && out.pieces.back().bytes.empty()) out.pieces.pop_back();
  return false;
}

/// Lends what the engine has, up to `most` pieces. Returns how many bytes.
std::size_t TcpApi::lend_pieces(tcp::TcpConnection& engine, Nanos now, std::size_t most, Received& out) {
  while (out.pieces.size() < most && engine.readable() != 0 && lend_piece(engine, now, out)) {
  }
  return static_cast<std::size_t>(out.bytes);
}

Result<ApiSocket::Received> TcpApi::failed(Error error) {
  if (error.code == EIO && socket_.is_kernels_now()) return Received{.is_kernels = true};
  return error;
}

Result<ApiSocket::Received> TcpApi::receive_copy(msghdr& message, int flags, bool never_copies) {
  if (never_copies) return Error{EOPNOTSUPP, "recvfrom_zcopy: a copy"};
  const auto copied = socket_.receive(message, flags);
  return copied ? Result<Received>(Received{.bytes = *copied}) : failed(copied.error());
}

Result<ApiSocket::Received> TcpApi::receive_packet(msghdr& message, std::size_t, int flags, bool never_copies) {
  if (socket_.is_closed()) return Error{EBADF, "recvfrom_zcopy: closed meanwhile"};
  if ((flags & kByCopy) != 0) return receive_copy(message, flags, never_copies);
  const std::size_t room = message.msg_iov->iov_len;
  const std::size_t most = room < sizeof(vma_packets_t) ? 0 : (room - sizeof(vma_packets_t)) / kRoomOfPiece;
  message.msg_namelen = 0;  // as recvfrom(2)
  Received out;
  bool is_short = false;
  const auto got = stream_.receive_by([&](tcp::TcpConnection& engine, Nanos now) {
    const std::size_t bytes = lend_pieces(engine, now, most, out);
    is_short = bytes == 0 && engine.readable() != 0;
    return bytes;
  });
  // Another thread may have given the connection to the kernel since.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!out.pieces.empty() && socket_.as_ring_user() == nullptr) leave_to_kernel();
  if (is_short) return Error{ENOBUFS, "recvfrom_zcopy"};
  return got ? Result<Received>(std::move(out)) : failed(got.error());
}

void TcpApi::packets_freed() {
  const std::size_t bytes = returned_->exchange(0, std::memory_order_relaxed);
  if (bytes == 0) return;
  connection_.with_engine(
      [=](tcp::TcpConnection& engine, Nanos now) { return tcp::Lending(engine).take_back(bytes, now), true; });
}

bool TcpApi::trace(std::uint32_t segments) {
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
