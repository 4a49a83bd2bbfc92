// The list of packets that recvfrom_zcopy() writes into the program's memory.
#pragma once

#include <mellanox/vma_extra.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "core/extra_api/lent_packets.h"

namespace ringsock::vma {

/// A vma_packets_t, at any address, that grows by packets of one part each.
class PacketList {
 public:
  /// @param room  writable memory of `bytes` bytes
  PacketList(void* room, std::size_t bytes) : room_(static_cast<std::byte*>(room)), bytes_(bytes) {}

  /// Returns whether there is room for one more packet, with its part.
  [[nodiscard]] bool has_room() const { return bytes_ >= at_ + kPacket + sizeof(iovec); }
  /// Returns whether there is room for the first packet without its part: the program then sees that there is one.
  [[nodiscard]] bool has_room_for_head() const { return bytes_ >= at_ + kPacket; }
  /// Adds a packet whose part is `bytes`. Needs has_room().
  void add(const LentPacket& packet, std::span<const std::byte> bytes) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};  // the program may write to its packets
    std::memcpy(room_ + at_ + kPacket, &part, sizeof part);
    add_head(packet, 1);
    at_ += sizeof part;
  }
  /// Adds a packet without its part. Needs has_room_for_head().
  void add_cut(const LentPacket& packet) {
    add_head(packet, 0);
    is_cut_ = true;
  }

  [[nodiscard]] bool is_empty() const { return packets_ == 0; }
  [[nodiscard]] bool is_cut() const { return is_cut_; }

 private:
  static constexpr std::size_t kPacket = sizeof(vma_packet_t);

  void add_head(const LentPacket& packet, std::size_t parts) {
    vma_packet_t head{};
    head.packet_id = const_cast<LentPacket*>(&packet);
    head.sz_iov = parts;
    std::memcpy(room_ + at_, &head, sizeof head);
    at_ += sizeof head;
    ++packets_;
    std::memcpy(room_, &packets_, sizeof packets_);
  }

  std::byte* room_;
  std::size_t bytes_;
  std::size_t at_ = sizeof(vma_packets_t);
  std::size_t packets_ = 0;
  bool is_cut_ = false;
};

}  // namespace ringsock::vma
