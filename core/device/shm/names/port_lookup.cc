#include "core/device/shm/names/port_lookup.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "core/base/at_fork.h"
#include "core/base/process_state.h"
#include "core/base/unique_fd.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace ringsock::soft {
namespace {

using verbs::PortSpace;

constexpr std::uint32_t kLoopbackInterface = 1;  // the first of every network namespace

/// Returns SO_COOKIE or SO_NETNS_COOKIE, which are unique among sockets, or namespaces, until the next boot.
std::optional<std::uint64_t> cookie_of(int socket, int option) {
  std::uint64_t cookie = 0;
  socklen_t length = sizeof cookie;
  if (::getsockopt(socket, SOL_SOCKET, option, &cookie, &length) != 0) return std::nullopt;
  return cookie;
}

struct Question {
  nlmsghdr header{};
  inet_diag_req_v2 request{};
};

/// Returns the bytes of the address.
std::span<const std::byte> host_bytes(const SocketAddress& address) {
  if (address.family() == AF_INET) return std::as_bytes(std::span(&address.in4().sin_addr, 1));
  return std::as_bytes(std::span(&address.in6().sin6_addr, 1));
}

struct RouteQuestion {
  nlmsghdr header{};
  rtmsg route{};
  rtattr attribute{};
  std::array<std::byte, sizeof(in6_addr)> host{};
};

RouteQuestion route_question(const SocketAddress& destination) {
  const auto host = host_bytes(destination);
  RouteQuestion out;
  out.header.nlmsg_len = static_cast<std::uint32_t>(offsetof(RouteQuestion, host) + host.size());
  out.header.nlmsg_type = RTM_GETROUTE;
  out.header.nlmsg_flags = NLM_F_REQUEST;
  out.route.rtm_family = static_cast<std::uint8_t>(destination.family());
  out.route.rtm_dst_len = static_cast<std::uint8_t>(host.size() * 8);
  out.route.rtm_flags = RTM_F_FIB_MATCH;  // the table's own entry: the route that comes of it always says loopback
  out.attribute.rta_len = static_cast<std::uint16_t>(RTA_LENGTH(host.size()));
  out.attribute.rta_type = RTA_DST;
  std::copy(host.begin(), host.end(), out.host.begin());
  return out;
}

std::optional<std::uint32_t> outgoing_interface(nlmsghdr* header, std::size_t bytes) {
  if (!NLMSG_OK(header, bytes) || header->nlmsg_type != RTM_NEWROUTE) return std::nullopt;
  if (header->nlmsg_len < NLMSG_LENGTH(sizeof(rtmsg))) return std::nullopt;
  auto* const route = static_cast<rtmsg*>(NLMSG_DATA(header));
  std::size_t left = header->nlmsg_len - NLMSG_LENGTH(sizeof(rtmsg));
  for (rtattr* attribute = RTM_RTA(route); RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
    if (attribute->rta_type != RTA_OIF || RTA_PAYLOAD(attribute) < sizeof(std::uint32_t)) continue;
    std::uint32_t interface = 0;
    std::memcpy(&interface, RTA_DATA(attribute), sizeof interface);
    return interface;
  }
  return std::nullopt;
}

/// Returns the interface that SO_BINDTODEVICE compares for a connection within this host: not the loopback interface
/// that carries its packets, but the one that has the address.
std::optional<std::uint32_t> interface_of(const SocketAddress& destination) {
  if (destination.is_loopback()) return kLoopbackInterface;
  if (destination.family() == AF_INET6 && destination.in6().sin6_scope_id != 0) return destination.in6().sin6_scope_id;
  const UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  const RouteQuestion question = route_question(destination);
  if (!socket || ::send(socket.get(), &question, question.header.nlmsg_len, MSG_DONTWAIT) < 0) return std::nullopt;
  alignas(nlmsghdr) std::array<std::byte, 1024> answer;
  const ssize_t got = ::recv(socket.get(), answer.data(), answer.size(), MSG_DONTWAIT);
  if (got < static_cast<ssize_t>(sizeof(nlmsghdr))) return std::nullopt;
  return outgoing_interface(reinterpret_cast<nlmsghdr*>(answer.data()), static_cast<std::size_t>(got));
}

/// @param from  where the datagram comes from; unspecified: a connection, or any datagram
Question question_about(PortSpace space, const SocketAddress& where, std::uint32_t interface,
                        const SocketAddress& from = {}) {
  Question out;
  out.header.nlmsg_len = sizeof out;
  out.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  out.header.nlmsg_flags = NLM_F_REQUEST;
  out.request.sdiag_family = static_cast<std::uint8_t>(where.family());
  out.request.sdiag_protocol = space == PortSpace::tcp ? IPPROTO_TCP : IPPROTO_UDP;
  inet_diag_sockid& id = out.request.id;
  // For TCP the question has the looked-up socket's own end as the source, for UDP as the destination.
  const bool is_tcp = space == PortSpace::tcp;
  (is_tcp ? id.idiag_sport : id.idiag_dport) = htons(where.port());
  const auto host = host_bytes(where);
  std::memcpy(is_tcp ? id.idiag_src : id.idiag_dst, host.data(), host.size());
  if (!from.is_unspecified()) {
    (is_tcp ? id.idiag_dport : id.idiag_sport) = htons(from.port());
    const auto source = host_bytes(from);
    std::memcpy(is_tcp ? id.idiag_dst : id.idiag_src, source.data(), source.size());
  }
  id.idiag_if = interface;
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return out;
}

/// A netlink socket, with what is needed to check that the number still refers to it.
class DiagSocket {
 public:
  static std::unique_ptr<DiagSocket> open() {
    UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    if (!fd) return nullptr;
    return std::unique_ptr<DiagSocket>(new DiagSocket(out_of_the_way(std::move(fd))));
  }
  ~DiagSocket() {
    // If the application has closed the descriptor, its number may refer to another file by now and must not be closed.
    if (!is_intact()) (void)fd_.release();
  }
  DiagSocket(const DiagSocket&) = delete;
  DiagSocket& operator=(const DiagSocket&) = delete;

  /// Returns whether this process made it, for that network namespace, and it has not been closed.
  [[nodiscard]] bool serves(int network_of) const {
    return made_at_ == fork_generation() && is_intact() && network_ == cookie_of(network_of, SO_NETNS_COOKIE);
  }
  Result<KernelSocket> ask(PortSpace space, const SocketAddress& destination, std::uint32_t interface,
                           const SocketAddress& source = {}) {
    const auto answer = exchange(question_about(space, destination, interface, source), destination.family());
    bool& tells = tells_[static_cast<std::size_t>(space)];
    if (answer) tells = true;
    if (answer || answer.error().code != ENOENT) return answer;
    // A kernel without sock_diag for the protocol gives the same answer.
    if (!tells) tells = can_list(space);
    return tells ? answer : Error{EOPNOTSUPP, "sock_diag: protocol"};
  }

 private:
  explicit DiagSocket(UniqueFd fd)
      : fd_(std::move(fd)),
        cookie_(cookie_of(fd_.get(), SO_COOKIE)),
        network_(cookie_of(fd_.get(), SO_NETNS_COOKIE)),
        made_at_(fork_generation()) {}
  [[nodiscard]] bool is_intact() const { return cookie_ && cookie_of(fd_.get(), SO_COOKIE) == cookie_; }

  /// Asks. The kernel answers within send(2).
  Result<std::span<const std::byte>> talk(const Question& question) {
    if (::send(fd_.get(), &question, sizeof question, MSG_DONTWAIT) < 0) return Error{EOPNOTSUPP, "sock_diag: send"};
    const ssize_t got = ::recv(fd_.get(), answer_.data(), answer_.size(), MSG_DONTWAIT);
    if (got < static_cast<ssize_t>(sizeof(nlmsghdr))) return Error{EOPNOTSUPP, "sock_diag: receive"};
    return std::span<const std::byte>(answer_).first(static_cast<std::size_t>(got));
  }
  Result<KernelSocket> exchange(Question question, int family);
  bool can_list(PortSpace space);

  UniqueFd fd_;
  std::optional<std::uint64_t> cookie_;
  std::optional<std::uint64_t> network_;  ///< nothing before Linux 5.14
  unsigned made_at_;
  std::uint32_t sequence_ = 0;
  std::array<bool, 2> tells_{};  ///< per PortSpace: the kernel is known to list its sockets
  alignas(nlmsghdr) std::array<std::byte, 1024> answer_{};
};

Result<KernelSocket> DiagSocket::exchange(Question question, int family) {
  question.header.nlmsg_seq = ++sequence_;
  const auto answer = talk(question);
  if (!answer) return answer.error();
  nlmsghdr header;
  std::memcpy(&header, answer->data(), sizeof header);
  const auto rest = answer->subspan(sizeof header);
  if (header.nlmsg_seq != sequence_) return Error{EOPNOTSUPP, "sock_diag: sequence"};
  if (header.nlmsg_type == NLMSG_ERROR && rest.size() >= sizeof(nlmsgerr)) {
    nlmsgerr refusal;
    std::memcpy(&refusal, rest.data(), sizeof refusal);
    return Error{refusal.error == -ENOENT ? ENOENT : EOPNOTSUPP, "sock_diag: nobody"};
  }
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || rest.size() < sizeof(inet_diag_msg)) {
    return Error{EOPNOTSUPP, "sock_diag: answer"};
  }
  inet_diag_msg found;
  std::memcpy(&found, rest.data(), sizeof found);
  // A dual-stack socket appears as AF_INET6 in answers for IPv4.
  if (found.idiag_family != family && found.idiag_family != AF_INET6) return Error{EOPNOTSUPP, "sock_diag: family"};
  const std::uint64_t high = found.id.idiag_cookie[1];
  return KernelSocket{found.idiag_uid, high << 32 | found.id.idiag_cookie[0]};
}

/// Asks for sockets in no state: the answer is an empty list, or an error.
bool DiagSocket::can_list(PortSpace space) {
  Question question = question_about(space, SocketAddress::wildcard(AF_INET, 0), 0);
  question.header.nlmsg_flags |= NLM_F_DUMP;
  question.header.nlmsg_seq = ++sequence_;
  const auto answer = talk(question);
  if (!answer) return false;
  nlmsghdr header;
  std::memcpy(&header, answer->data(), sizeof header);
  return header.nlmsg_type == NLMSG_DONE;
}

/// Keeps one socket between questions, because making one costs as much as a question. A thread that finds it in use
/// makes its own.
class SpareSocket {
 public:
  static constexpr ProcessPart kPart = ProcessPart::diag_socket;
  std::unique_ptr<DiagSocket> take(int network_of) {
    std::unique_ptr<DiagSocket> kept(spare_.exchange(nullptr, std::memory_order_acquire));
    if (kept && kept->serves(network_of)) return kept;
    kept = DiagSocket::open();
    if (kept && !kept->serves(network_of)) kept.reset();
    return kept;
  }
  void put_back(std::unique_ptr<DiagSocket> socket) {
    delete spare_.exchange(socket.release(), std::memory_order_acq_rel);
  }

 private:
  std::atomic<DiagSocket*> spare_{nullptr};
};

[[gnu::constructor]] void start() { process_state<SpareSocket>(); }

}  // namespace

bool share_network(int socket, int other) {
  const auto network = cookie_of(socket, SO_NETNS_COOKIE);
  return network ? network == cookie_of(other, SO_NETNS_COOKIE) : errno == ENOPROTOOPT;
}

namespace {
Result<KernelSocket> ask_kernel(PortSpace space, const SocketAddress& destination, const SocketAddress& source,
                                int network_of) {
  auto socket = process_state<SpareSocket>().take(network_of);
  if (!socket) return Error{EOPNOTSUPP, "sock_diag: socket"};
  const auto interface = interface_of(destination);
  if (!interface) return Error{EOPNOTSUPP, "sock_diag: interface"};
  auto found = socket->ask(space, destination, *interface, source);
  const bool usable = found || found.error().code == ENOENT;
  if (usable) process_state<SpareSocket>().put_back(std::move(socket));
  return found;
}
}  // namespace

Result<uid_t> owner_by_kernel(PortSpace space, const SocketAddress& destination, int network_of) {
  const auto found = ask_kernel(space, destination, {}, network_of);
  return found ? Result<uid_t>(found->uid) : found.error();
}

Result<KernelSocket> udp_socket_by_kernel(const SocketAddress& source, const SocketAddress& destination,
                                          int network_of) {
  return ask_kernel(PortSpace::udp, destination, source, network_of);
}

std::optional<std::uint64_t> socket_cookie(int socket) { return cookie_of(socket, SO_COOKIE); }

}  // namespace ringsock::soft
