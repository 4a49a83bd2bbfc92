#include "core/net/netlink_kernel.h"

#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <netlink/attr.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <mutex>
#include <utility>

#include "core/net/netlink_messages.h"
#include "core/net/networks.h"
#include "core/net/route_query.h"

namespace ringsock::net {

namespace {

constexpr std::array kGroups = {
    static_cast<int>(RTNLGRP_LINK),         static_cast<int>(RTNLGRP_NEIGH),
    static_cast<int>(RTNLGRP_IPV4_IFADDR),  static_cast<int>(RTNLGRP_IPV6_IFADDR),
    static_cast<int>(RTNLGRP_IPV4_ROUTE),   static_cast<int>(RTNLGRP_IPV6_ROUTE),
    static_cast<int>(RTNLGRP_IPV4_RULE),    static_cast<int>(RTNLGRP_IPV6_RULE),
    static_cast<int>(RTNLGRP_IPV6_IFINFO),  static_cast<int>(RTNLGRP_IPV4_NETCONF),
    static_cast<int>(RTNLGRP_IPV6_NETCONF),
};
constexpr std::array kNewerGroups = {static_cast<int>(RTNLGRP_NEXTHOP)};  // Linux 5.3
constexpr int kDatagramsAtOnce = 64;
constexpr int kDumpAttempts = 16;

NetlinkMessage neighbour_message(int type, int flags, ndmsg header, const IpAddress& address) {
  header.ndm_family = static_cast<std::uint8_t>(address.family());
  NetlinkMessage message = make_message(type, flags, header);
  const auto bytes = address.bytes();
  if (message && nla_put(message.get(), NDA_DST, static_cast<int>(bytes.size()), bytes.data()) != 0) message.reset();
  return message;
}

/// Returns whether a socket that gave this error must be replaced: its next answer could belong to an earlier question.
bool is_out_of_step(const Status& status) {
  return !status && (status.error().code == EPROTO || status.error().code == ENOBUFS);
}

}  // namespace

Result<std::unique_ptr<Kernel>> NetlinkKernel::open(std::uint64_t network_namespace) {
  std::unique_ptr<NetlinkKernel> kernel(new NetlinkKernel(network_namespace));
  if (const Status status = kernel->open_sockets(); !status) return status.error();
  return std::unique_ptr<Kernel>(std::move(kernel));
}

Status NetlinkKernel::open_sockets() {
  Sockets out;
  auto events = NetlinkSocket::open(NETLINK_ROUTE);
  if (!events) return events.error();
  const auto place = network_namespace_of(events->fd());
  if (!place) return place.error();
  if (*place != network_namespace_) return Error{EXDEV, "netlink: the thread is in another network namespace"};
  if (const Status status = events->listen(kGroups); !status) return status;
  // Older kernels do not have these groups.
  static_cast<void>(events->listen(kNewerGroups));
  auto questions = NetlinkSocket::open(NETLINK_ROUTE);
  if (!questions) return questions.error();
  out.events = std::move(*events);
  out.questions = std::move(*questions);
  out.timer = out_of_the_way(UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)));
  out.waiting = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!out.timer || !out.waiting) return Error::last("netlink: timer");
  out.path_mtu = PathMtuWatch::open();
  if (out.path_mtu.fd_v4() < 0) out.plain = out_of_the_way(UniqueFd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
  const std::lock_guard guard(asking_);
  sockets_ = std::move(out);
  ipsec_.open();
  netfilter_.open();
  multipath_.open();
  return wait_for_all();
}

Status NetlinkKernel::wait_for_all() {
  for (const int fd : {sockets_.events.fd(), sockets_.timer.get(), sockets_.path_mtu.fd_v4(), sockets_.path_mtu.fd_v6(),
                       ipsec_.fd(), netfilter_.fd(), netfilter_.timer_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (fd >= 0 && ::epoll_ctl(sockets_.waiting.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return Error::last("netlink: epoll_ctl");
    }
  }
  return ok();
}

Status NetlinkKernel::reopen() { return open_sockets(); }

void NetlinkKernel::wake_at(Nanos when) {
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(when / std::chrono::seconds(1));
  spec.it_value.tv_nsec = static_cast<long>((when % std::chrono::seconds(1)).count());
  ::timerfd_settime(sockets_.timer.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

Status NetlinkKernel::ask(nl_msg* message, const OnMessage& on_answer) {
  const std::lock_guard guard(asking_);
  const Status status = sockets_.questions.ask(message, on_answer);
  if (is_out_of_step(status)) {
    auto fresh = NetlinkSocket::open(NETLINK_ROUTE);
    const auto place = fresh ? network_namespace_of(fresh->fd()) : Result<std::uint64_t>(fresh.error());
    if (place && *place == network_namespace_) sockets_.questions = std::move(*fresh);
  }
  return status;
}

Result<std::vector<KernelEvent>> NetlinkKernel::read_table(int question_type) {
  const rtgenmsg any_family{};
  for (int attempt = 1;; ++attempt) {
    std::vector<KernelEvent> out;
    const NetlinkMessage question = make_message(question_type, NLM_F_DUMP, any_family);
    const Status status = ask(question.get(), [&out](const nlmsghdr& message) {
      if (auto event = parse_event(message)) out.push_back(std::move(*event));
    });
    if (status) return out;
    if (status.error().code != EAGAIN || attempt == kDumpAttempts) return status.error();
  }
}

Result<std::vector<KernelEvent>> NetlinkKernel::read_tables() {
  auto links = read_table(RTM_GETLINK);
  if (!links) return links;
  const auto addresses = read_table(RTM_GETADDR);
  if (!addresses) return addresses.error();
  links->insert(links->end(), addresses->begin(), addresses->end());
  return links;
}

KernelEvents NetlinkKernel::read_events() {
  KernelEvents out;
  const auto take = [&out](const nlmsghdr& message) {
    if (auto event = parse_event(message)) out.events.push_back(std::move(*event));
  };
  bool more = true;
  for (int i = 0; more && i < kDatagramsAtOnce; ++i) {
    const auto got = sockets_.events.read_events(take);
    out.lost = out.lost || !got;
    more = !got || *got;
  }
  out.more = more;
  for (const IpAddress& destination : sockets_.path_mtu.read()) out.events.emplace_back(PathMtuEvent{destination});
  if (ipsec_.read()) out.events.emplace_back(RoutingEvent{AF_UNSPEC});
  if (netfilter_.read()) out.events.emplace_back(FiltersEvent{});
  if (multipath_.has_changed()) out.events.emplace_back(RoutingEvent{AF_UNSPEC});
  std::uint64_t expirations = 0;
  [[maybe_unused]] const ssize_t got = ::read(sockets_.timer.get(), &expirations, sizeof expirations);
  return out;
}

Result<PathAnswer> NetlinkKernel::path(const PathQuery& query) {
  auto answer = ask_path(query, [this](nl_msg* question, const OnMessage& take) { return ask(question, take); });
  if (answer && ipsec_.any_policies()) answer->path.kernel_only = true;
  return answer;
}

bool NetlinkKernel::ports_decide(int family) {
  if (multipath_.distributes_by_ports(family)) return true;
  rtgenmsg any_rule{};
  any_rule.rtgen_family = static_cast<unsigned char>(family);
  bool any = false;
  for (int attempt = 1; attempt <= kDumpAttempts; ++attempt) {
    const NetlinkMessage question = make_message(RTM_GETRULE, NLM_F_DUMP, any_rule);
    const Status status =
        ask(question.get(), [&any](const nlmsghdr& message) { any = any || is_rule_on_ports(message); });
    if (status) return any;
    if (status.error().code == EOPNOTSUPP || status.error().code == EAFNOSUPPORT) return false;  // there are no rules
    if (status.error().code != EAGAIN) break;
  }
  return true;
}

Result<NeighbourFacts> NetlinkKernel::neighbour(int ifindex, const IpAddress& address) {
  ndmsg header{};
  header.ndm_ifindex = ifindex;
  const NetlinkMessage question = neighbour_message(RTM_GETNEIGH, 0, header, address);
  NeighbourFacts facts;
  const auto take = [&facts](const nlmsghdr& message) {
    const auto event = parse_event(message);
    if (event && std::holds_alternative<NeighbourEvent>(*event)) facts = std::get<NeighbourEvent>(*event).facts;
  };
  const Status status = ask(question.get(), take);
  if (!status && status.error().code != ENOENT) return status.error();
  return facts;
}

Status NetlinkKernel::use_neighbour(int ifindex, const IpAddress& address) {
  ndmsg header{};
  header.ndm_ifindex = ifindex;
  header.ndm_flags = NTF_USE;
  header.ndm_state = NUD_NONE;
  const NetlinkMessage question = neighbour_message(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_ACK, header, address);
  return ask(question.get(), [](const nlmsghdr&) {});
}

std::uint8_t NetlinkKernel::default_hop_limit() const {
  constexpr std::uint8_t kUsual = 64;
  int value = 0;
  socklen_t length = sizeof value;
  const int socket = sockets_.plain ? sockets_.plain.get() : sockets_.path_mtu.fd_v4();
  if (::getsockopt(socket, IPPROTO_IP, IP_TTL, &value, &length) != 0) return kUsual;
  return static_cast<std::uint8_t>(value);
}

}  // namespace ringsock::net
