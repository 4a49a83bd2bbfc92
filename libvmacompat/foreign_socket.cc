#include "libvmacompat/foreign_socket.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <system_error>
#include <thread>
#include <utility>

#include "core/base/own_threads.h"
#include "core/base/signals_blocked.h"

namespace ringsock::vma {

namespace {

#ifndef SO_PASSRIGHTS
constexpr int SO_PASSRIGHTS = 83;
#endif

/// After shutdown(2) nothing comes any more.
bool is_anything_queued(int socket) {
  int bytes = 0;
  char byte = 0;
  return (::ioctl(socket, SIOCINQ, &bytes) == 0 && bytes > 0) || ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void close_elsewhere(UniqueFd socket) {
  const int number = socket.release();
  try {
    const SignalsBlocked blocked;
    std::thread([number] {
      const OwnThread counted;
      const UniqueFd closed(number);
    }).detach();
  } catch (const std::system_error&) {
    // It stays open: better a descriptor less than a program that stands still.
  }
}

}  // namespace

void refuse_descriptors(int socket) {
  const int off = 0;
  ::setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off);
}

void close_foreign_socket(UniqueFd socket) {
  if (!socket) return;
  ::shutdown(socket.get(), SHUT_RDWR);
  if (is_anything_queued(socket.get())) close_elsewhere(std::move(socket));
}

void close_foreign_listener(UniqueFd listener) {
  if (!listener) return;
  ::shutdown(listener.get(), SHUT_RDWR);
  for (;;) {
    UniqueFd visitor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!visitor) break;
    close_foreign_socket(std::move(visitor));
  }
}

}  // namespace ringsock::vma
