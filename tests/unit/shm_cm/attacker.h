// What somebody can do who speaks to a listener by hand: packets with descriptors whose close blocks.
#pragma once

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

#include "core/base/socket_address.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/cm/cm_wire.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/names/port_name.h"
#include "core/device/shm/names/port_reservation.h"

namespace ringsock::tests {

/// From now on this process finds itself on a kernel that has no SO_PASSRIGHTS.
inline bool become_old_kernel() {
  constexpr unsigned kPassRights = 83;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPassRights, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// A TCP socket whose last close(2) takes a minute: SO_LINGER, and unsent data that a peer does not take. The peer
/// stays open in this process.
inline UniqueFd socket_that_lingers() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  const int small = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    ::abort();
  UniqueFd out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(out.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) ::abort();
  if (::accept(listener, nullptr, nullptr) < 0) ::abort();
  ::fcntl(out.get(), F_SETFL, O_NONBLOCK);
  static const char data[1 << 16]{};
  while (::send(out.get(), data, sizeof data, MSG_NOSIGNAL) > 0) {
  }
  ::fcntl(out.get(), F_SETFL, 0);
  const linger minute{1, 60};
  ::setsockopt(out.get(), SOL_SOCKET, SO_LINGER, &minute, sizeof minute);
  return out;
}

/// A client of a listener, or a listener, that speaks the protocol by hand. One per process.
class Attacker {
 public:
  /// Connects to the name of a listener, with a source port of its own.
  bool connect(std::uint16_t port) {
    target_ = SocketAddress::v4(INADDR_LOOPBACK, port);
    if (!source_.bind_ephemeral(verbs::PortSpace::tcp, SocketAddress::v4(INADDR_LOOPBACK, 0))) return false;
    link_ = source_.take_named_socket();
    ::fcntl(link_.get(), F_SETFL, 0);
    const soft::AbstractAddress name(soft::listening_name({verbs::PortSpace::tcp, target_, false}));
    return ::connect(link_.get(), name.get(), name.length) == 0;
  }
  /// Listens on a port that it owns, as an honest server does.
  std::uint16_t listen() {
    if (!source_.bind(verbs::PortSpace::tcp, SocketAddress::v4(INADDR_LOOPBACK, 0), {})) return 0;
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const soft::AbstractAddress name(soft::listening_name(source_.binding()));
    if (::bind(listener_.get(), name.get(), name.length) != 0 || ::listen(listener_.get(), 8) != 0) return 0;
    return source_.binding().address.port();
  }
  bool accept() {
    link_ = UniqueFd(::accept(listener_.get(), nullptr, nullptr));
    return static_cast<bool>(link_);
  }
  /// The memory that it offers: large enough for two small inboxes and `more`.
  bool make_memory(std::uint64_t more = 0) {
    offer_.inbox = soft::plan_inbox(0, 16, 4096, 4096);
    offer_.spare = soft::plan_inbox(offer_.inbox.bytes, 64, 131072, 65536);
    auto made = soft::make_segment(offer_.inbox.bytes + offer_.spare.bytes + more);
    if (!made) return false;
    memory_ = std::move(made->memfd);
    struct stat status {};
    if (::fstat(memory_.get(), &status) != 0) return false;
    offer_.memory = {status.st_dev, status.st_ino, static_cast<std::uint32_t>(memory_.get()), 0};
    offer_.flags = soft::kOfferHasMemfd | soft::kOfferNeedsFullFence;
    return true;
  }
  soft::QueuePairOffer& offer() { return offer_; }
  [[nodiscard]] int memory() const { return memory_.get(); }
  /// Packets; with a descriptor when the kernel takes one, else without.
  bool request(int descriptor = -1) {
    soft::ConnectRequest request;
    request.space = verbs::PortSpace::tcp;
    request.source = source_.binding().address;
    request.destination = target_;
    request.offer = offer_;
    return send(soft::LinkPacket::request, soft::encode_request(request).view(), descriptor);
  }
  bool reply(int descriptor = -1) {
    soft::ConnectReply reply;
    reply.offer = offer_;
    return send(soft::LinkPacket::reply, soft::encode_reply(reply).view(), descriptor);
  }
  bool send(soft::LinkPacket type, std::span<const std::byte> bytes, int descriptor) {
    std::byte packet[soft::kMaxLinkPacket];
    packet[0] = static_cast<std::byte>(type);
    std::copy(bytes.begin(), bytes.end(), packet + 1);
    iovec part{packet, bytes.size() + 1};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof descriptor)]{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      *CMSG_FIRSTHDR(&message) = {CMSG_LEN(sizeof descriptor), SOL_SOCKET, SCM_RIGHTS};
      std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &descriptor, sizeof descriptor);
      if (::sendmsg(link_.get(), &message, MSG_NOSIGNAL) >= 0) return true;
      if (errno != EPERM) return false;
      // Nobody has it but us: so that our own close of it is not the last.
      [[maybe_unused]] const int kept_until_exit = ::dup(descriptor);
      message.msg_control = nullptr;
      message.msg_controllen = 0;
    }
    return ::sendmsg(link_.get(), &message, MSG_NOSIGNAL) >= 0;
  }
  /// The type of the next packet; 0: the other side has hung up.
  unsigned hear() {
    std::byte packet[soft::kMaxLinkPacket];
    const ssize_t got = ::recv(link_.get(), packet, sizeof packet, 0);
    return got <= 0 ? 0 : static_cast<unsigned>(packet[0]);
  }
  void hang_up() { link_.reset(); }

 private:
  soft::PortReservation source_;
  SocketAddress target_;
  UniqueFd listener_;
  UniqueFd link_;
  UniqueFd memory_;
  soft::QueuePairOffer offer_{};
};

}  // namespace ringsock::tests
