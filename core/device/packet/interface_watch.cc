#include "core/device/packet/interface_watch.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

namespace ringsock::soft {

namespace {

/// Asks the kernel about an interface, after a look-up of its present name. Errors: ENODEV.
Result<ifreq> tell(int socket, unsigned ifindex, unsigned long request) {
  ifreq out{};
  out.ifr_ifindex = static_cast<int>(ifindex);
  if (::ioctl(socket, SIOCGIFNAME, &out) != 0) return Error{ENODEV, "interface"};
  if (request != SIOCGIFNAME && ::ioctl(socket, request, &out) != 0) return Error{ENODEV, "interface"};
  return out;
}

InterfaceState state_by(unsigned flags) {
  constexpr unsigned kCarries = IFF_UP | IFF_RUNNING;
  return (flags & kCarries) == kCarries ? InterfaceState::up : InterfaceState::down;
}

/// The beginning of a message of RTMGRP_LINK, rtnetlink(7). Each message comes in a datagram of its own.
struct Message {
  nlmsghdr header;
  ifinfomsg link;

  [[nodiscard]] std::optional<InterfaceState> tells_of(unsigned ifindex) const {
    // A bridge reports its ports in messages of its own family.
    if (link.ifi_family != AF_UNSPEC || link.ifi_index != static_cast<int>(ifindex)) return std::nullopt;
    if (header.nlmsg_type == RTM_DELLINK) return InterfaceState::gone;
    if (header.nlmsg_type != RTM_NEWLINK) return std::nullopt;
    return state_by(link.ifi_flags);
  }
};

}  // namespace

Result<InterfaceWatch> InterfaceWatch::open(unsigned ifindex) {
  UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  if (!socket) return Error::last("interface: netlink socket");
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Error::last("interface: netlink bind");
  InterfaceWatch out(ifindex, out_of_the_way(std::move(socket)));
  auto hardware = tell(out.descriptor(), ifindex, SIOCGIFHWADDR);
  if (!hardware) return hardware.error();
  if (hardware->ifr_hwaddr.sa_family != ARPHRD_ETHER) return Error{EOPNOTSUPP, "interface: not Ethernet"};
  auto state = out.ask();
  if (!state) return state.error();
  out.state_ = *state;
  return out;
}

Result<InterfaceState> InterfaceWatch::ask() const {
  auto flags = tell(descriptor(), ifindex_, SIOCGIFFLAGS);
  if (!flags) return flags.error();
  return state_by(static_cast<unsigned>(flags->ifr_flags));
}

Result<std::string> InterfaceWatch::name() const {
  auto name = tell(descriptor(), ifindex_, SIOCGIFNAME);
  if (!name) return name.error();
  return std::string(name->ifr_name);
}

Result<unsigned> InterfaceWatch::mtu() const {
  auto mtu = tell(descriptor(), ifindex_, SIOCGIFMTU);
  if (!mtu) return mtu.error();
  return static_cast<unsigned>(mtu->ifr_mtu);
}

std::optional<InterfaceState> InterfaceWatch::next() {
  if (!socket_ || state_ == InterfaceState::gone) return std::nullopt;
  // Every change is reported, in order and however late it is asked for: a caller that has seen the link go up also
  // sees it go down.
  Message message{};
  for (;;) {
    const ssize_t bytes = ::recv(descriptor(), &message, sizeof message, MSG_DONTWAIT);
    InterfaceState now = state_;
    if (bytes >= static_cast<ssize_t>(sizeof message)) {
      now = message.tells_of(ifindex_).value_or(state_);
    } else if (bytes < 0 && errno == ENOBUFS) {
      // The newest messages are lost, and the remaining ones are outdated.
      while (::recv(descriptor(), nullptr, 0, MSG_DONTWAIT) >= 0 || errno == ENOBUFS) {
      }
      auto asked = ask();
      now = asked ? *asked : InterfaceState::gone;
    } else if (bytes < 0) {
      return std::nullopt;
    }
    if (now == state_) continue;
    state_ = now;
    return now;
  }
}

}  // namespace ringsock::soft
