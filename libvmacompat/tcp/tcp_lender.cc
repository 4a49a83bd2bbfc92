#include "libvmacompat/tcp/tcp_lender.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#include "core/extra_api/api_socket.h"
#include "core/runtime/fd_table.h"

namespace ringsock::vma {

namespace tcp = engine::tcp;

/// A lent piece. It may outlive the socket.
class TcpLender::Memory final : public LentMemory {
 public:
  explicit Memory(std::shared_ptr<std::atomic<std::size_t>> returned)
      : piece(std::make_shared<Piece>()), returned_(std::move(returned)) {}
  ~Memory() override { returned_->fetch_add(piece->bytes.size(), std::memory_order_relaxed); }
  const std::shared_ptr<Piece> piece;

 private:
  std::shared_ptr<std::atomic<std::size_t>> returned_;
};

/// A piece that a program that polls the ring has. It comes back by itself.
class TcpLender::PolledMemory final : public LentMemory {
 public:
  PolledMemory(std::shared_ptr<std::atomic<std::size_t>> returned, int fd) : returned_(std::move(returned)), fd_(fd) {}
  ~PolledMemory() override {
    if (piece.bytes.empty()) return;
    returned_->fetch_add(piece.bytes.size(), std::memory_order_relaxed);
    returned_.reset();
    tell();
  }
  Piece piece;

 private:
  /// Whatever socket has the number now: packets of its own may have come back.
  void tell() const noexcept {
    try {
      runtime::FdTable::Lookup found = runtime::fd_table().find(fd_);
      ApiSocket* const socket = found ? found->as_api_socket() : nullptr;
      if (socket == nullptr) return;
      found.pin();
      socket->packets_freed();
    } catch (const std::bad_alloc&) {  // the clock does it
    }
  }
  std::shared_ptr<std::atomic<std::size_t>> returned_;
  const int fd_;
};

LentPacket* TcpLender::lend_to_poll(tcp::TcpConnection& engine, Nanos now, std::size_t most, int fd) noexcept {
  LentPacket* out = nullptr;
  try {
    auto made = std::make_unique<PolledMemory>(returned_, fd);
    PolledMemory& memory = *made;
    out = lent_packets().lend(LentPackets::kNobody, std::move(made));
    if (out == nullptr) return nullptr;
    memory.piece = tcp::Lending(engine).lend(std::min<std::size_t>(most, UINT16_MAX), now);
    const auto bytes = memory.piece.bytes;
    out->buffer.payload = const_cast<std::byte*>(bytes.data());
    out->buffer.len = static_cast<std::uint16_t>(bytes.size());
    if (!bytes.empty()) return out;
  } catch (const std::bad_alloc&) {
  }
  if (out != nullptr) lent_packets().take_back(LentPackets::kNobody, out);
  return nullptr;
}

TcpLender::Lent TcpLender::lend(tcp::TcpConnection& engine, Nanos now) noexcept {
  Lent out;
  try {
    auto made = std::make_unique<Memory>(returned_);
    const Memory& memory = *made;
    out.packet = lent_packets().lend(number(), std::move(made));
    if (out.packet == nullptr) return {};
    *memory.piece = tcp::Lending(engine).lend(SIZE_MAX, now);
    out.piece = memory.piece;
    return out;
  } catch (const std::bad_alloc&) {
    if (out.packet != nullptr) lent_packets().take_back(number(), out.packet);
    return {};
  }
}

void TcpLender::take_back(const LentPacket* packet) {
  // Left to the kernel meanwhile, or taken back by close(2).
  if (!lent_packets().take_back(number(), packet)) lent_packets().take_back(LentPackets::kLeft, packet);
  packets_freed();
}

void TcpLender::packets_freed() {
  const std::size_t bytes = returned_->exchange(0, std::memory_order_relaxed);
  if (bytes == 0) return;
  connection_.with_engine(
      [=](tcp::TcpConnection& engine, Nanos now) { return tcp::Lending(engine).take_back(bytes, now), true; });
}

}  // namespace ringsock::vma
