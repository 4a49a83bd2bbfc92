// How processes that have a connection on a ring in common ask the one that uses it to go on by the kernel, where all
// of them can use it.
//
// The user keeps a door: a datagram socket whose name and key stand in the FamilyRecord, memory that nobody else has.
// What does not begin with the key is thrown away by the kernel while it is sent, descriptors included, so a stranger
// can hold up nobody; a caller throws away in the same way what does not prove that it comes from the user.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/runtime/endpoint.h"
#include "librsocket/family_record.h"
#include "librsocket/stream_socket.h"

namespace ringsock::preload {

class Door {
 public:
  /// Errors: those of socket(2), bind(2); ENOSYS without the kernel's socket filters.
  static Result<Door> open();
  [[nodiscard]] int fd() const { return socket_.get(); }
  /// The number is something else's.
  void disown() { static_cast<void>(socket_.release()); }
  /// This process is the connection's user, and this the way to it.
  void announce(rs::FamilyRecord& family) const;

  /// One who asks.
  struct Caller {
    std::uint64_t id;  ///< of the connection; 0: this process itself, for whatever it may have to do
    UniqueFd answer;
    /// Errors: those of sendmsg(2).
    [[nodiscard]] Status send(std::uint64_t proof, int kernel_socket) const;
  };
  /// Empty: nobody waits. Does not wait.
  std::optional<Caller> next();
  /// next() of this process finds a Caller with id 0. For signal handlers, too.
  void ring() const noexcept;

 private:
  UniqueFd socket_;
  std::uint64_t name_ = 0;
  std::uint64_t key_ = 0;
};

/// What the process that uses the connection answers: a kernel socket that goes on with it. Waits for that, at most
/// until `deadline`. Errors: EIO it has ended, or it has the connection no more; EAGAIN nobody uses it now; EALREADY
/// another thread has made the connection the kernel's meanwhile.
Result<UniqueFd> ask_user(const rs::StreamSocket& connection, Nanos deadline);

/// This process's door, from the first call on that needs it, served by a thread of its own. Threads: any; maybe inside
/// a read-side section.
void announce_door(rs::StreamSocket& connection) noexcept;

/// For a relay, which serves a door itself: the one that this process has, or a new one. Errors: those of Door::open().
Result<Door> take_own_door();
/// Its descriptor, or -1.
int own_door_number();

/// A connection that another process uses becomes the kernel's here, too, under the same numbers. Not inside a
/// read-side section. Errors: those of ask_user(); from then on EIO.
Status follow(rs::StreamSocket& connection);

/// StreamSocket::go_on_as(), once. Threads: any.
void move_to_kernel(rs::StreamSocket& connection, int kernel_socket);

/// Before this process ends: what it uses and others have, too, goes on by the kernel. Waits a little, and for nothing
/// of the thread that calls, which may be a signal handler's.
void leave_to_others() noexcept;

}  // namespace ringsock::preload
