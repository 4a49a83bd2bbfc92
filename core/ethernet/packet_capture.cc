#include "core/ethernet/packet_capture.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <mutex>
#include <utility>

#include "core/base/log.h"
#include "core/wire/ethernet_frame.h"
#include "core/wire/frame_layout.h"
#include "core/wire/ip.h"
#include "core/wire/udp.h"

namespace ringsock::ethernet {

namespace {

// Source: pcap-savefile(5). Numbers are in the byte order of the writer.
struct FileHeader {
  std::uint32_t magic = 0xa1b23c4d;  ///< times in nanoseconds
  std::uint16_t major = 2, minor = 4;
  std::uint32_t reserved[2] = {0, 0};
  std::uint32_t longest_packet = 262'144;
  std::uint32_t link_type = 1;  ///< Ethernet
};
static_assert(sizeof(FileHeader) == 24);
struct RecordHeader {
  std::uint32_t seconds, nanoseconds;
  std::uint32_t captured_bytes, packet_bytes;
};
static_assert(sizeof(RecordHeader) == 16);

constexpr std::size_t kMostParts = 16;

std::size_t total(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

/// Returns `bytes` of the parts from `offset` on.
std::span<iovec> slice(std::span<const iovec> parts, std::size_t offset, std::size_t bytes,
                       std::array<iovec, kMostParts>& out) {
  std::size_t count = 0;
  for (const iovec& part : parts.first(std::min(parts.size(), out.size()))) {
    const std::size_t skipped = std::min(offset, part.iov_len);
    offset -= skipped;
    const std::size_t taken = std::min(bytes, part.iov_len - skipped);
    if (taken == 0) continue;
    bytes -= taken;
    out[count++] = {static_cast<std::byte*>(part.iov_base) + skipped, taken};
  }
  return std::span(out).first(count);
}

/// Where the IP header of a frame to send begins.
std::size_t ip_of(std::span<const std::byte> headers) {
  wire::Be16 type;
  std::memcpy(&type, headers.data() + offsetof(wire::EthernetHeader, type), sizeof type);
  return sizeof(wire::EthernetHeader) + (type.host() == wire::kEtherTypeVlan ? 4 : 0);
}

/// Headers up to UDP, whose lengths are those of a datagram with so much payload.
class DatagramHeaders {
 public:
  explicit DatagramHeaders(std::span<const std::byte> headers)
      : size_(std::min(headers.size(), bytes_.size())), ip_(ip_of(headers)) {
    std::memcpy(bytes_.data(), headers.data(), size_);
    is_v4_ = std::to_integer<unsigned>(bytes_[ip_]) >> 4 == 4;
  }
  [[nodiscard]] bool is_udp() const {
    const std::size_t at = is_v4_ ? offsetof(wire::Ipv4Header, protocol) : offsetof(wire::Ipv6Header, next_header);
    return std::to_integer<std::uint8_t>(bytes_[ip_ + at]) == wire::kIpProtocolUdp;
  }
  [[nodiscard]] std::span<const std::byte> with(std::size_t payload_bytes) {
    const std::size_t ip_bytes = size_ - ip_ + payload_bytes;
    if (is_v4_) {
      put(ip_ + offsetof(wire::Ipv4Header, total_bytes), ip_bytes);
    } else {
      put(ip_ + offsetof(wire::Ipv6Header, payload_bytes), ip_bytes - sizeof(wire::Ipv6Header));
    }
    put(size_ - sizeof(wire::UdpHeader) + offsetof(wire::UdpHeader, bytes), sizeof(wire::UdpHeader) + payload_bytes);
    return std::span(bytes_).first(size_);
  }

 private:
  void put(std::size_t at, std::size_t number) {
    const wire::Be16 field(static_cast<std::uint16_t>(number));
    std::memcpy(bytes_.data() + at, &field, sizeof field);
  }
  std::array<std::byte, wire::kMaxHeaderBytes> bytes_{};
  std::size_t size_;
  std::size_t ip_;
  bool is_v4_ = false;
};

constexpr std::size_t kLeastHeaders = sizeof(wire::EthernetHeader) + 4 + sizeof(wire::Ipv4Header);

}  // namespace

std::unique_ptr<PacketCapture> PacketCapture::create(const std::string& path, std::atomic<std::uint64_t>& left) {
  constexpr mode_t kMode = 0600;
  UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_CLOEXEC | O_NOCTTY, kMode));
  if (!file) {
    log_warn("packets are not captured: %s: %s", path.c_str(), std::strerror(errno));
    return nullptr;
  }
  std::unique_ptr<PacketCapture> out(new PacketCapture(out_of_the_way(std::move(file)), path, left));
  FileHeader header;
  const iovec part{&header, sizeof header};
  out->write(std::span(&part, 1), sizeof header);
  return out->is_over_.load() ? nullptr : std::move(out);
}

PacketCapture::PacketCapture(UniqueFd file, std::string path, std::atomic<std::uint64_t>& left)
    : file_(std::move(file)), path_(std::move(path)), left_(left) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

/// A program that closes every descriptor closes this one, too, and the next file that it opens gets the number.
bool PacketCapture::is_ours() const noexcept {
  struct stat now {};
  return ::fstat(file_.get(), &now) == 0 && now.st_dev == device_ && now.st_ino == inode_;
}

bool PacketCapture::reserve(std::uint64_t bytes) noexcept {
  std::uint64_t left = left_.load(std::memory_order_relaxed);
  while (left >= bytes) {
    if (left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed)) return true;
  }
  return false;
}

void PacketCapture::stop(const char* why) noexcept {
  is_over_.store(true, std::memory_order_relaxed);
  log_warn("packets are not captured any more: %s: %s", path_.c_str(), why);
}

void PacketCapture::write(std::span<const iovec> parts, std::size_t bytes) noexcept {
  const std::lock_guard guard(lock_);
  if (is_over_.load(std::memory_order_relaxed)) return;
  if (!reserve(bytes)) return stop("as many bytes as permitted");
  if (!is_ours()) return stop("the program has closed the file");
  const ssize_t written = ::writev(file_.get(), parts.data(), static_cast<int>(parts.size()));
  if (written == static_cast<ssize_t>(bytes)) return;
  stop(written < 0 ? std::strerror(errno) : "no room");
  // A part of a record would have readers complain.
  struct stat status {};
  if (written > 0 && ::fstat(file_.get(), &status) == 0)
    static_cast<void>(::ftruncate(file_.get(), status.st_size - written) == 0);
}

void PacketCapture::note(std::span<const std::byte> headers, std::span<const iovec> payload) noexcept {
  if (is_over_.load(std::memory_order_relaxed)) return;
  const int saved_errno = errno;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::array<iovec, kMostParts + 2> parts;
  const std::span some = payload.first(std::min(payload.size(), kMostParts));
  const std::size_t bytes = headers.size() + total(some);
  RecordHeader record{.seconds = static_cast<std::uint32_t>(now.tv_sec),
                      .nanoseconds = static_cast<std::uint32_t>(now.tv_nsec),
                      .captured_bytes = static_cast<std::uint32_t>(bytes),
                      .packet_bytes = static_cast<std::uint32_t>(headers.size() + total(payload))};
  parts[0] = {&record, sizeof record};
  parts[1] = {const_cast<std::byte*>(headers.data()), headers.size()};
  std::ranges::copy(some, parts.begin() + 2);
  write(std::span(parts).first(2 + some.size()), sizeof record + bytes);
  errno = saved_errno;
}

void PacketCapture::note_received(const Packet& packet) noexcept {
  const iovec payload{const_cast<std::byte*>(packet.payload.data()), packet.payload.size()};
  note(packet.headers.first(std::min<std::size_t>(packet.layout.payload, packet.headers.size())),
       std::span(&payload, 1));
}

void PacketCapture::note_request(const ibv_send_wr& request) noexcept {
  std::array<iovec, kMostParts> parts;
  const auto count = std::min<std::size_t>(static_cast<std::size_t>(request.num_sge), parts.size());
  for (std::size_t i = 0; i < count; ++i)
    parts[i] = {reinterpret_cast<void*>(request.sg_list[i].addr), request.sg_list[i].length};
  const std::span all = std::span(parts).first(count);
  if (request.opcode != IBV_WR_TSO) return note({}, all);
  note_segments({static_cast<const std::byte*>(request.tso.hdr), request.tso.hdr_sz}, all, request.tso.mss);
}

void PacketCapture::note_segments(std::span<const std::byte> headers, std::span<const iovec> payload,
                                  std::size_t segment_bytes) noexcept {
  if (headers.size() < kLeastHeaders || segment_bytes == 0) return note(headers, payload);
  DatagramHeaders each(headers);
  if (!each.is_udp()) return note(headers, payload);
  const std::size_t all = total(payload);
  for (std::size_t offset = 0; offset < all; offset += segment_bytes) {
    const std::size_t bytes = std::min(segment_bytes, all - offset);
    std::array<iovec, kMostParts> parts;
    note(each.with(bytes), slice(payload, offset, bytes, parts));
  }
}

}  // namespace ringsock::ethernet
