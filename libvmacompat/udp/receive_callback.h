// The application's function that sees datagrams of a UDP socket before they are queued: register_recv_callback().
#pragma once

#include <mellanox/vma_extra.h>

#include <cstdint>

#include "core/base/mutex.h"
#include "core/ethernet/arrival.h"
#include "core/extra_api/callback_runner.h"
#include "core/extra_api/lent_packets.h"
#include "core/runtime/due_calls.h"
#include "core/runtime/endpoint.h"
#include "libvmacompat/udp/datagram_queue.h"
#include "libvmacompat/udp/kernel_socket.h"

namespace ringsock::vma {

/// A datagram that a ring delivers waits in the queue, unseen, until a call on the socket, or one that waits for it,
/// finds it. That call ends early, and the function runs where nothing of the library is on the stack
/// (core/runtime/due_calls.h); then the call is made again. So the function may do anything with any socket. One thread
/// at a time runs it for a socket, so datagrams keep their order; a call of the same thread inside it goes on with the
/// next datagram. Datagrams of the kernel's socket are not shown. Threads: any.
class ReceiveCallback final : public DueCall {
 public:
  ReceiveCallback(runtime::Endpoint& endpoint, KernelSocket& kernel, ReceiveQueue& queue)
      : endpoint_(endpoint), kernel_(kernel), queue_(queue) {}
  ReceiveCallback(const ReceiveCallback&) = delete;
  ReceiveCallback& operator=(const ReceiveCallback&) = delete;
  ~ReceiveCallback() { end(); }

  /// Sets the function; null: none. One that is running goes on.
  void set(vma_recv_callback_t function, void* context);
  /// Has the function run where the calling thread's call ends, if there are datagrams for it. Returns whether it will.
  [[nodiscard]] bool look() noexcept { return queue_.whole().has_unseen() && note(); }
  /// The same for a receive with these flags. Returns whether it has to be made again after the function in any case:
  /// one that does not wait is made again if the function leaves a datagram.
  [[nodiscard]] bool comes_first(int flags) noexcept { return queue_.whole().has_unseen() && note_for_receive(flags); }
  /// The number under which the socket lends packets.
  std::uint32_t lender() noexcept { return lender_.number(); }
  /// The socket is closed: takes back all packets that the application holds.
  void end() noexcept { lender_.end(); }
  /// Called in a forked child.
  void forget_after_fork() noexcept { runner_.forget(); }

  void run() override;
  runtime::Endpoint& endpoint() noexcept override { return endpoint_; }
  /// Held across fork(2) with the locks of the socket.
  Mutex& lock() { return lock_; }

 private:
  struct Function {
    vma_recv_callback_t call = nullptr;
    void* context = nullptr;
  };

  bool note() noexcept;
  bool note_for_receive(int flags) noexcept;
  Function function();
  void show(ethernet::Arrival arrival);

  runtime::Endpoint& endpoint_;
  KernelSocket& kernel_;
  ReceiveQueue& queue_;
  Mutex lock_;
  Function function_;
  CallbackRunner runner_;
  Lender lender_;
};

}  // namespace ringsock::vma
