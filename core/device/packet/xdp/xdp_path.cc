#include "core/device/packet/xdp/xdp_path.h"

#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "core/base/clock.h"
#include "core/device/packet/steering/bpf_program.h"
#include "core/device/packet/steering/libbpf.h"

namespace ringsock::soft {

namespace {

constexpr const char* kAtDriver = "take_at_driver";
constexpr const char* kBehindDriver = "take_behind_driver";
/// How long the kernel may need to close the sockets of a process that has ended.
constexpr Nanos kPatience = std::chrono::seconds(1);

/// Errors: ENODEV.
Result<ifreq> interface_named(int socket, unsigned ifindex) {
  ifreq out{};
  out.ifr_ifindex = static_cast<int>(ifindex);
  if (::ioctl(socket, SIOCGIFNAME, &out) != 0) return Error{ENODEV, "interface"};
  return out;
}

/// Returns whether packets come from other programs of this host, and not from a wire.
bool is_virtual(int socket, ifreq request) {
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  request.ifr_data = reinterpret_cast<char*>(&info);
  if (::ioctl(socket, SIOCETHTOOL, &request) != 0) return true;
  const std::string_view driver(info.driver), bus(info.bus_info);
  return driver == "virtio_net" || bus.empty() || bus == "N/A" || bus == "tap" || bus == "tun";
}

}  // namespace

Result<std::unique_ptr<XdpPath>> XdpPath::create(unsigned ifindex, const FlowTable& flows, XdpMode mode) {
  UniqueFd control = out_of_the_way(UniqueFd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
  if (!control) return Error::last("xdp: socket");
  auto name = interface_named(control.get(), ifindex);
  if (!name) return name.error();
  std::unique_ptr<XdpPath> out(new XdpPath(ifindex, std::move(control)));
  out->is_virtual_ = is_virtual(out->control_.get(), *name);
  // In the driver of a veth, a program would disable the segmentation offload of the peer, without a gain.
  const XdpMode first = mode != XdpMode::automatic ? mode : out->is_virtual_ ? XdpMode::generic : XdpMode::native;
  Status attached = out->attach(first, flows);
  if (!attached && attached.error().code == EOPNOTSUPP && mode == XdpMode::automatic)
    attached = out->attach(first == XdpMode::native ? XdpMode::generic : XdpMode::native, flows);
  if (!attached) return attached.error();
  return out;
}

Status XdpPath::load(const FlowTable& flows, const char* program) {
  auto object = BpfObject::open(xdp_steering_bpf, "ringsock");
  if (!object) return object.error();
  object->leave_out(program == kAtDriver ? kBehindDriver : kAtDriver);
  if (Status used = object->use_map("flows", flows.flows_fd()); !used) return used;
  if (Status used = object->use_map("hints", flows.hints_fd()); !used) return used;
  if (Status loaded = object->load(); !loaded) return loaded;
  alarm_.close();
  if (Status opened = alarm_.open(*object); !opened) return opened;
  std::array<Result<UniqueFd>, 3> fds{object->program(program), object->map("sockets"), object->map("target")};
  for (auto& fd : fds) {
    if (!fd) return fd.error();
  }
  program_ = std::move(*fds[0]);
  sockets_ = std::move(*fds[1]);
  target_ = std::move(*fds[2]);
  return ok();
}

Status XdpPath::attach(XdpMode mode, const FlowTable& flows) {
  if (Status loaded = load(flows, mode == XdpMode::native ? kAtDriver : kBehindDriver); !loaded) return loaded;
  LIBBPF_OPTS(bpf_link_create_opts, options,
              .flags = mode == XdpMode::native ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE);
  UniqueFd link(bpf_link_create(program_.get(), static_cast<int>(ifindex_), BPF_XDP, &options));
  if (!link) return bpf_error(errno, "xdp link");
  link_ = out_of_the_way(std::move(link));
  return ok();
}

Result<std::vector<XdpSocket>> XdpPath::claim(unsigned number, unsigned frames) {
  std::lock_guard guard(lock_);
  if (is_claimed_) return Error{EBUSY, "xdp: another ring of this process has the interface"};
  auto target = target_for(number);
  if (!target) return target.error();
  std::vector<XdpSocket> sockets;
  if (Status opened = open_sockets(frames, sockets); !opened) return opened.error();
  if (!set_target(*target)) return bpf_error(errno, "xdp: target");
  is_claimed_ = true;
  alarm_.silence();
  alarm_.start(frames);
  return sockets;
}

void XdpPath::release() {
  std::lock_guard guard(lock_);
  alarm_.stop();
  if (target_) set_target({});
  is_claimed_ = false;
}

Status XdpPath::open_sockets(unsigned frames, std::vector<XdpSocket>& out) {
  const Nanos end = monotonic_now() + kPatience;
  while (out.size() < RINGSOCK_MAX_XDP_QUEUES) {
    const auto queue = static_cast<unsigned>(out.size());
    XdpSocket socket;
    const Status opened = socket.open(ifindex_, queue, frames);
    if (!opened) {
      const int code = opened.error().code;
      // The number of queues cannot be asked for in a way that works with all drivers.
      if (code == EINVAL && queue != 0) return ok();
      if (code != EBUSY || monotonic_now() > end) return opened;
      ::poll(nullptr, 0, 1);
      continue;
    }
    const int fd = socket.fd();
    if (bpf_map_update_elem(sockets_.get(), &queue, &fd, BPF_ANY) != 0) return bpf_error(errno, "xdp: map of sockets");
    out.push_back(std::move(socket));
  }
  return ok();
}

Result<xdp_target> XdpPath::target_for(unsigned number) const {
  auto request = interface_named(control_.get(), ifindex_);
  if (!request || ::ioctl(control_.get(), SIOCGIFHWADDR, &*request) != 0) return Error{ENODEV, "xdp: interface"};
  xdp_target out{.ring = number, .max_bytes = XdpSocket::kMaxReceived, .mac = {}, .unused = {}};
  const sockaddr address = request->ifr_hwaddr;
  std::memcpy(out.mac, address.sa_data, sizeof out.mac);
  return out;
}

bool XdpPath::set_target(const xdp_target& target) {
  const std::uint32_t only = 0;
  return bpf_map_update_elem(target_.get(), &only, &target, BPF_ANY) == 0;
}

void XdpPath::forget() {
  alarm_.close();
  program_.reset();
  link_.reset();
  sockets_.reset();
  target_.reset();
}

}  // namespace ringsock::soft
