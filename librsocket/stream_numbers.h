// The descriptor numbers of a stream socket, and its close.
#pragma once

#include <vector>

#include "core/base/unique_fd.h"
#include "core/runtime/roles.h"
#include "librsocket/stream_core.h"

namespace ringsock::rs {

/// Follows the numbers under which the application knows the socket. The connection's own descriptor takes the place of
/// the kernel socket that held the port. Functions take setup_lock, and the close also send_lock, unless they say
/// otherwise.
class StreamNumbers final : public runtime::DescriptorLife, public StreamPart {
 public:
  StreamNumbers(StreamSocket& socket, StreamCore& core) : StreamPart(socket, core) {}

  void closed() noexcept override;
  void descriptor_closed(int fd) noexcept override;
  void descriptor_vanished(int fd) noexcept override;
  void give_up_descriptor() noexcept override;
  Nanos linger() noexcept override;
  bool is_drained() noexcept override;
  bool owns_descriptor(int fd) const noexcept override {
    return fd == core_.fd && core_.connection_owns_fd.load(std::memory_order_acquire);
  }

  /// Resets the connection, whatever other processes have it. Without locks.
  void reset() noexcept;
  /// Keeps the port of the kernel socket while connected.
  void hold_port() { holds_port_ = true; }
  /// Returns whether bind(2) has given the socket its port.
  [[nodiscard]] bool holds_port() const { return holds_port_; }
  /// Gives the connection that has just been made the socket's number. setup_lock must be held.
  void take_over_number();
  /// Makes the descriptors of a connection that another process carries on refer to `kernel_socket`, also in epoll
  /// sets. The caller keeps `kernel_socket`. Must not be called inside a read-side section.
  void go_on_as(int kernel_socket);
  /// Gives up the socket without a message to the peer. The caller closes the descriptor. setup_lock must be held, or
  /// no other thread may exist.
  void let_go_silently() noexcept;
  /// In a forked child.
  void forget_left_number() { left_number_.reset(); }
  /// Ends a socket that the application has never seen, and so has not closed. For the destructor.
  void end_unseen() noexcept;

 private:
  struct Number {
    int fd;
    int flags;  ///< O_CLOEXEC, or 0
  };
  [[nodiscard]] std::vector<Number> all_numbers() const;
  bool moves_to_other_number(int fd) noexcept;
  void take_number();
  void give_to_duplicates();
  bool end_connection() noexcept;
  bool disconnect() noexcept;
  [[nodiscard]] bool leaves_bytes_unread() noexcept;

  bool has_own_number_ = false;  ///< from give_up_descriptor(): the application does not know the number
  bool holds_port_ = false;
  UniqueFd port_holder_;  ///< a kernel socket with a port that bind(2) chose, while connected
  UniqueFd left_number_;  ///< the number, when another process has the connection
};

}  // namespace ringsock::rs
