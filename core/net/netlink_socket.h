// A netlink socket of libnl with one owner, and requests on it.
#pragma once

#include <linux/netlink.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>

#include <functional>
#include <memory>
#include <span>

#include "core/base/result.h"

struct nl_sock;

namespace ringsock::net {

using NetlinkMessage = std::unique_ptr<nl_msg, decltype(&nlmsg_free)>;
using OnMessage = std::function<void(const nlmsghdr&)>;

/// Makes a request whose fixed part is `header`. Returns null without memory.
NetlinkMessage make_message(int type, int flags, const void* header, std::size_t length);
template <class Header>
NetlinkMessage make_message(int type, int flags, const Header& header) {
  return make_message(type, flags, &header, sizeof header);
}

/// Threads: one at a time.
class NetlinkSocket {
 public:
  NetlinkSocket() = default;
  /// Opens a socket in the calling thread's network namespace, with a high descriptor number. Errors: EMFILE, ENOMEM,
  /// EPROTONOSUPPORT the kernel does not have `protocol`.
  static Result<NetlinkSocket> open(int protocol);

  [[nodiscard]] int fd() const;
  explicit operator bool() const { return socket_ != nullptr; }

  /// Sends `message` (null: ENOMEM) and hands each message of the answer to `on_answer`; waits for the kernel, which
  /// answers within the call. Errors: the kernel's own, as errno(3) has them; EAGAIN a table changed while it was read,
  /// so that some of it may be missing; ENOBUFS, EPROTO the socket is of no use any more.
  Status ask(nl_msg* message, const OnMessage& on_answer);

  /// Makes the socket listen to `groups`, without blocking reads. Errors: that of the first group that could not be
  /// joined.
  Status listen(std::span<const int> groups);
  /// Reads one datagram of events, if any. @return whether there was one. Errors: ENOBUFS some were lost.
  Result<bool> read_events(const OnMessage& on_event);

 private:
  struct Free {
    void operator()(nl_sock* socket) const noexcept;
  };
  std::unique_ptr<nl_sock, Free> socket_;
};

}  // namespace ringsock::net
