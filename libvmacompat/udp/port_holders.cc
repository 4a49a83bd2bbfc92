#include "libvmacompat/udp/port_holders.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "core/net/ip_address.h"

namespace ringsock::vma {

namespace {

constexpr int kLoopbackInterface = 1;  // in every network namespace
constexpr std::size_t kRoom = std::size_t{32} * 1024;
/// How often a question is asked. The kernel may be short of memory, or sockets may come and go during its answer.
constexpr int kAttempts = 4;

/// Calls `visit(type, data, length)` for each attribute behind a message's fixed part.
template <class Visit>
void for_each_attribute(const std::byte* at, std::size_t length, Visit visit) {
  rtattr head;
  while (length >= sizeof head) {
    std::memcpy(&head, at, sizeof head);
    if (head.rta_len < sizeof head || head.rta_len > length) return;
    visit(head.rta_type, at + sizeof head, head.rta_len - sizeof head);
    const std::size_t step = std::min<std::size_t>(RTA_ALIGN(head.rta_len), length);
    at += step;
    length -= step;
  }
}

SocketAddress local_of(const inet_diag_msg& entry) {
  const std::uint16_t port = ntohs(entry.id.idiag_sport);
  if (entry.idiag_family == AF_INET) return SocketAddress::v4(ntohl(entry.id.idiag_src[0]), port);
  in6_addr host{};
  std::memcpy(&host, entry.id.idiag_src, sizeof host);
  return SocketAddress::v6(host, port, 0);
}

PortHolder read_holder(const inet_diag_msg& entry, const std::byte* attributes, std::size_t length) {
  PortHolder out{{local_of(entry), false, static_cast<int>(entry.id.idiag_if)}, entry.idiag_uid, entry.idiag_inode};
  for_each_attribute(attributes, length, [&](int type, const std::byte* data, std::size_t size) {
    if (type == INET_DIAG_SKV6ONLY && size >= 1) out.place.v6_only = data[0] != std::byte{0};
  });
  return out;
}

NameHolder read_name(const std::byte* attributes, std::size_t length) {
  NameHolder out{{}, static_cast<uid_t>(-1)};
  for_each_attribute(attributes, length, [&](int type, const std::byte* data, std::size_t size) {
    if (type == UNIX_DIAG_UID && size >= sizeof out.uid) std::memcpy(&out.uid, data, sizeof out.uid);
    if (type == UNIX_DIAG_NAME && size > 1 && data[0] == std::byte{0})
      out.name.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  });
  return out;
}

/// Reads the last message, NLMSG_DONE or NLMSG_ERROR: both begin with a negative errno, or 0. Returns false: nothing
/// follows.
Result<bool> end_of(const std::byte* data, std::size_t length) {
  int said = 0;
  if (length >= sizeof said) std::memcpy(&said, data, sizeof said);
  switch (-said) {
    case 0: return false;
    case EAGAIN:
    case EBUSY:
    case EINTR:
    case ENOBUFS:
    case ENOMEM: return Error{-said, "sock_diag: refused for now"};
    default: return Error{ENOENT, "sock_diag: refused"};
  }
}

/// Returns whether the first socket is bound to the IPv6 wildcard and so receives for the IPv4 address, too.
bool covers_v4(const PortPlace& wildcard, const SocketAddress& v4) {
  return wildcard.local.family() == AF_INET6 && wildcard.local.is_wildcard() && !wildcard.v6_only &&
         v4.family() == AF_INET;
}

bool is_loopback(const PortPlace& place) {
  return place.interface == kLoopbackInterface ||
         (!place.local.is_wildcard() && net::IpAddress::of(place.local.unmapped()).is_loopback());
}

}  // namespace

bool compete(const PortPlace& ours, const PortPlace& other) {
  if (is_loopback(other)) return false;
  if (ours.interface != 0 && other.interface != 0 && ours.interface != other.interface) return false;
  const SocketAddress one = ours.local.unmapped(), two = other.local.unmapped();
  if (one.port() != two.port()) return false;
  if (one.family() != two.family()) return covers_v4(ours, two) || covers_v4(other, one);
  return one.is_wildcard() || two.is_wildcard() || net::IpAddress::of(one) == net::IpAddress::of(two);
}

Result<SocketDiagnosis> SocketDiagnosis::open() {
  UniqueFd socket = out_of_the_way(UniqueFd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)));
  if (!socket) return Error::last("sock_diag");
  return SocketDiagnosis(std::move(socket));
}

template <class Request>
Status SocketDiagnosis::ask(const Request& request, const VisitMessage& visit) {
  Status answered = ok();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    answered = ask_once(request, visit);
    if (answered || answered.error().code == ENOENT) break;
  }
  return answered;
}

template <class Request>
Status SocketDiagnosis::ask_once(const Request& request, const VisitMessage& visit) {
  // The kernel refuses a question before its last answer has been read to the end.
  if (is_answer_left_) forget_answer();
  struct {
    nlmsghdr head;
    Request body;
  } question{{.nlmsg_len = sizeof question,
              .nlmsg_type = SOCK_DIAG_BY_FAMILY,
              .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
              .nlmsg_seq = ++question_,
              .nlmsg_pid = 0},
             request};
  if (::send(socket_.get(), &question, sizeof question, MSG_DONTWAIT) < 0) return Error::last("sock_diag: send");
  is_answer_left_ = true;
  for (;;) {
    const Result<bool> has_more = read_answer(visit);
    if (!has_more) return has_more.error();
    if (!*has_more) return ok();
  }
}

/// Reads a part of the answer. Returns whether more follows. Errors: ENOENT the kernel does not support this; after all
/// others the question may be asked again.
Result<bool> SocketDiagnosis::read_answer(const VisitMessage& visit) {
  const auto room = std::make_unique<std::array<std::byte, kRoom>>();
  const ssize_t got = ::recv(socket_.get(), room->data(), room->size(), MSG_DONTWAIT);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0) return Error::last("sock_diag: receive");
  const std::byte* at = room->data();
  std::size_t left = static_cast<std::size_t>(got);
  nlmsghdr head;
  while (left >= sizeof head) {
    std::memcpy(&head, at, sizeof head);
    if (head.nlmsg_len < sizeof head || head.nlmsg_len > left) return Error{EPROTO, "sock_diag: length"};
    if (head.nlmsg_seq == question_) {
      if (head.nlmsg_type == NLMSG_DONE || head.nlmsg_type == NLMSG_ERROR) is_answer_left_ = false;
      if ((head.nlmsg_flags & NLM_F_DUMP_INTR) != 0) return Error{EINTR, "sock_diag: interrupted"};
      if (!is_answer_left_) return end_of(at + sizeof head, head.nlmsg_len - sizeof head);
      if (!visit(at + sizeof head, head.nlmsg_len - sizeof head)) return false;
    }
    const std::size_t step = std::min<std::size_t>(NLMSG_ALIGN(head.nlmsg_len), left);
    at += step;
    left -= step;
  }
  return true;
}

/// Reads the rest of an answer that is not needed any more.
void SocketDiagnosis::forget_answer() {
  const VisitMessage ignore = [](const void*, std::size_t) { return true; };
  // The socket reports an error once, and the answer may continue after it.
  for (int errors = 0; is_answer_left_ && errors < kAttempts;) {
    if (!read_answer(ignore)) ++errors;
  }
}

Status SocketDiagnosis::holders(std::uint16_t port, const Visit<PortHolder>& visit) {
  bool enough = false;
  const auto read = [&](const void* data, std::size_t length) {
    inet_diag_msg entry;
    if (length < sizeof entry) return true;
    std::memcpy(&entry, data, sizeof entry);
    if (ntohs(entry.id.idiag_sport) != port) return true;
    enough = !visit(read_holder(entry, static_cast<const std::byte*>(data) + sizeof entry, length - sizeof entry));
    return !enough;
  };
  for (const int family : {AF_INET, AF_INET6}) {
    inet_diag_req_v2 request{};
    request.sdiag_family = static_cast<std::uint8_t>(family);
    request.sdiag_protocol = IPPROTO_UDP;
    request.idiag_states = ~0U;
    request.id.idiag_sport = htons(port);
    if (Status answered = ask(request, read); !answered || enough) return answered;
  }
  return ok();
}

Status SocketDiagnosis::names(const Visit<NameHolder>& visit) {
  unix_diag_req request{};
  request.sdiag_family = AF_UNIX;
  request.udiag_states = 1U << TCP_LISTEN;
  request.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
  return ask(request, [&](const void* data, std::size_t length) {
    if (length < sizeof(unix_diag_msg)) return true;
    const NameHolder found =
        read_name(static_cast<const std::byte*>(data) + sizeof(unix_diag_msg), length - sizeof(unix_diag_msg));
    return found.name.empty() || visit(found);
  });
}

}  // namespace ringsock::vma
