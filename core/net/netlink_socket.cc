#include "core/net/netlink_socket.h"

#include <netlink/errno.h>
#include <netlink/handlers.h>
#include <netlink/socket.h>
#include <sys/socket.h>

#include <cerrno>

#include "core/base/no_cancellation.h"
#include "core/base/unique_fd.h"

namespace ringsock::net {

namespace {

constexpr int kEventBufferBytes = 1 << 20;
constexpr std::size_t kAnswerBytes = 4096;
constexpr std::size_t kMessageBytes = 32768;  // the kernel's largest datagram of a dump

/// The state that the callbacks of one question share.
struct Answer {
  const OnMessage* on_message;
  int kernel_errno = 0;
};

int on_valid(nl_msg* message, void* argument) {
  (*static_cast<Answer*>(argument)->on_message)(*nlmsg_hdr(message));
  return NL_OK;
}

/// Keeps the kernel's error: libnl's own numbers are less precise.
int on_error(sockaddr_nl* /*from*/, nlmsgerr* error, void* argument) {
  static_cast<Answer*>(argument)->kernel_errno = -error->error;
  return NL_STOP;
}

using Callbacks = std::unique_ptr<nl_cb, decltype(&nl_cb_put)>;

Callbacks callbacks_for(Answer& answer) {
  Callbacks callbacks(nl_cb_alloc(NL_CB_DEFAULT), &nl_cb_put);
  if (callbacks) {
    nl_cb_set(callbacks.get(), NL_CB_VALID, NL_CB_CUSTOM, &on_valid, &answer);
    nl_cb_err(callbacks.get(), NL_CB_CUSTOM, &on_error, &answer);
  }
  return callbacks;
}

}  // namespace

NetlinkMessage make_message(int type, int flags, const void* header, std::size_t length) {
  NetlinkMessage message(nlmsg_alloc_simple(type, NLM_F_REQUEST | flags), &nlmsg_free);
  if (message && nlmsg_append(message.get(), const_cast<void*>(header), length, NLMSG_ALIGNTO) != 0) message.reset();
  return message;
}

void NetlinkSocket::Free::operator()(nl_sock* socket) const noexcept { nl_socket_free(socket); }

int NetlinkSocket::fd() const { return socket_ ? nl_socket_get_fd(socket_.get()) : -1; }

Result<NetlinkSocket> NetlinkSocket::open(int protocol) {
  // nl_connect() is not used: it derives port numbers from the process id, and its errors are not the kernel's.
  UniqueFd fd = out_of_the_way(UniqueFd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol)));
  if (!fd) return Error::last("netlink: socket");
  sockaddr_nl name{};
  name.nl_family = AF_NETLINK;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) return Error::last("netlink: bind");

  NetlinkSocket out;
  out.socket_.reset(nl_socket_alloc());
  if (!out.socket_) return Error{ENOMEM, "netlink"};
  if (nl_socket_set_fd(out.socket_.get(), protocol, fd.get()) < 0) return Error{EPROTO, "netlink: nl_socket_set_fd"};
  static_cast<void>(fd.release());
  nl_socket_disable_auto_ack(out.socket_.get());
  // Peeking would ask for each datagram's length first, with another system call.
  nl_socket_disable_msg_peek(out.socket_.get());
  return out;
}

Status NetlinkSocket::ask(nl_msg* message, const OnMessage& on_answer) {
  if (message == nullptr) return Error{ENOMEM, "netlink: question"};
  const bool is_dump = (nlmsg_hdr(message)->nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
  nl_socket_set_msg_buf_size(socket_.get(), is_dump ? kMessageBytes : kAnswerBytes);
  const NoCancellation until_it_is_freed;
  Answer answer{&on_answer};
  const Callbacks callbacks = callbacks_for(answer);
  if (!callbacks) return Error{ENOMEM, "netlink: question"};
  errno = 0;
  int result = nl_send_auto(socket_.get(), message);
  if (result >= 0) result = nl_recvmsgs(socket_.get(), callbacks.get());
  if (answer.kernel_errno != 0) return Error{answer.kernel_errno, "netlink: the kernel's answer"};
  if (result >= 0) return ok();
  if (result == -NLE_DUMP_INTR) return Error{EAGAIN, "netlink: the table changed meanwhile"};
  return Error{errno == ENOBUFS || errno == ENOMEM ? errno : EPROTO, "netlink: question"};
}

Status NetlinkSocket::listen(std::span<const int> groups) {
  nl_socket_disable_seq_check(socket_.get());
  nl_socket_set_msg_buf_size(socket_.get(), kMessageBytes);
  if (nl_socket_set_nonblocking(socket_.get()) < 0) return Error::last("netlink: O_NONBLOCK");
  // Without CAP_NET_ADMIN the buffer is limited to the administrator's maximum.
  if (::setsockopt(fd(), SOL_SOCKET, SO_RCVBUFFORCE, &kEventBufferBytes, sizeof kEventBufferBytes) != 0) {
    ::setsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &kEventBufferBytes, sizeof kEventBufferBytes);
  }
  Status status;
  for (const int group : groups) {
    const bool joined = ::setsockopt(fd(), SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group) == 0;
    if (!joined && status) status = Error::last("netlink: group");
  }
  return status;
}

Result<bool> NetlinkSocket::read_events(const OnMessage& on_event) {
  const NoCancellation until_it_is_freed;
  Answer answer{&on_event};
  const Callbacks callbacks = callbacks_for(answer);
  if (!callbacks) return Error{ENOBUFS, "netlink: events"};
  const int result = nl_recvmsgs(socket_.get(), callbacks.get());
  if (result >= 0) return true;
  if (result == -NLE_AGAIN) return false;
  // After any error (ENOBUFS, a truncated datagram) the tables must be read again.
  return Error{ENOBUFS, "netlink: events"};
}

}  // namespace ringsock::net
