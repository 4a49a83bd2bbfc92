#include "librsocket/stream_lender.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/at_fork.h"
#include "librsocket/progress.h"
#include "librsocket/stream_api.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

namespace {
/// A piece of what lies in the overflow area. A packet has no more bytes than a datagram may have.
constexpr std::uint64_t kMostCopied = 65536;
/// All copies of a socket that the program may have when it gets another one.
constexpr std::size_t kMostCopies = std::size_t{1} << 20;
}  // namespace

/// A lent piece.
class StreamLender::Memory final : public vma::LentMemory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() override {
    if (copies_) copies_->fetch_sub(bytes_, std::memory_order_relaxed);
    if (returned_) returned_->pieces[segment_].fetch_add(1, std::memory_order_release);
    if (is_polled_ && process_ == fork_generation()) tell();
  }
  /// It lies in that segment of the ring.
  void is_in(runtime::Endpoint& endpoint, std::shared_ptr<Returned> returned, std::uint32_t segment) {
    endpoint_ = runtime::Ref::share(endpoint);
    returned_ = std::move(returned);
    segment_ = segment % engine::ReceiveWindow::kMaxSegments;
  }
  /// A program has it that polls the shared ring. The socket is told when it comes back.
  void is_polled(runtime::Endpoint& endpoint) {
    if (!endpoint_) endpoint_ = runtime::Ref::share(endpoint);
    process_ = fork_generation();
    is_polled_ = true;
  }
  /// It is a copy. Errors: std::bad_alloc.
  std::span<std::byte> room(std::size_t bytes, std::shared_ptr<std::atomic<std::size_t>> copies) {
    copy_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    copies_ = std::move(copies);
    bytes_ = bytes;
    copies_->fetch_add(bytes_, std::memory_order_relaxed);
    return {copy_.get(), bytes};
  }

 private:
  void tell() const noexcept {
    if (endpoint_->is_closed() || endpoint_->has_left_to_kernel()) return;
    if (StreamApi* const api = stream_of(*endpoint_).core().api()) api->polled_packets_freed();
  }

  runtime::Ref endpoint_;  ///< keeps the ring
  bool is_polled_ = false;
  unsigned process_ = 0;  ///< fork_generation()
  std::shared_ptr<Returned> returned_;
  std::uint32_t segment_ = 0;
  std::unique_ptr<std::byte[]> copy_;
  std::shared_ptr<std::atomic<std::size_t>> copies_;
  std::size_t bytes_ = 0;
};

/// Returns where the pieces that are lent now come back to. Errors: std::bad_alloc.
std::shared_ptr<StreamLender::Returned> StreamLender::returned() {
  const std::uint32_t now = core_.connection->receiving().window().holding();
  if (!returned_ || holding_ != now) {
    returned_ = std::make_shared<Returned>();
    holding_ = now;
  }
  return returned_;
}

bool StreamLender::must_wait() const noexcept {
  const MessageReceiver& receiving = core_.connection->receiving();
  return receiving.in_ring() == 0 && receiving.readable() > 0 &&
         copied_->load(std::memory_order_relaxed) >= kMostCopies;
}

/// Takes the next bytes, at most `most`. What may fail comes before. Errors: std::bad_alloc.
std::span<const std::byte> StreamLender::fill(Memory& memory, std::size_t most) {
  MessageReceiver& receiving = core_.connection->receiving();
  if (receiving.in_ring() > 0) {
    auto returned = this->returned();
    const auto piece = receiving.lend(static_cast<std::uint32_t>(std::min<std::size_t>(most, UINT32_MAX)));
    if (!piece.bytes.empty()) memory.is_in(core_.endpoint, std::move(returned), piece.segment);
    return piece.bytes;
  }
  const auto copy = memory.room(std::min<std::uint64_t>({receiving.readable(), kMostCopied, most}), copied_);
  IoCursor all(copy.data(), copy.size());
  return copy.first(receiving.receive_anyway(all, false));
}

StreamLender::Piece StreamLender::lend() noexcept {
  if (core_.connection->receiving().readable() == 0 || core_.is_suspended()) return {};
  Piece out;
  try {
    auto made = std::make_unique<Memory>();
    Memory& memory = *made;
    out.packet = vma::lent_packets().lend(number(), std::move(made));
    if (out.packet == nullptr) return {};
    out.bytes = fill(memory, SIZE_MAX);
    if (!out.bytes.empty()) return out;
  } catch (const std::bad_alloc&) {
  }
  if (out.packet != nullptr) vma::lent_packets().take_back(number(), out.packet);
  return {};
}

vma::LentPacket* StreamLender::lend_to_poll(std::size_t most) noexcept {
  if (core_.connection->receiving().readable() == 0 || core_.is_suspended()) return nullptr;
  vma::LentPacket* out = nullptr;
  try {
    auto made = std::make_unique<Memory>();
    Memory& memory = *made;
    out = vma::lent_packets().lend(vma::LentPackets::kNobody, std::move(made));
    if (out == nullptr) return nullptr;
    const auto bytes = fill(memory, most);
    out->buffer.payload = const_cast<std::byte*>(bytes.data());  // the program may write to its packets
    out->buffer.len = static_cast<std::uint16_t>(bytes.size());
    if (!bytes.empty()) return memory.is_polled(core_.endpoint), out;
  } catch (const std::bad_alloc&) {
  }
  if (out != nullptr) vma::lent_packets().take_back(vma::LentPackets::kNobody, out);
  return nullptr;
}

void StreamLender::take_back(const vma::LentPacket* packet) noexcept {
  // close(2), or the way to the kernel, may have been first.
  if (!vma::lent_packets().take_back(number(), packet)) vma::lent_packets().take_back(vma::LentPackets::kLeft, packet);
  packets_freed();
}

/// Returns false when the peer has to be told, and cannot yet.
bool StreamLender::announce_freed() {
  const std::lock_guard reading(core_.receive_lock);
  MessageReceiver& receiving = core_.connection->receiving();
  const bool is_known = returned_ && holding_ == receiving.window().holding();
  for (std::uint32_t i = 0; is_known && i < returned_->pieces.size(); ++i) {
    if (returned_->pieces[i].load(std::memory_order_relaxed) == 0) continue;
    const std::uint32_t pieces = returned_->pieces[i].exchange(0, std::memory_order_acquire);
    receiving.take_back(i, pieces);
  }
  return receiving.announce_if_due();
}

void StreamLender::packets_freed() noexcept {
  if (!core_.is_connected() || announce_freed()) return;
  progress_.poll();
  static_cast<void>(announce_freed());
}

}  // namespace ringsock::rs
