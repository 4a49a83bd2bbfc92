#include "libvmacompat/udp/receive_callback.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <mutex>
#include <optional>
#include <utility>

#include "core/extra_api/lent_packets.h"

namespace ringsock::vma {

namespace {

timespec as_timespec(Nanos time) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  return {.tv_sec = time.count() / kSecond, .tv_nsec = time.count() % kSecond};
}

/// A packet that is lent while the function runs, and given back unless it is held.
class LentForCall {
 public:
  LentForCall(std::uint32_t lender, const ethernet::Arrival& arrival)
      : lender_(lender), packet_(lent_packets().lend(lender, arrival.buffer, arrival.packet().payload)) {}
  LentForCall(const LentForCall&) = delete;
  LentForCall& operator=(const LentForCall&) = delete;
  ~LentForCall() {
    if (packet_ != nullptr) lent_packets().take_back(lender_, packet_);
  }
  [[nodiscard]] LentPacket* get() const { return packet_; }
  void hold() { packet_ = nullptr; }

 private:
  const std::uint32_t lender_;
  LentPacket* packet_;
};

}  // namespace

void ReceiveCallback::set(vma_recv_callback_t function, void* context) {
  {
    const std::lock_guard guard(lock_);
    function_ = {function, context};
  }
  queue_.whole().show_to_callback(function != nullptr);
  if (function == nullptr && queue_.has_arrivals()) endpoint_.notify_watchers(EPOLLIN);
}

ReceiveCallback::Function ReceiveCallback::function() {
  const std::lock_guard guard(lock_);
  return function_;
}

bool ReceiveCallback::note() noexcept { return runner_.may_run() && runtime::note_due(*this); }

bool ReceiveCallback::note_for_receive(int flags) noexcept {
  const bool may_wait = !endpoint_.is_nonblocking() && (flags & MSG_DONTWAIT) == 0;
  return note() && may_wait;
}

void ReceiveCallback::run() {
  // A datagram that comes after the last look, while the thread still counts as the runner, is found by the next look.
  while (queue_.whole().has_unseen() && !endpoint_.is_closed()) {
    const CallbackRunner::Running running(runner_);
    if (!running) return;
    while (auto arrival = queue_.whole().take_unseen()) {
      show(*std::move(arrival));
      if (endpoint_.is_closed()) return end();
    }
  }
  if (!queue_.has_arrivals()) return;
  endpoint_.notify_watchers(EPOLLIN);
  runtime::note_left_for_call();
}

/// Calls the function. A datagram is dropped when it throws.
void ReceiveCallback::show(ethernet::Arrival arrival) {
  const Function function = this->function();
  LentForCall lent(lender_.number(), arrival);
  if (function.call == nullptr || lent.get() == nullptr) return queue_.whole().accept(std::move(arrival));
  const auto packet = arrival.packet();
  SocketAddress source = wire::source_of(packet.headers, packet.layout, packet.ifindex);
  SocketAddress destination = wire::destination_of(packet.headers, packet.layout, packet.ifindex);
  const auto waiting = queue_.whole().waiting();
  iovec part{const_cast<std::byte*>(packet.payload.data()), packet.payload.size()};
  vma_info_t info{};
  info.struct_sz = sizeof info;
  info.packet_id = lent.get();
  // NOLINTBEGIN(cppcoreguidelines-pro-type-const-cast): the program may write to the copies
  info.src = reinterpret_cast<sockaddr_in*>(const_cast<sockaddr*>(source.get()));
  info.dst = reinterpret_cast<sockaddr_in*>(const_cast<sockaddr*>(destination.get()));
  // NOLINTEND(cppcoreguidelines-pro-type-const-cast)
  info.payload_sz = packet.payload.size();
  info.socket_ready_queue_pkt_count = waiting.packets;
  info.socket_ready_queue_byte_count = waiting.bytes;
  info.sw_timestamp = as_timespec(packet.time);
  switch (function.call(kernel_.fd(), 1, &part, &info, function.context)) {
    case VMA_PACKET_HOLD: return lent.hold();
    case VMA_PACKET_RECV: return queue_.whole().accept(std::move(arrival));
    case VMA_PACKET_DROP: break;
  }
}

}  // namespace ringsock::vma
