#include "core/device/soft/packet/interface_watch.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace ringsock::soft {

namespace {

/// What the kernel tells of an interface, after a look for its present name. Error: ENODEV.
Result<ifreq> tell(int socket, unsigned ifindex, unsigned long request) {
  ifreq out{};
  out.ifr_ifindex = static_cast<int>(ifindex);
  if (::ioctl(socket, SIOCGIFNAME, &out) != 0) return Error{ENODEV, "interface"};
  if (request != SIOCGIFNAME && ::ioctl(socket, request, &out) != 0) return Error{ENODEV, "interface"};
  return out;
}

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
  constexpr int kCarries = IFF_UP | IFF_RUNNING;
  return (flags->ifr_flags & kCarries) == kCarries ? InterfaceState::up : InterfaceState::down;
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
  // The contents do not matter: the kernel is asked, since messages may have been lost (ENOBUFS) and tell of the past.
  std::array<char, 8192> message;
  bool heard = false;
  while (::recv(descriptor(), message.data(), message.size(), MSG_DONTWAIT) > 0 || errno == ENOBUFS) heard = true;
  if (!heard) return std::nullopt;
  auto now = ask();
  const InterfaceState state = now ? *now : InterfaceState::gone;
  if (state == state_) return std::nullopt;
  state_ = state;
  return state;
}

}  // namespace ringsock::soft
