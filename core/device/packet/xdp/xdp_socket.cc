#include "core/device/packet/xdp/xdp_socket.h"

#include <linux/if_xdp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ringsock::soft {

namespace {

constexpr unsigned kSendFrames = 256;
/// More memory than kSendFrames frames need as packets of the kernel.
constexpr int kSendBufferBytes = 2 << 20;

std::uint32_t load(const std::uint32_t* index) { return __atomic_load_n(index, __ATOMIC_ACQUIRE); }
void publish(std::uint32_t* index, std::uint32_t value) { __atomic_store_n(index, value, __ATOMIC_RELEASE); }

}  // namespace

XdpSocket::XdpSocket(XdpSocket&& other) noexcept
    : socket_(std::move(other.socket_)),
      mappings_(std::exchange(other.mappings_, {})),
      memory_(std::exchange(other.memory_, nullptr)),
      memory_bytes_(other.memory_bytes_),
      fill_(other.fill_),
      completion_(other.completion_),
      receive_(std::exchange(other.receive_, {})),
      send_(other.send_),
      front_address_(other.front_address_),
      free_(std::move(other.free_)),
      left_(other.left_) {}

void XdpSocket::close() {
  // The interface's queue becomes free only when nothing of the socket is mapped any more.
  for (const Mapping& mapping : std::exchange(mappings_, {})) ::munmap(mapping.address, mapping.bytes);
  receive_ = {};
  memory_ = nullptr;
  socket_.reset();
}

Status XdpSocket::open(unsigned ifindex, unsigned queue, unsigned frames) {
  UniqueFd socket(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!socket) return Error::last("AF_XDP socket");
  socket_ = out_of_the_way(std::move(socket));
  // Sending then never waits for memory.
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBufferBytes, sizeof kSendBufferBytes) != 0)
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof kSendBufferBytes);
  if (Status s = register_memory(frames); !s) return s;
  if (Status s = map_queues(frames); !s) return s;
  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_flags = XDP_COPY;
  address.sxdp_ifindex = ifindex;
  address.sxdp_queue_id = queue;
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Error::last("AF_XDP socket: bind");
  return ok();
}

Result<std::byte*> XdpSocket::map(std::size_t bytes, int flags, int fd, std::uint64_t offset) {
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE | flags, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) return Error::last("AF_XDP socket: mmap");
  mappings_.push_back({address, bytes});
  return static_cast<std::byte*>(address);
}

Status XdpSocket::register_memory(unsigned frames) {
  memory_bytes_ = (frames + kSendFrames) * kFrameBytes;
  // Shared, so that fork(2) does not copy pages that the kernel writes.
  auto memory = map(memory_bytes_, MAP_ANONYMOUS, -1, 0);
  if (!memory) return memory.error();
  memory_ = *memory;
  xdp_umem_reg registration{};
  registration.addr = reinterpret_cast<std::uint64_t>(memory_);
  registration.len = memory_bytes_;
  registration.chunk_size = kFrameBytes;
  if (::setsockopt(socket_.get(), SOL_XDP, XDP_UMEM_REG, &registration, sizeof registration) != 0)
    return Error::last("XDP_UMEM_REG");
  free_.reserve(kSendFrames);
  for (std::size_t i = 0; i < kSendFrames; ++i) free_.push_back((frames + i) * kFrameBytes);
  return ok();
}

Status XdpSocket::map_queues(unsigned frames) {
  const struct {
    int option;
    unsigned entries;
  } sizes[] = {{XDP_UMEM_FILL_RING, frames},
               {XDP_UMEM_COMPLETION_RING, kSendFrames},
               {XDP_RX_RING, frames},
               {XDP_TX_RING, kSendFrames}};
  for (const auto& size : sizes) {
    if (::setsockopt(socket_.get(), SOL_XDP, size.option, &size.entries, sizeof size.entries) != 0)
      return Error::last("AF_XDP socket: rings");
  }
  xdp_mmap_offsets offsets{};
  socklen_t length = sizeof offsets;
  if (::getsockopt(socket_.get(), SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length) != 0 || length != sizeof offsets)
    return Error{EOPNOTSUPP, "XDP_MMAP_OFFSETS"};
  if (Status s = map_queue(fill_, &offsets.fr, XDP_UMEM_PGOFF_FILL_RING, frames); !s) return s;
  if (Status s = map_queue(completion_, &offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, kSendFrames); !s) return s;
  if (Status s = map_queue(receive_, &offsets.rx, XDP_PGOFF_RX_RING, frames); !s) return s;
  if (Status s = map_queue(send_, &offsets.tx, XDP_PGOFF_TX_RING, kSendFrames); !s) return s;
  for (std::uint32_t i = 0; i < frames; ++i) fill_.at(i) = i * kFrameBytes;
  fill_.mine = frames;
  publish(fill_.producer, fill_.mine);
  return ok();
}

template <class Entry>
Status XdpSocket::map_queue(XdpQueue<Entry>& queue, const void* offsets, std::uint64_t page, std::uint32_t entries) {
  const auto& at = *static_cast<const xdp_ring_offset*>(offsets);
  auto mapped = map(at.desc + entries * sizeof(Entry), 0, socket_.get(), page);
  if (!mapped) return mapped.error();
  queue = {.producer = reinterpret_cast<std::uint32_t*>(*mapped + at.producer),
           .consumer = reinterpret_cast<std::uint32_t*>(*mapped + at.consumer),
           .entries = reinterpret_cast<Entry*>(*mapped + at.desc),
           .mask = entries - 1};
  return ok();
}

// -- receiving -------------------------------------------------------------------------------------

std::span<const std::byte> XdpSocket::front() {
  static_assert(sizeof(Descriptor) == sizeof(xdp_desc));
  if (receive_.producer == nullptr || load(receive_.producer) == receive_.mine) return {};
  const Descriptor descriptor = receive_.at(receive_.mine);
  front_address_ = descriptor.address;
  if (descriptor.address < sizeof(std::uint64_t) || descriptor.address >= memory_bytes_ ||
      descriptor.bytes > memory_bytes_ - descriptor.address)
    return {};
  return {memory_ + descriptor.address, descriptor.bytes};
}

std::uint64_t XdpSocket::arrival_ns() const {
  std::uint64_t time;
  std::memcpy(&time, memory_ + front_address_ - sizeof time, sizeof time);
  return time;
}

void XdpSocket::pop() {
  publish(receive_.consumer, ++receive_.mine);
  // The queue has as many places as there are frames, so a place is free.
  fill_.at(fill_.mine) = front_address_ & ~(std::uint64_t{kFrameBytes} - 1);
  publish(fill_.producer, ++fill_.mine);
}

std::uint64_t XdpSocket::overruns() const {
  xdp_statistics statistics{};
  socklen_t length = sizeof statistics;
  if (!socket_ || ::getsockopt(socket_.get(), SOL_XDP, XDP_STATISTICS, &statistics, &length) != 0) return 0;
  return statistics.rx_dropped + statistics.rx_ring_full;
}

// -- sending ---------------------------------------------------------------------------------------

void XdpSocket::reclaim() {
  for (const std::uint32_t produced = load(completion_.producer); completion_.mine != produced; ++completion_.mine)
    free_.push_back(completion_.at(completion_.mine) & ~(std::uint64_t{kFrameBytes} - 1));
  publish(completion_.consumer, completion_.mine);
}

std::byte* XdpSocket::place() {
  if (free_.empty()) reclaim();
  if (memory_ == nullptr || free_.empty() || left_ != 0) return nullptr;
  return memory_ + free_.back();
}

void XdpSocket::queue(std::size_t bytes) {
  send_.at(send_.mine++) = {free_.back(), static_cast<std::uint32_t>(bytes), 0};
  free_.pop_back();
}

Status XdpSocket::flush(std::uint64_t& dropped) {
  constexpr int kAttempts = 64;
  if (send_.producer == nullptr) return Error{ENODEV, "AF_XDP socket: send"};
  const bool all_new = left_ == 0;
  const std::uint32_t count = send_.mine - load(send_.consumer);
  publish(send_.producer, send_.mine);
  left_ = count;
  for (int i = 0; i < kAttempts && left_ != 0; ++i) {
    const int error = ::send(socket_.get(), nullptr, 0, MSG_DONTWAIT) < 0 ? errno : 0;
    left_ = send_.mine - load(send_.consumer);
    // The interface had no room: the frame has left the queue, and the next one follows.
    if (error == EBUSY) ++dropped;
    if (error != ENETDOWN && error != ENXIO && error != EBADF) continue;
    // Frames can be taken back only here, where the kernel has not looked at any of them; later it may know their
    // number.
    if (all_new && left_ == count) take_back(std::exchange(left_, 0));
    return Error{error == ENETDOWN ? ENETDOWN : ENODEV, "AF_XDP socket: send"};
  }
  return ok();
}

void XdpSocket::take_back(std::uint32_t count) {
  for (; count != 0; --count) free_.push_back(send_.at(--send_.mine).address);
  publish(send_.producer, send_.mine);
}

}  // namespace ringsock::soft
