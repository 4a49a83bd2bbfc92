#include "core/device/packet/ring/socket_ring.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "core/device/packet/steering/bpf_program.h"

namespace ringsock::soft {

namespace {

constexpr std::size_t kSlotBytes = 2048;
constexpr std::size_t kBlockBytes = std::size_t{1} << 16;
constexpr std::size_t kSlotsPerBlock = kBlockBytes / kSlotBytes;
constexpr unsigned kMinFrames = 256;
constexpr unsigned kMaxFrames = 16384;
/// Room for several of the largest packets, with the kernel's overhead.
constexpr int kLargeQueueBytes = 8 << 20;
constexpr std::size_t kLargeBytes = sizeof(virtio_net_hdr) + (std::size_t{1} << 16) + 64;
constexpr std::size_t kMaxBatch = 64;

Status set_option(int socket, int level, int option, const void* value, socklen_t bytes, const char* where) {
  if (::setsockopt(socket, level, option, value, bytes) != 0) return Error::last(where);
  return ok();
}

Status set_flag(int socket, int option, int value, const char* where) {
  return set_option(socket, SOL_PACKET, option, &value, sizeof value, where);
}

}  // namespace

SocketRing::~SocketRing() {
  forget();
  // The filter is gone, so the number may be given to another ring.
  maker_.release(number_);
}

void SocketRing::forget() {
  if (ring_ != nullptr) ::munmap(ring_, slots_ * kSlotBytes);
  ring_ = nullptr;
  has_frame_ = false;
  alarm_.close();
  socket_.reset();
}

Status SocketRing::open(const BpfObject& object, unsigned frames) {
  const auto program = object.program("take_into_ring");
  if (!program) return program.error();
  const int filter = program->get();
  if (Status s = alarm_.open(object); !s) return s;
  // Without a protocol the socket receives nothing until bind(), so that it receives nothing before its filter is
  // attached.
  UniqueFd socket(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Error::last("packet socket");
  socket_ = out_of_the_way(std::move(socket));
  const int fd = socket_.get();
  if (Status s = set_flag(fd, PACKET_VERSION, TPACKET_V2, "PACKET_VERSION"); !s) return s;
  if (Status s = set_flag(fd, PACKET_VNET_HDR, 1, "PACKET_VNET_HDR"); !s) return s;
  if (Status s = set_flag(fd, PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING"); !s) return s;
  if (Status s = set_flag(fd, PACKET_COPY_THRESH, 1, "PACKET_COPY_THRESH"); !s) return s;
  if (::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &kLargeQueueBytes, sizeof kLargeQueueBytes) != 0)
    ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kLargeQueueBytes, sizeof kLargeQueueBytes);
  if (Status s = set_option(fd, SOL_SOCKET, SO_ATTACH_BPF, &filter, sizeof filter, "SO_ATTACH_BPF"); !s) return s;
  if (Status s = map_ring(frames); !s) return s;
  alarm_.start(static_cast<std::uint32_t>(slots_));
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(ifindex_);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Error::last("packet socket: bind");
  return ok();
}

Status SocketRing::map_ring(unsigned frames) {
  const unsigned slots = std::bit_ceil(std::clamp(frames, kMinFrames, kMaxFrames));
  tpacket_req request{};
  request.tp_block_size = kBlockBytes;
  request.tp_block_nr = static_cast<unsigned>(slots / kSlotsPerBlock);
  request.tp_frame_size = kSlotBytes;
  request.tp_frame_nr = slots;
  if (Status s = set_option(socket_.get(), SOL_PACKET, PACKET_RX_RING, &request, sizeof request, "PACKET_RX_RING"); !s)
    return s;
  void* memory = ::mmap(nullptr, slots * kSlotBytes, PROT_READ | PROT_WRITE, MAP_SHARED, socket_.get(), 0);
  if (memory == MAP_FAILED) return Error::last("packet ring: mmap");
  ring_ = static_cast<std::byte*>(memory);
  slots_ = slots;
  return ok();
}

tpacket2_hdr& SocketRing::slot() const { return *reinterpret_cast<tpacket2_hdr*>(ring_ + next_ * kSlotBytes); }

[[gnu::always_inline]] inline bool SocketRing::read_slot(tpacket2_hdr& header, std::uint32_t status) {
  const std::uint32_t mac = header.tp_mac, captured = header.tp_snaplen;
  frame_.wallclock_ns = std::uint64_t{header.tp_sec} * 1'000'000'000 + header.tp_nsec;
  frame_.vlan_control.reset();
  if ((status & TP_STATUS_VLAN_VALID) != 0) frame_.vlan_control = header.tp_vlan_tci;
  if (captured < header.tp_len) return (status & TP_STATUS_COPY) != 0 && fetch_large();
  if (mac < sizeof(tpacket2_hdr) + sizeof(virtio_net_hdr) || mac + captured > kSlotBytes) return false;
  const std::byte* start = reinterpret_cast<const std::byte*>(&header) + mac;
  virtio_net_hdr offload;
  std::memcpy(&offload, start - sizeof offload, sizeof offload);
  frame_.bytes = {start, captured};
  return read_offload(offload, status);
}

bool SocketRing::fetch_large() {
  if (!large_) large_.reset(new (std::nothrow) std::byte[kLargeBytes]);
  if (!large_) return false;
  rx_calls_.fetch_add(1, std::memory_order_relaxed);
  const ssize_t got = ::recv(socket_.get(), large_.get(), kLargeBytes, MSG_DONTWAIT | MSG_TRUNC);
  virtio_net_hdr offload;
  if (got < static_cast<ssize_t>(sizeof offload) || static_cast<std::size_t>(got) > kLargeBytes) return false;
  std::memcpy(&offload, large_.get(), sizeof offload);
  frame_.bytes = {large_.get() + sizeof offload, static_cast<std::size_t>(got) - sizeof offload};
  return read_offload(offload, 0);
}

[[gnu::always_inline]] inline bool SocketRing::read_offload(const virtio_net_hdr& offload, std::uint32_t status) {
  const bool several = offload.gso_type != VIRTIO_NET_HDR_GSO_NONE;
  const bool valid = several || (offload.flags & (VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID)) != 0 ||
                     (status & TP_STATUS_CSUM_VALID) != 0;
  frame_.has_valid_checksum = valid;
  frame_.segment_bytes = several ? offload.gso_size : std::uint16_t{0};
  return true;
}

const RingFrame* SocketRing::front() {
  if (has_frame_) return &frame_;
  while (ring_ != nullptr) {
    tpacket2_hdr& header = slot();
    const std::uint32_t status = __atomic_load_n(&header.tp_status, __ATOMIC_ACQUIRE);
    if ((status & TP_STATUS_USER) == 0) return nullptr;
    if (read_slot(header, status)) [[likely]] {
      has_frame_ = true;
      return &frame_;
    }
    lost_.fetch_add(1, std::memory_order_relaxed);
    release_slot();
  }
  return nullptr;
}

void SocketRing::pop() {
  has_frame_ = false;
  release_slot();
}

void SocketRing::release_slot() {
  __atomic_store_n(&slot().tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
  if (++next_ == slots_) next_ = 0;
  alarm_.note_taken();
}

/// Used instead of libc's send(2), which spends two locked instructions and three times as many others on being a
/// cancellation point. This call never waits.
[[gnu::always_inline]] inline ssize_t send_at_once(int fd, const iovec& frame) {
  return ::syscall(SYS_sendto, fd, frame.iov_base, frame.iov_len, MSG_DONTWAIT, nullptr, 0);
}

[[gnu::always_inline]] inline Result<std::size_t> SocketRing::send_one(OutgoingFrame frame) {
  tx_calls_.fetch_add(1, std::memory_order_relaxed);
  ssize_t sent;
  if (frame.size() == 1) {
    sent = send_at_once(socket_.get(), frame[0]);
  } else {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(frame.data());
    message.msg_iovlen = frame.size();
    sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT);
  }
  if (sent >= 0) return std::size_t{1};
  if (Status lost = judge_failure(); !lost) return lost.error();
  return std::size_t{1};
}

[[gnu::noinline]] Result<std::size_t> SocketRing::send_many(std::span<const OutgoingFrame> frames) {
  std::array<mmsghdr, kMaxBatch> messages;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    messages[i] = {};
    messages[i].msg_hdr.msg_iov = const_cast<iovec*>(frames[i].data());
    messages[i].msg_hdr.msg_iovlen = frames[i].size();
  }
  tx_calls_.fetch_add(1, std::memory_order_relaxed);
  const int sent = ::sendmmsg(socket_.get(), messages.data(), static_cast<unsigned>(frames.size()), MSG_DONTWAIT);
  if (sent > 0) return static_cast<std::size_t>(sent);
  if (Status lost = judge_failure(); !lost) return lost.error();
  return std::size_t{1};
}

Status SocketRing::judge_failure() {
  switch (errno) {
    case ENOBUFS: tx_dropped_.fetch_add(1, std::memory_order_relaxed); return ok();
    case ENXIO:
    case EBADF: return Error{ENODEV, "packet socket: send"};
    default: return Error::last("packet socket: send");
  }
}

[[gnu::always_inline]] inline Result<std::size_t> SocketRing::try_to_send(std::span<const OutgoingFrame> frames) {
  return frames.size() == 1 ? send_one(frames[0]) : send_many(frames.first(std::min(frames.size(), kMaxBatch)));
}

Result<std::size_t> SocketRing::send(std::span<const OutgoingFrame> frames) {
  const auto sent = try_to_send(frames);
  if (sent || sent.error().code != ENETDOWN) [[likely]]
    return sent;
  take_error();
  return try_to_send(frames);
}

Status SocketRing::send_piece(const iovec& frame) {
  const auto sent = send_one({&frame, 1});
  if (sent) [[likely]]
    return ok();
  if (sent.error().code != ENETDOWN) return sent.error();
  take_error();
  return FrameRing::send_piece(frame);
}

/// An error of send(2) may be an older one, which the socket keeps until it is read. Reads it, and notes that for
/// look().
void SocketRing::take_error() {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  took_error_.store(true, std::memory_order_relaxed);
}

bool SocketRing::look() {
  int error = 0;
  socklen_t length = sizeof error;
  if (!socket_) return false;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (!took_error_.exchange(false, std::memory_order_relaxed) && error == 0) return true;
  ifreq request{};
  request.ifr_ifindex = static_cast<int>(ifindex_);
  return ::ioctl(socket_.get(), SIOCGIFNAME, &request) == 0;
}

FrameRing::Counters SocketRing::counters() {
  std::lock_guard guard(statistics_lock_);
  tpacket_stats statistics{};
  socklen_t length = sizeof statistics;
  // Reading resets the kernel's counters.
  if (socket_ && ::getsockopt(socket_.get(), SOL_PACKET, PACKET_STATISTICS, &statistics, &length) == 0)
    ring_full_ += statistics.tp_drops;
  return {.ring_full = ring_full_ + lost_.load(std::memory_order_relaxed),
          .tx_dropped = tx_dropped_.load(std::memory_order_relaxed),
          .rx_system_calls = rx_calls_.load(std::memory_order_relaxed),
          .tx_system_calls = tx_calls_.load(std::memory_order_relaxed)};
}

}  // namespace ringsock::soft
