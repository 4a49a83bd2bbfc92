// How processes that share a connection on a ring ask its user to continue by a kernel socket, which all of them can
// use.
//
// The user keeps a door: a datagram socket whose name and key stand in the FamilyRecord, which is memory of these
// processes only. A packet that does not begin with the key is dropped by a socket filter while it is sent, with its
// descriptors, so a stranger cannot block the door. In the same way the caller's socket drops packets that do not begin
// with the user's proof.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/runtime/endpoint.h"
#include "librsocket/family_record.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

class Door {
 public:
  /// Opens a door with a random name and key. Errors: those of getrandom(2), socket(2), setsockopt(2) and bind(2).
  static Result<Door> open();
  [[nodiscard]] int fd() const { return socket_.get(); }
  /// Gives the number up without closing it: it is another file's by now.
  void disown() { static_cast<void>(socket_.release()); }
  /// Records that this process is the connection's user, and that this is its door.
  void announce(FamilyRecord& family) const;

  /// A question that has come to the door.
  struct Caller {
    std::uint64_t id;  ///< of the connection; 0: none
    UniqueFd answer;
    /// Sends the answer: a kernel socket for the connection. Errors: those of sendmsg(2).
    [[nodiscard]] Status send(std::uint64_t proof, int kernel_socket) const;
  };
  /// Takes the next question. Returns nothing when none has come. Does not wait.
  std::optional<Caller> next();

 private:
  UniqueFd socket_;
  std::uint64_t name_ = 0;
  std::uint64_t key_ = 0;
};

/// Asks the process that uses the connection for a kernel socket that continues it. Waits until `deadline` at most.
/// Errors: EIO: that process has ended, or no longer has the connection; EAGAIN: no process uses it now; EALREADY:
/// another thread has moved the connection to the kernel meanwhile; ETIMEDOUT.
Result<UniqueFd> ask_user(const StreamSocket& connection, Nanos deadline);

/// Names this process's door in the connection's FamilyRecord. The first call opens the door. The service thread
/// watches it, and a thread of its own answers. Threads: any; may be called inside a read-side section.
void announce_door(StreamSocket& connection) noexcept;

/// Gives this process's door, or a new one, to a relay, which serves it itself. Errors: those of Door::open().
Result<Door> take_own_door();
/// Returns the door's descriptor, or -1.
int own_door_number();

/// Moves a connection that another process uses to the kernel in this process, too, under the same numbers. Not inside
/// a read-side section. Errors: those of hand_over_for_good() and of ask_user(); after the latter, calls on the
/// connection fail with EIO.
Status follow(StreamSocket& connection);
/// Returns whether this process may use a connection that others have, too, and that may have been used by one of them
/// before. False where the connection's own failure is EIO.
bool has_come_back(StreamSocket& connection);

/// Calls StreamSocket::go_on_as() unless the connection has moved already. Threads: any.
void move_to_kernel(StreamSocket& connection, int kernel_socket);

/// That of transports::HandOvers.
void wait_for_moves();

/// Lets other processes ask this one for connections that both have, and this one the others. Call it before the
/// program begins, and forks.
void let_others_ask();

/// Those of transports::HandOvers.
void finish_answers() noexcept;
void answer_again() noexcept;

}  // namespace ringsock::rs
