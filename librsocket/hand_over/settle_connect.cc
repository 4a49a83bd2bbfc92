#include "librsocket/hand_over/settle_connect.h"

#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <new>

#include "core/runtime/fork_registry.h"
#include "core/runtime/library_call.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

using runtime::Ref;
using transports::ChosenSocket;

bool connects_to_this_host(ChosenSocket& socket) {
  if (!socket.is_connecting_by_way()) return false;
  StreamCore& core = stream_of(socket).core();
  const std::lock_guard guard(core.setup_lock);
  return core.id && core.id->device().traits().is_embedded;
}

void settle_connect(ChosenSocket& socket, Nanos end) {
  while (socket.is_connecting_by_way() && monotonic_now() < end) {
    [[maybe_unused]] const std::uint32_t events = socket.ready();
    if (socket.is_connecting_by_way()) ::usleep(200);
  }
  if (!socket.is_connecting_by_way()) return;
  stream_of(socket).connector().give_up();
  [[maybe_unused]] const std::uint32_t events = socket.ready();  // the kernel connects if the ring has not
  if (socket.is_kernel_socket()) socket.give_up_way();
}

void settle_connects() noexcept try {
  const runtime::LibraryCall no_handlers;
  const int saved_errno = errno;
  const Nanos end = monotonic_now() + kAnswerPatience;
  for (const Ref& endpoint : runtime::fork_registry().endpoints()) {
    auto* const dual = endpoint->as_chosen_socket();
    if (dual != nullptr && !endpoint->is_closed()) settle_connect(*dual, end);
  }
  errno = saved_errno;
} catch (const std::bad_alloc&) {
}

}  // namespace ringsock::rs
