// The tables in which the two ends of a connection tell each other of buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/result.h"
#include "core/wire/rs_connect.h"
#include "core/wire/rs_message.h"
#include "librsocket/connection_core.h"
#include "librsocket/send_requests.h"

namespace ringsock::rs {

/// Each end has a table for the receive buffers of its peer (the target SGL), and behind it one for the buffers that
/// the peer has mapped for it (the iomap). The peer writes an entry by RDMA, with a control message. Ours lie at the
/// start of the receive memory, which the peer can write at any time.
class BufferTables {
 public:
  BufferTables(ConnectionCore& core, SendRequests& requests) : core_(core), requests_(requests) {}
  /// @param own  size() bytes
  void begin(std::byte* own);
  /// Returns the bytes of our tables.
  [[nodiscard]] static std::size_t size(const QueueSettings& settings) {
    return kSglBytes + settings.iomap_entries * sizeof(wire::PeerIomap);
  }
  /// Processes what the peer says of its tables. Error: EPROTO.
  Status start(const wire::RsConnect& peer);

  // -- the peer's
  /// Announces a credit limit, perhaps with a buffer, in a control slot that was taken. One thread at a time. Error:
  /// ECONNRESET.
  Status announce(unsigned slot, std::uint32_t limit, const std::optional<wire::PeerSge>& buffer);
  /// Sets entry `index` of the peer's iomap table. Threads: any. Error: EAGAIN when no control slot is free: poll and
  /// try again.
  Status send_iomap(std::uint32_t index, const wire::PeerIomap& entry);
  /// Returns the number of slots of the peer's table, in which we may map buffers for it.
  [[nodiscard]] std::uint32_t peer_iomap_entries() const { return peer_iomap_entries_; }
  /// Sends an empty RDMA WRITE, the proof of life of fact sheet 2.11. Threads: any. Error: EAGAIN.
  Status send_keepalive();

  // -- ours
  /// Takes the buffer that the peer has announced. Nothing if it has announced credits only. With poll_lock.
  std::optional<wire::PeerSge> take_announced();
  /// Called when the peer has written entry `index` of our iomap. With poll_lock.
  void take_iomap(std::uint32_t index);
  /// Returns the buffer that the peer has mapped for us and that contains `offset`. Threads: any.
  [[nodiscard]] std::optional<wire::PeerIomap> find_iomap(std::uint64_t offset);

  // -- fork(2): see StateOf
  /// Returns whether either end can map buffers.
  [[nodiscard]] bool has_iomap() const { return !own_iomap_.empty() || peer_iomap_entries_ != 0; }
  void save(SavedConnection& saved) const;
  [[nodiscard]] bool is_possible(const SavedConnection& saved) const;
  void restore(const SavedConnection& saved);

  static constexpr std::uint32_t kSglEntries = 2;

 private:
  static constexpr std::size_t kSglBytes = kSglEntries * sizeof(wire::PeerSge);

  ConnectionCore& core_;
  SendRequests& requests_;
  // The peer's
  std::uint64_t peer_address_ = 0;
  std::uint32_t peer_key_ = 0;
  std::uint32_t peer_sgl_entries_ = 0;
  std::uint32_t peer_sgl_next_ = 0;  ///< the slot for the next announcement; the reader's
  std::uint32_t peer_iomap_entries_ = 0;
  bool swap_for_peer_ = false;
  // Ours, with poll_lock
  std::uint32_t own_sgl_next_ = 1;  ///< the slot of the peer's next announcement
  std::byte* own_ = nullptr;
  std::vector<wire::PeerIomap> own_iomap_;
};

}  // namespace ringsock::rs
