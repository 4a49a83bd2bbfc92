#include "libvmacompat/tcp/tcp_lender.h"

#include <new>
#include <utility>

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
