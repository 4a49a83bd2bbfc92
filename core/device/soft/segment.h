// The shared memory of a connection: a sealed memfd with an inbox for each side (ARCHITECTURE.md, "One connection").
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/soft/rc_wiring.h"

namespace ringsock::soft {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kLineBytes = 64;

/// Written by the inbox's owner, read by the peer when what it remembers has run out. All counters run freely.
struct alignas(kLineBytes) ConsumerLine {
  std::atomic<std::uint32_t> receives_posted;   ///< messages that may be sent; unused with a shared receive queue
  std::atomic<std::uint32_t> receive_bytes;     ///< the smallest receive posted so far takes that many bytes
  std::atomic<std::uint32_t> entries_consumed;  ///< ring entries that may be used again
  std::atomic<std::uint32_t> payload_consumed;  ///< payload ring bytes that may be used again
  std::atomic<std::uint32_t> acked;             ///< entries with kEntryWantsAck that were dealt with
  std::atomic<std::uint32_t> fault;             ///< an ibv_wc_status for the entry that comes after `acked`; 0: none
  std::atomic<std::uint32_t> closed;            ///< not 0: the owner's queue pair is in an error state
  std::atomic<std::uint32_t> destroyed;         ///< not 0: the owner has let go of its queue pair, and did not die
  // SpaceMark: in whose memory the rows that are not in the arena lie. Of the process that uses the connection, which
  // may be another one after a fork.
  std::atomic<std::uint64_t> mark_address;
  std::atomic<std::uint64_t> mark_token;  ///< written last and cleared first; 0: nobody's
};

inline constexpr std::uint32_t kArmedForAny = 1;
inline constexpr std::uint32_t kArmedForSolicited = 2;

/// Set by the owner before it sleeps, taken by the peer, who then rings the link.
struct alignas(kLineBytes) DoorbellLine {
  std::atomic<std::uint32_t> armed;
  std::atomic<std::uint32_t> wants_fences;  ///< the owner sleeps often: see ProducerLine::fences
};

/// Written by the peer.
struct alignas(kLineBytes) ProducerLine {
  std::atomic<std::uint32_t> waiting;  ///< the peer sleeps although it has more to send; taken by the owner, who rings
  std::atomic<std::uint32_t> lease;    ///< odd while the peer accesses memory of the owner's process directly
  std::atomic<std::uint32_t> fences;   ///< the peer looks at `armed` behind a full fence: arming needs no barrier
  std::atomic<std::uint32_t> let_go;   ///< of the segment's first inbox: MappedSegment::let_go()
};

/// A memory region that the peer may access. `rkey` is written last and cleared first.
struct alignas(kLineBytes) MrRow {
  std::atomic<std::uint64_t> address;  ///< in the owner's process
  std::atomic<std::uint64_t> length;
  std::atomic<std::uint64_t> arena_offset;  ///< from the start of the arena; with kRowInArena
  std::atomic<std::uint32_t> rkey;
  std::atomic<std::uint32_t> access;  ///< ibv_access_flags, kRowInArena
  // Not in the arena: SharedPlace (peer_memory.h).
  std::atomic<std::uint64_t> shared_inode;  ///< 0: not in shared memory
  std::atomic<std::uint64_t> shared_start;
  std::atomic<std::uint64_t> shared_bytes;
  std::atomic<std::uint32_t> shared_fd;
};
static_assert(sizeof(MrRow) == 64);
inline constexpr std::uint32_t kRowInArena = 1U << 31;
inline constexpr std::size_t kMrRows = 16;

enum class EntryType : std::uint8_t {
  send = 1,       ///< a SEND or a piece of one; its bytes come next in the payload ring
  write_imm = 2,  ///< the data is already where it belongs
  assist = 3,     ///< AssistHeader and data in the payload ring: access memory for the peer
};
inline constexpr std::uint8_t kEntrySolicited = 1 << 0;
inline constexpr std::uint8_t kEntryHasImm = 1 << 1;
inline constexpr std::uint8_t kEntryMore = 1 << 2;      ///< another piece of the same message follows
inline constexpr std::uint8_t kEntryWantsAck = 1 << 3;  ///< count it in ConsumerLine::acked

/// One message, in the 16 bytes that its line is read for.
struct Entry {
  std::atomic<std::uint64_t> head;  ///< lap:16, type:8, flags:8, immediate data:32; stored last
  std::atomic<std::uint64_t> body;  ///< length in bytes
};
static_assert(sizeof(Entry) == 16);

/// The offsets inside an inbox that follow from its layout. The first page holds the lines, the table and the start of
/// the ring, so an idle connection touches one page a side.
inline constexpr std::size_t kConsumerOffset = 0;
inline constexpr std::size_t kDoorbellOffset = 64;
inline constexpr std::size_t kProducerOffset = 128;
inline constexpr std::size_t kTableOffset = 192;
inline constexpr std::size_t kRingOffset = kTableOffset + kMrRows * sizeof(MrRow);
static_assert(kRingOffset % kLineBytes == 0);

inline constexpr std::uint32_t kMinRingEntries = 16;
inline constexpr std::uint32_t kMaxRingEntries = 1U << 20;
inline constexpr std::uint32_t kMinPayloadBytes = 4096;
inline constexpr std::uint32_t kMaxPayloadBytes = 1U << 26;
inline constexpr std::uint64_t kMaxArenaBytes = std::uint64_t{1} << 40;

/// A layout at `offset` for that much; sizes are rounded up to what the rules of check_inbox() ask for.
InboxLayout plan_inbox(std::uint64_t offset, std::uint32_t ring_entries, std::uint32_t payload_bytes,
                       std::uint64_t arena_bytes);
/// Whether an inbox of a layout that came from a peer lies inside a segment of that size, page aligned, with sane
/// sizes. Error: EPROTO.
Status check_inbox(const InboxLayout& layout, std::uint64_t segment_bytes);

/// What `bytes` occupy in the payload ring: pieces start at multiples of 8.
constexpr std::uint32_t round_up_8(std::uint32_t bytes) { return (bytes + 7) & ~7U; }

class MappedSegment {
 public:
  MappedSegment(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  MappedSegment(const MappedSegment&) = delete;
  MappedSegment& operator=(const MappedSegment&) = delete;
  ~MappedSegment();

  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Set by the peer of who made the segment: it has made its last access, so the segment may serve another connection
  /// (SegmentCache).
  [[nodiscard]] std::atomic<std::uint32_t>& let_go() const;
  /// From now on it is private memory, of zeros: a forked child, or its parent, goes on with the real one.
  void abandon();
  /// The process at the other end has died: there will be no next connection with it. Before the last reference goes.
  void forget_peer() { has_no_peer_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool has_no_peer() const { return has_no_peer_.load(std::memory_order_relaxed); }

 private:
  std::byte* base_;
  std::size_t bytes_;
  std::atomic<bool> has_no_peer_{false};
};

/// A new zeroed memfd of that size, sealed and mapped.
struct OwnSegment {
  UniqueFd memfd;
  std::shared_ptr<MappedSegment> mapping;
};
/// Errors: those of memfd_create(2), ftruncate(2), mmap(2); EFBIG by RLIMIT_FSIZE.
Result<OwnSegment> make_segment(std::uint64_t bytes);

/// Pointers into an inbox whose layout has been checked. Private memory: nothing here can be changed by the peer.
struct InboxView {
  InboxView() = default;
  InboxView(const MappedSegment& segment, const InboxLayout& layout);

  ConsumerLine* consumer = nullptr;
  DoorbellLine* doorbell = nullptr;
  ProducerLine* producer = nullptr;
  MrRow* rows = nullptr;
  Entry* ring = nullptr;
  std::byte* payload = nullptr;
  std::byte* arena = nullptr;
  std::uint64_t arena_bytes = 0;
  std::uint32_t ring_entries = 0;
  std::uint32_t payload_bytes = 0;

  [[nodiscard]] Entry& entry(std::uint32_t index) const { return ring[index & (ring_entries - 1)]; }
  /// The lap number that a valid entry of that running index carries. The memory starts zeroed, so laps start at 1.
  [[nodiscard]] std::uint64_t lap(std::uint32_t index) const {
    return ((index >> std::countr_zero(ring_entries)) + 1) & 0xffff;
  }
};

}  // namespace ringsock::soft
