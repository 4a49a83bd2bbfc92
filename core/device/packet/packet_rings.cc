#include "core/device/packet/packet_rings.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/log.h"
#include "core/device/packet/ring/socket_ring.h"
#include "core/device/packet/steering/bpf_program.h"
#include "core/device/packet/xdp/xdp_ring.h"

namespace ringsock::soft {

namespace {

Result<std::unique_ptr<IngressHook>> attach(unsigned ifindex, int program, const PacketDeviceOptions& options) {
  if (options.attachment != Attachment::clsact) {
    auto link = attach_tcx(ifindex, program);
    if (link || options.attachment == Attachment::tcx || link.error().code != EOPNOTSUPP) return link;
  }
  return attach_clsact(ifindex, program,
                       options.guardian != nullptr ? options.guardian : PKGLIBEXECDIR "/flow-guardian");
}

void tell_without_xdp(const char* name, const Error& why) {
  if (why.code == EBUSY) {
    log_warn("%s: no AF_XDP ring, somebody has one there (%s): an ordinary packet ring is used", name, why.where);
  } else {
    log_warn("%s: no AF_XDP ring (%s: %s): an ordinary packet ring is used", name, why.where, std::strerror(why.code));
  }
}

}  // namespace

Result<std::unique_ptr<PacketRings>> PacketRings::create(unsigned ifindex, const PacketDeviceOptions& options) {
  auto object = BpfObject::open(packet_steering_bpf, "ringsock");
  if (!object) return object.error();
  object->leave_out("take_into_ring");
  if (Status loaded = object->load(); !loaded) return loaded.error();
  std::array<Result<UniqueFd>, 4> fds{object->map("flows"), object->map("hints"), object->map("taken"),
                                      object->program("keep_from_kernel")};
  for (auto& fd : fds) {
    if (!fd) return fd.error();
  }
  std::unique_ptr<PacketRings> out(new PacketRings(ifindex, options.kernel_segments_udp, std::move(*fds[0]),
                                                   std::move(*fds[1]), std::move(*fds[2])));
  auto hook = attach(ifindex, fds[3]->get(), options);
  if (!hook) return hook.error();
  out->hook_ = std::move(*hook);
  if (options.ring == RingKind::xdp) out->open_xdp(options);
  return out;
}

PacketRings::PacketRings(unsigned ifindex, bool kernel_segments_udp, UniqueFd flows, UniqueFd hints, UniqueFd taken)
    : ifindex_(ifindex),
      kernel_segments_udp_(kernel_segments_udp),
      flows_(std::move(flows), std::move(hints), std::move(taken)) {}

Result<std::unique_ptr<FrameRing>> PacketRings::make_ring(unsigned frames) {
  auto number = claim();
  if (!number) return number.error();
  auto ring = std::make_unique<SocketRing>(*this, *number, ifindex_);
  auto filter = load_filter(*number);
  if (!filter) return filter.error();
  if (Status opened = ring->open(*filter, frames); !opened) return opened.error();
  return with_xdp(std::move(ring), frames);
}

void PacketRings::open_xdp(const PacketDeviceOptions& options) {
  ::if_indextoname(ifindex_, name_);
  auto path = XdpPath::create(ifindex_, flows_, options.xdp_mode);
  if (path) {
    xdp_ = std::move(*path);
  } else {
    tell_without_xdp(name_, path.error());
  }
}

std::unique_ptr<FrameRing> PacketRings::with_xdp(std::unique_ptr<FrameRing> packets, unsigned frames) {
  if (!xdp_) return packets;
  auto ring = XdpRing::create(*xdp_, frames, packets);
  if (ring) return std::move(*ring);
  tell_without_xdp(name_, ring.error());
  return packets;
}

Result<BpfObject> PacketRings::load_filter(unsigned number) {
  auto object = BpfObject::open(packet_steering_bpf, "ringsock");
  if (!object) return object.error();
  object->leave_out("keep_from_kernel");
  object->set_constants(filter_settings{.ring = number, .takes_udp_segments = kernel_segments_udp_});
  const struct {
    const char* name;
    int fd;
  } shared[] = {{"flows", flows_.flows_fd()}, {"hints", flows_.hints_fd()}, {"taken", flows_.taken_fd()}};
  for (const auto& map : shared) {
    if (Status used = object->use_map(map.name, map.fd); !used) return used.error();
  }
  if (Status loaded = object->load(); !loaded) return loaded.error();
  return object;
}

Result<unsigned> PacketRings::claim() {
  std::lock_guard guard(lock_);
  for (unsigned i = 0; i < claimed_.size(); ++i) {
    if (claimed_.test(i)) continue;
    claimed_.set(i);
    return i + 1;
  }
  return Error{ENOSPC, "packet rings"};
}

void PacketRings::release(unsigned number) {
  std::lock_guard guard(lock_);
  claimed_.reset(number - 1);
}

void PacketRings::forget() {
  flows_.forget();
  if (hook_) hook_->forget();
  if (xdp_) xdp_->forget();
}

}  // namespace ringsock::soft
