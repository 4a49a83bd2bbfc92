// The error queue of a socket: what became of zero-copy sends and of bytes whose times are wanted (MSG_ERRQUEUE).
#pragma once

#include <sys/socket.h>
#include <time.h>

// Needs struct timespec.
#include <linux/errqueue.h>

#include <cstdint>
#include <deque>

#include "core/base/clock.h"

namespace ringsock::packetdrill {

class Notices {
 public:
  bool zero_copy = false;           ///< SO_ZEROCOPY
  std::uint32_t time_stamping = 0;  ///< SO_TIMESTAMPING

  void set_time_stamping(std::uint32_t flags);
  /// `bytes` have been taken for sending.
  void written(std::size_t bytes, int flags);
  /// Looks at how many bytes wait, unsent and unacknowledged.
  void progress(std::size_t unsent, std::size_t unacked, Nanos now);
  [[nodiscard]] bool empty() const { return queue_.empty(); }
  /// recvmsg() with MSG_ERRQUEUE: takes the oldest. There must be one.
  void take(msghdr& message, bool v6);

 private:
  struct Write {
    std::uint64_t end;  ///< bytes that were written up to it
    std::uint32_t zero_copy_id;
    bool zero_copy;
    bool wants_time;
    bool sent = false;
  };
  struct Notice {
    sock_extended_err error;
    Nanos when;
  };
  void add_time(std::uint32_t kind, std::uint64_t end, Nanos now);
  void add_zero_copy(std::uint32_t id);

  std::uint64_t total_ = 0;
  std::uint64_t base_ = 0;  ///< total when SOF_TIMESTAMPING_OPT_ID was set
  std::uint32_t next_zero_copy_ = 0;
  std::deque<Write> writes_;
  std::deque<Notice> queue_;
};

}  // namespace ringsock::packetdrill
