#include "libvmacompat/udp/cyclic_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ringsock::vma {

using Mode = CyclicLayout::Mode;

namespace {

/// Copies as much as there is room for. Returns the room that is left.
std::span<std::byte> append(std::span<std::byte> room, std::span<const std::byte> bytes) {
  const std::size_t count = std::min(room.size(), bytes.size());
  if (count != 0) std::memcpy(room.data(), bytes.data(), count);
  return room.subspan(count);
}

}  // namespace

Result<std::unique_ptr<CyclicBuffer>> CyclicBuffer::make(const CyclicLayout& layout,
                                                         const std::optional<iovec>& memory) {
  const std::size_t bytes = layout.bytes();
  void* place = nullptr;
  if (layout.is_external) {
    if (!memory || memory->iov_len < bytes) return Error{EINVAL, "cyclic buffer: SO_VMA_RING_USER_MEMORY"};
    place = memory->iov_base;
  } else {
    place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) return Error{ENOMEM, "cyclic buffer"};
  }
  return std::unique_ptr<CyclicBuffer>(
      new CyclicBuffer(layout, {static_cast<std::byte*>(place), bytes}, !layout.is_external));
}

CyclicBuffer::CyclicBuffer(const CyclicLayout& layout, std::span<std::byte> memory, bool is_own)
    : layout_(layout), memory_(memory), is_own_(is_own), times_(layout.packets) {}

CyclicBuffer::~CyclicBuffer() {
  registration_.reset();
  if (is_own_) ::munmap(memory_.data(), memory_.size());
}

std::uint64_t CyclicBuffer::end_of_row() const { return (read_ / layout_.packets + 1) * layout_.packets; }

std::size_t CyclicBuffer::unread_in_row() const { return std::min(written_, end_of_row()) - read_; }

std::span<std::byte> CyclicBuffer::stride(std::uint64_t number, std::size_t count) const {
  const std::size_t bytes = layout_.stride_bytes;
  return memory_.subspan(number % layout_.packets * bytes, count * bytes);
}

std::span<std::byte> CyclicBuffer::header_stride(std::uint64_t number, std::size_t count) const {
  const std::size_t bytes = layout_.header_stride_bytes();
  return memory_.subspan(layout_.payload_area_bytes() + number % layout_.packets * bytes, count * bytes);
}

bool CyclicBuffer::put(const ethernet::Packet& packet) {
  if (free_strides() == 0) return false;
  const auto network = packet.headers.first(packet.layout.payload);
  const bool is_whole = layout_.mode == Mode::raw || layout_.mode == Mode::padded;
  const auto own = packet.payload.first(std::min(layout_.user_header_bytes, packet.payload.size()));
  const auto rest = packet.payload.subspan(own.size());
  if ((is_whole ? network.size() : 0) + rest.size() > layout_.stride_bytes) return false;
  std::span<std::byte> room = stride(written_, 1);
  if (is_whole) room = append(room, network);
  room = append(room, rest);
  if (layout_.mode == Mode::padded && !room.empty()) std::memset(room.data(), 0, room.size());
  if (layout_.header_stride_bytes() != 0) {
    std::span<std::byte> headers = header_stride(written_, 1);
    if (layout_.mode == Mode::separate_headers) {
      append(headers.first(layout_.network_header_bytes), network);
      headers = headers.subspan(layout_.network_header_bytes);
    }
    append(headers, own);
  }
  times_[written_ % layout_.packets] = packet.time;
  ++written_;
  return true;
}

void CyclicBuffer::begin_read() { given_back_ = read_; }

bool CyclicBuffer::has(std::size_t least) const {
  const std::size_t unread = unread_in_row();
  return unread >= least || (unread != 0 && read_ + unread == end_of_row());
}

CyclicBuffer::Batch CyclicBuffer::take(std::size_t most) {
  const std::size_t count = std::min(unread_in_row(), most);
  if (count == 0) return {};
  const Batch out{.packets = count,
                  .payload = stride(read_, count),
                  .headers = header_stride(read_, count),
                  .time = times_[read_ % layout_.packets]};
  read_ += count;
  return out;
}

Result<std::uint32_t> CyclicBuffer::key(const std::shared_ptr<ethernet::Interface>& interface) {
  if (!registration_) {
    auto made = interface->device().reg_mr(interface->pd(), memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE);
    if (!made) return made.error();
    interface_ = interface;
    registration_ = *std::move(made);
  }
  return registration_->lkey;
}

}  // namespace ringsock::vma
