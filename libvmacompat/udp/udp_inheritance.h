// A UDP socket before, during and after fork(2), exec(2), and SCM_RIGHTS.
#pragma once

#include <atomic>
#include <memory>

#include "core/base/clock.h"
#include "core/runtime/endpoint.h"
#include "libvmacompat/udp/flows.h"
#include "libvmacompat/udp/socket_family.h"

namespace ringsock::vma {

class Sender;

/// When several processes have a socket, only the kernel knows which of them gets a datagram. So the kernel receives
/// for the socket as long as several processes have it. Datagrams that rings have received and the program has not read
/// are returned to the kernel. The last process that has the socket uses rings again. Locks: functions are called with
/// the setup lock held unless they say otherwise. Threads: any.
class Inheritance {
 public:
  Inheritance(runtime::Endpoint& endpoint, KernelSocket& kernel, PolledRings& rings, ReceiveQueue& queue, Flows& flows,
              Sender& sender)
      : endpoint_(endpoint), kernel_(kernel), rings_(rings), queue_(queue), flows_(flows), sender_(sender) {}

  /// Leaves the rings, because another process will have the socket, too.
  void leave_rings() noexcept;
  /// The same before fork(2).
  void before_fork();
  /// The socket was sent to another process, which cannot be followed.
  void add_stranger();
  /// Called in a forked child, without a lock.
  void enter_child();
  /// This process no longer has the socket.
  void leave();

  /// Returns to the rings if the other processes are gone. Looks now and then, however often it is called.
  void return_when_alone() noexcept;
  /// The same for calls on the socket, without a lock. It is cheap as long as the process has not forked.
  [[gnu::always_inline]] void look() noexcept {
    if (is_inherited_.load(std::memory_order_relaxed)) [[unlikely]]
      look_for_family();
  }

 private:
  void look_for_family() noexcept;
  void return_arrivals() noexcept;

  runtime::Endpoint& endpoint_;
  KernelSocket& kernel_;
  PolledRings& rings_;
  ReceiveQueue& queue_;
  Flows& flows_;
  Sender& sender_;

  std::atomic<bool> is_inherited_{false};
  bool was_kernel_only_ = false;
  std::shared_ptr<SocketFamily> family_;
  Nanos next_look_{};
  Nanos look_pause_{};
};

}  // namespace ringsock::vma
