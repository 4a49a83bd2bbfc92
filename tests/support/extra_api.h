// VMA's Extra API as programs use it.
#pragma once

#include <gtest/gtest.h>
#include <mellanox/vma_extra.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace ringsock::support {

/// The table of a program that does not get it by getsockopt(2).
inline vma_api_t* own_table = nullptr;

inline vma_api_t& api() {
  vma_api_t* const table = own_table != nullptr ? own_table : vma_get_api();
  if (table == nullptr) throw std::runtime_error("there is no table");
  return *table;
}

/// Returns errno of a call that fails, 0 of one that does not.
template <class Call>
int error_of(Call call) {
  errno = 0;
  return call() == -1 ? errno : 0;
}

/// Frees the packet with this id. Returns what free_packets() does.
inline int free_one(int fd, void* id) {
  vma_packet_t packet{};
  packet.packet_id = id;
  return api().free_packets(fd, &packet, 1);
}

/// A list of packets of a stream that the program has.
class StreamPackets {
 public:
  explicit StreamPackets(std::size_t room = 4096) : room_(room) {}

  /// Returns what recvfrom_zcopy() does.
  int receive(int fd, int flags = 0) {
    flags_ = flags;
    return result_ = api().recvfrom_zcopy(fd, room_.data(), room_.size(), &flags_, nullptr, nullptr);
  }
  [[nodiscard]] bool are_lent() const { return result_ > 0 && (flags_ & MSG_VMA_ZCOPY) != 0; }
  /// The bytes, of packets or copied.
  [[nodiscard]] std::string text() const {
    if (!are_lent()) return {room_.data(), static_cast<std::size_t>(std::max(result_, 0))};
    std::string out;
    for_each(
        [&](const vma_packet_t&, const iovec& part) { out.append(static_cast<char*>(part.iov_base), part.iov_len); });
    return out;
  }
  [[nodiscard]] std::size_t count() const { return are_lent() ? list()->n_packet_num : 0; }
  [[nodiscard]] std::vector<void*> ids() const {
    std::vector<void*> out;
    for_each([&](const vma_packet_t& packet, const iovec&) { out.push_back(packet.packet_id); });
    return out;
  }
  int free(int fd) { return api().free_packets(fd, const_cast<vma_packet_t*>(list()->pkts), count()); }

 private:
  [[nodiscard]] const vma_packets_t* list() const { return reinterpret_cast<const vma_packets_t*>(room_.data()); }
  template <class Visit>
  void for_each(Visit visit) const {
    const char* at = room_.data() + sizeof(vma_packets_t);
    for (std::size_t i = 0; i < count(); ++i) {
      const auto& packet = *reinterpret_cast<const vma_packet_t*>(at);
      EXPECT_EQ(packet.sz_iov, 1U);
      visit(packet, packet.iov[0]);
      at += sizeof packet + packet.sz_iov * sizeof(iovec);
    }
  }
  std::vector<char> room_;
  int flags_ = 0;
  int result_ = 0;
};

}  // namespace ringsock::support
