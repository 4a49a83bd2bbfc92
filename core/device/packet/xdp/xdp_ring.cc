#include "core/device/packet/xdp/xdp_ring.h"

#include <sys/epoll.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <mutex>
#include <optional>

#include "core/wire/checksum.h"
#include "core/wire/ethernet_frame.h"
#include "core/wire/udp.h"

namespace ringsock::soft {

namespace {

constexpr unsigned kMinFrames = 256;
constexpr unsigned kMaxFrames = 4096;
/// Below any MTU, which is not checked here: every host must accept packets of 576 bytes (RFC 791).
constexpr std::size_t kMaxSent = sizeof(wire::EthernetHeader) + 576;

std::uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

virtio_net_hdr offload_of(OutgoingFrame frame) {
  virtio_net_hdr out;
  std::memcpy(&out, frame[0].iov_base, sizeof out);
  return out;
}

std::size_t length_of(OutgoingFrame frame) {
  std::size_t bytes = 0;
  for (const iovec& part : frame) bytes += part.iov_len;
  return bytes - sizeof(virtio_net_hdr);
}

bool is_small(OutgoingFrame frame) {
  return length_of(frame) <= kMaxSent && offload_of(frame).gso_type == VIRTIO_NET_HDR_GSO_NONE;
}

/// Completes a checksum that was left to the device.
void fill_checksum(std::span<std::byte> packet, const virtio_net_hdr& offload) {
  const std::size_t start = offload.csum_start, field = start + offload.csum_offset;
  if ((offload.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) == 0 || field + sizeof(wire::Be16) > packet.size()) return;
  // The field holds the sum of the pseudo header.
  const wire::Be16 checksum = wire::sent_udp_checksum(wire::InternetSum().add(packet.subspan(start)));
  std::memcpy(packet.data() + field, &checksum, sizeof checksum);
}

/// Writes a frame in the form in which it is sent. Returns its length.
std::size_t write_frame(OutgoingFrame frame, std::byte* to) {
  std::size_t skip = sizeof(virtio_net_hdr), bytes = 0;
  for (const iovec& part : frame) {
    std::memcpy(to + bytes, static_cast<const std::byte*>(part.iov_base) + skip, part.iov_len - skip);
    bytes += part.iov_len - skip;
    skip = 0;
  }
  fill_checksum({to, bytes}, offload_of(frame));
  return bytes;
}

}  // namespace

Result<std::unique_ptr<FrameRing>> XdpRing::create(XdpPath& path, unsigned frames,
                                                   std::unique_ptr<FrameRing>& packets) {
  auto sockets = path.claim(packets->number(), std::bit_ceil(std::clamp(frames, kMinFrames, kMaxFrames)));
  if (!sockets) return sockets.error();
  std::unique_ptr<XdpRing> ring(new XdpRing(path, std::move(*sockets)));
  ring->epoll_ = out_of_the_way(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!ring->epoll_) return Error::last("xdp ring: epoll");
  ring->packets_ = std::move(packets);
  return std::unique_ptr<FrameRing>(std::move(ring));
}

XdpRing::~XdpRing() {
  if (epoll_ || !packets_) path_.release();
}

/// A socket in an epoll set reports each packet to it, which costs the sender 0.3 us.
bool XdpRing::listen(bool on) {
  const auto set = [&](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    return ::epoll_ctl(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event) == 0 || !on || errno == EEXIST;
  };
  bool done = set(packets_->descriptor());
  for (const XdpSocket& socket : sockets_) done = set(socket.fd()) && done;
  return done;
}

void XdpRing::forget() {
  from_ = From::nothing;
  for (XdpSocket& socket : sockets_) socket.close();
  epoll_.reset();
  packets_->forget();
}

// -- receiving -------------------------------------------------------------------------------------

const RingFrame* XdpRing::front() {
  switch (from_) {
    case From::socket: return &frame_;
    case From::packets: return packets_->front();
    case From::nothing: break;
  }
  // In this order: once a frame of a socket is seen, packets that came before it are visible, too.
  bool has_socket = read_sockets();
  const RingFrame* const packet = packets_->front();
  // Frames may have come into the empty sockets before the packet, when this thread was interrupted.
  if (packet != nullptr && !has_socket) has_socket = read_sockets();
  // The older one is first, because packets of one sender may come by both ways.
  if (packet != nullptr && (!has_socket || packet->wallclock_ns < frame_.wallclock_ns)) {
    from_ = From::packets;
    return packet;
  }
  if (!has_socket) return nullptr;
  from_ = From::socket;
  return &frame_;
}

/// Reads the next frame of the sockets, in turn.
bool XdpRing::read_sockets() {
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    if (++at_ >= sockets_.size()) at_ = 0;
    const auto bytes = sockets_[at_].front();
    if (bytes.empty()) continue;
    frame_ = {.bytes = bytes,
              .vlan_control = {},
              .has_valid_checksum = false,
              .may_lack_checksum = path_.may_lack_checksums(),
              .segment_bytes = 0,
              .wallclock_ns = wallclock_ns(sockets_[at_].arrival_ns())};
    return true;
  }
  return false;
}

/// The clocks are compared repeatedly, because the wall clock may be set.
std::uint64_t XdpRing::wallclock_ns(std::uint64_t monotonic_ns) {
  constexpr std::int64_t kInterval = 10'000'000;
  // A frame that has waited came before the last comparison.
  if (static_cast<std::int64_t>(monotonic_ns - clocks_compared_) > kInterval) compare_clocks();
  return monotonic_ns + clock_difference_;
}

/// Takes the closest of a few comparisons: a thread that is interrupted in between compares different times.
void XdpRing::compare_clocks() {
  constexpr int kTries = 4;
  constexpr std::uint64_t kCloseEnough = 500;  // ns
  std::uint64_t closest = std::numeric_limits<std::uint64_t>::max();
  for (int i = 0; i < kTries && closest > kCloseEnough; ++i) {
    const std::uint64_t before = clock_ns(CLOCK_MONOTONIC);
    const std::uint64_t wallclock = clock_ns(CLOCK_REALTIME);
    const std::uint64_t taken = clock_ns(CLOCK_MONOTONIC) - before;
    if (taken >= closest) continue;
    closest = taken;
    clocks_compared_ = before;
    clock_difference_ = wallclock - before - taken / 2;
  }
}

void XdpRing::pop() {
  if (from_ == From::packets) {
    packets_->pop();
  } else {
    sockets_[at_].pop();
    path_.alarm().note_taken();
  }
  from_ = From::nothing;
}

// -- sending ---------------------------------------------------------------------------------------

Result<std::size_t> XdpRing::send(std::span<const OutgoingFrame> frames) {
  const auto large = std::ranges::find_if_not(frames, is_small);
  if (large == frames.begin()) {
    const auto small = std::ranges::find_if(frames, is_small);
    return packets_->send(frames.first(static_cast<std::size_t>(small - frames.begin())));
  }
  std::lock_guard guard(send_lock_);
  XdpSocket& socket = sockets_.front();
  std::byte* place = socket.place();
  if (place == nullptr) {
    // Frames that the interface could not take before are sent first.
    if (Status flushed = socket.flush(tx_dropped_); !flushed) return flushed.error();
    place = socket.place();
    if (place == nullptr) return Error{EAGAIN, "xdp ring: send"};
  }
  std::size_t queued = 0;
  for (auto frame = frames.begin(); frame != large && place != nullptr; ++frame, ++queued) {
    socket.queue(write_frame(*frame, place));
    place = socket.place();
  }
  tx_calls_.store(tx_calls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (Status flushed = socket.flush(tx_dropped_); !flushed) return flushed.error();
  return queued;
}

bool XdpRing::look() {
  if (const std::unique_lock guard(send_lock_, std::try_to_lock); guard && !sockets_.empty()) {
    // The packet socket reports errors.
    if (Status flushed = sockets_.front().flush(tx_dropped_); !flushed) return packets_->look();
  }
  return packets_->look();
}

FrameRing::Counters XdpRing::counters() {
  Counters out = packets_->counters();
  for (const XdpSocket& socket : sockets_) out.ring_full += socket.overruns();
  const std::lock_guard guard(send_lock_);
  out.tx_dropped += tx_dropped_;
  out.tx_system_calls += tx_calls_.load(std::memory_order_relaxed);
  return out;
}

}  // namespace ringsock::soft
