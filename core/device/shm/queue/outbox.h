// The peer's inbox, as its producer uses it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/base/hot_lines.h"
#include "core/device/shm/link/link.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/queue/fences.h"
#include "core/device/shm/queue/peer_map.h"
#include "core/verbs/saved_queue_pair.h"

namespace ringsock::soft {

/// Puts entries into the peer's ring, bytes into its payload ring, and rings for them. What the peer has written is
/// untrusted: a wrong number only stalls its own connection. Threads: one at a time; process() and enter_map() any.
class Outbox {
 public:
  /// @param uses_srq  the peer's receives come from a shared queue: their number is not known
  void attach(const InboxView& peer, bool uses_srq, PeerProcess process, Link& link);
  [[nodiscard]] Fences& fences() { return fences_; }
  [[nodiscard]] PeerProcess process() const { return map_.process(); }
  void enter_map(PassedFd memory) const { map_.enter(std::move(memory)); }

  /// Returns whether the peer has posted a receive for the next message.
  bool has_receive() {
    if (receives_used_ != receives_known_ || uses_srq_) [[likely]]
      return true;
    return look_for_receives();
  }
  bool has_entry() {
    if (entries_used_ - entries_freed_ < peer_.ring_entries) [[likely]]
      return true;
    return look_for_entries();
  }
  /// Returns whether the peer has posted receives for two messages, and has room for their entries.
  bool has_room_for_two();
  /// Returns whether the peer's queue pair is in an error state.
  [[nodiscard]] bool is_closed() const { return peer_.consumer().closed.load(std::memory_order_acquire) != 0; }
  /// Counts a receive that a message uses.
  void use_receive() { ++receives_used_; }
  /// Returns whether the peer must acknowledge a SEND, because it may not fit into the receive that it will meet.
  [[nodiscard]] bool wants_ack(std::uint64_t length) const { return uses_srq_ || length > peer_receive_bytes_; }
  [[nodiscard]] bool uses_srq() const { return uses_srq_; }

  /// Room in the payload ring.
  struct Room {
    std::byte* memory;
    std::uint32_t bytes;
  };
  /// Takes room for the next piece of a SEND of which `left` bytes are left. Nothing: there is none now.
  std::optional<Room> take_piece(std::uint64_t left);
  /// Takes `bytes` contiguous bytes, and skips the end of the ring when they do not fit there. Returns their place.
  std::optional<std::uint32_t> take_contiguous(std::uint32_t bytes);
  [[nodiscard]] std::byte* at(std::uint32_t place) const { return peer_.payload() + place; }
  /// Returns the most that take_contiguous() can be asked for.
  [[nodiscard]] std::uint32_t largest_piece() const { return peer_.payload_bytes / 4; }

  /// Stores the next entry and rings if the peer wants that. There must be room for it (has_entry()). Returns false
  /// when the bell has found that the peer has gone: nobody reads the entry.
  bool put(EntryType type, std::uint8_t flags, std::uint32_t imm, std::uint64_t length);
  struct Message {
    std::uint32_t imm;
    std::uint64_t length;
  };
  /// Does the same with two messages, and counts their receives. There must be room (has_room_for_two()). The peer sees
  /// both or none.
  bool put_pair(EntryType type, std::uint8_t flags, const std::array<Message, 2>& messages);

  // The acknowledgements of entries with kEntryWantsAck are numbered.
  /// Returns the number of the next one.
  std::uint32_t want_ack() { return ++acks_wanted_; }
  [[nodiscard]] bool has_ack(std::uint32_t number) const { return static_cast<std::int32_t>(acks_seen_ - number) >= 0; }
  [[nodiscard]] bool has_all_acks() const { return acks_seen_ == acks_wanted_; }
  void look_for_acks();
  /// Returns the peer's ibv_wc_status for the entry behind the last acknowledged one, 0: none.
  [[nodiscard]] std::uint32_t fault() const { return peer_.consumer().fault.load(std::memory_order_acquire); }

  // verbs::RcExtensions::save() and restore(). What the peer has published is looked for again.
  void save(verbs::SavedQueuePair& to) const;
  void restore(const verbs::SavedQueuePair& from);
  /// verbs::RcExtensions::is_untouched_since().
  [[nodiscard]] bool is_untouched_since(const verbs::SavedQueuePair& saved) const;

  /// Asks the peer to ring when a stalled send may continue.
  void wait() { peer_.producer().waiting.store(1, std::memory_order_relaxed); }
  /// Returns whether the peer was asleep when it ended, and an entry that was put since then has rung for it.
  [[nodiscard]] bool has_rung_in_vain() const { return has_rung_in_vain_ || map_.has_rung_in_vain(); }
  /// Adds what each message uses of the peer's control lines: the doorbell and the first row of the table.
  void add_hot_lines(HotLines& lines) const { lines.add(&peer_.doorbell(), peer_.rows()); }
  /// Returns whether the peer has destroyed its queue pair.
  [[nodiscard]] bool is_destroyed() const { return peer_.consumer().destroyed.load(std::memory_order_acquire) != 0; }

 private:
  bool look_for_receives();
  bool look_for_entries();
  void store(std::uint32_t index, EntryType type, std::uint8_t flags, const Message& message);
  bool tell(EntryType type, std::uint8_t flags);
  bool take_arming();
  void ring();
  [[nodiscard]] std::uint32_t payload_room() const;

  std::uint32_t payload_used_ = 0;
  std::uint32_t acks_wanted_ = 0, acks_seen_ = 0;
  Link* link_ = nullptr;
  PeerMap map_;
  // Each message uses these, and those that follow in SendSteps.
  alignas(kLineBytes) Fences fences_;
  bool uses_srq_ = false;
  bool has_rung_in_vain_ = false;
  bool stamps_ = false;  ///< the peer asks for the times of entries
  std::uint32_t entries_used_ = 0, entries_freed_ = 0;
  std::uint32_t receives_used_ = 0, receives_known_ = 0;
  std::uint32_t peer_receive_bytes_ = 0;
  InboxView peer_;
};

}  // namespace ringsock::soft
