// The shared memory of a connection: a sealed memfd with an inbox for each side (../README.md, "One connection").
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace ringsock::soft {

/// The place of one queue pair's inbox in a connection's memfd: its payload ring, ring of entries, control lines, table
/// of remotely accessible memory, and arena (the memory the peer may RDMA-write), in this order and without gaps up to
/// the end. CM request and reply carry it in host byte order, because both ends are on one host. check_inbox() checks
/// it before use; it is then never read again.
struct InboxLayout {
  std::uint64_t offset;         ///< bytes from the start of the memfd, page aligned
  std::uint64_t bytes;          ///< of the whole inbox, including the arena; whole pages
  std::uint64_t arena_bytes;    ///< at the end of the inbox, whole lines; 0: none
  std::uint32_t ring_entries;   ///< power of two
  std::uint32_t payload_bytes;  ///< power of two
};
static_assert(sizeof(InboxLayout) == 32);

/// Names a memfd: packets carry this name and no descriptor (../README.md, "link"). Untrusted: the
/// file that is found by it is compared with it.
struct MemoryName {
  std::uint64_t device;
  std::uint64_t inode;
  std::uint32_t descriptor;    ///< its number in the sender's process
  std::uint32_t kept_for_uid;  ///< with kOfferKeptSegment: the user whose processes have had it, or kOneProcessOnly
};
static_assert(sizeof(MemoryName) == 24);
inline constexpr std::uint32_t kOneProcessOnly = ~0U;

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kLineBytes = 64;

/// Written by the inbox's owner, read by the peer when its remembered values have run out. All counters wrap.
struct alignas(kLineBytes) ConsumerLine {
  std::atomic<std::uint32_t> receives_posted;   ///< messages that may be sent; not used with a shared receive queue
  std::atomic<std::uint32_t> receive_bytes;     ///< the smallest receive posted so far takes that many bytes
  std::atomic<std::uint32_t> entries_consumed;  ///< ring entries that may be used again
  std::atomic<std::uint32_t> payload_consumed;  ///< payload ring bytes that may be used again
  std::atomic<std::uint32_t> acked;             ///< entries with kEntryWantsAck that were handled
  std::atomic<std::uint32_t> fault;             ///< an ibv_wc_status for the entry that comes after `acked`; 0: none
  std::atomic<std::uint32_t> closed;            ///< not 0: the owner's queue pair is in an error state
  std::atomic<std::uint32_t> destroyed;         ///< not 0: the owner has destroyed its queue pair, and did not die
  // The SpaceMark of the process whose memory the rows outside the arena refer to. This is the process that uses the
  // connection, which may be a different one after a fork.
  std::atomic<std::uint64_t> mark_address;
  std::atomic<std::uint64_t> mark_token;  ///< written last and cleared first; 0: none
};

inline constexpr std::uint32_t kArmedForAny = 1;
inline constexpr std::uint32_t kArmedForSolicited = 2;
/// The owner's process ends, after which each message rings in vain. Unlike the others it lasts: a message whose bell
/// came late, for an arming before, would take the only one.
inline constexpr std::uint32_t kArmedForGood = 3;
/// The owner has listed the connection at a place (the lower bits) of its map of ready connections (ready_map.h).
/// Unlike an arming this lasts; a peer that cannot use the map takes it, and rings.
inline constexpr std::uint32_t kListed = 1U << 31;

/// Set by the owner before it sleeps, cleared by the peer, which then rings the link.
struct alignas(kLineBytes) DoorbellLine {
  std::atomic<std::uint32_t> armed;
  std::atomic<std::uint32_t> wants_fences;  ///< the owner sleeps often: see ProducerLine::fences
  std::atomic<std::uint32_t> wants_stamps;  ///< the owner asks for the times of entries: see Entry::body
  // The map, with kListed: a MemoryName.
  std::atomic<std::uint32_t> map_descriptor;
  std::atomic<std::uint64_t> map_device;
  std::atomic<std::uint64_t> map_inode;
};

/// What has become of the request to connect that named a segment. The end that is first decides.
enum class RequestState : std::uint32_t { open, accepted, withdrawn };

/// Written by the peer.
struct alignas(kLineBytes) ProducerLine {
  std::atomic<std::uint32_t>
      waiting;  ///< the peer sleeps although it has more to send; cleared by the owner, which then rings
  std::atomic<std::uint32_t> lease;   ///< odd while the peer accesses memory of the owner's process directly
  std::atomic<std::uint32_t> fences;  ///< the peer looks at `armed` behind a full fence: arming needs no barrier
  std::atomic<std::uint32_t> let_go;  ///< of the segment's first inbox: MappedSegment::let_go()
  std::atomic<RequestState> request;  ///< the same: MappedSegment::settle_request()
  std::atomic<std::uint32_t> left;    ///< the same: how many ends have given it up (MappedSegment::become_part())
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
  write_imm = 2,  ///< the data is already in place
  assist = 3,     ///< AssistHeader and data in the payload ring: a request to access memory for the peer
};
inline constexpr std::uint8_t kEntrySolicited = 1 << 0;
inline constexpr std::uint8_t kEntryHasImm = 1 << 1;
inline constexpr std::uint8_t kEntryMore = 1 << 2;      ///< another piece of the same message follows
inline constexpr std::uint8_t kEntryWantsAck = 1 << 3;  ///< count it in ConsumerLine::acked

/// One message, in 16 bytes.
struct Entry {
  std::atomic<std::uint64_t> head;  ///< lap:16, type:8, flags:8, immediate data:32; stored last
  std::atomic<std::uint64_t> body;  ///< order_stamp():32 if that is wanted, length in bytes:32
};
static_assert(sizeof(Entry) == 16);

/// Offsets from the end of the ring, where the lines begin.
inline constexpr std::size_t kConsumerOffset = 0;
inline constexpr std::size_t kDoorbellOffset = 64;
inline constexpr std::size_t kProducerOffset = 128;
inline constexpr std::size_t kTableOffset = 192;
inline constexpr std::size_t kArenaOffset = kTableOffset + kMrRows * sizeof(MrRow);
static_assert(kArenaOffset % kLineBytes == 0);

inline constexpr std::uint32_t kMinRingEntries = 16;
/// One page of a planned inbox, its hot page, has the last entries of the ring, the lines, the table and the start of
/// the arena. The first entry of a connection is one of these (InboxView::first_entry()). So a connection of few small
/// messages touches one page on each side.
inline constexpr std::uint32_t kHotEntries = 32;
inline constexpr std::size_t kHotArenaBytes = kPageBytes - kHotEntries * sizeof(Entry) - kArenaOffset;
static_assert(kHotArenaBytes % kLineBytes == 0);
inline constexpr std::uint32_t kMaxRingEntries = 1U << 20;
inline constexpr std::uint32_t kMinPayloadBytes = 4096;
inline constexpr std::uint32_t kMaxPayloadBytes = 1U << 26;
inline constexpr std::uint64_t kMaxArenaBytes = std::uint64_t{1} << 40;

/// Returns a layout at `offset` for the given sizes, rounded up as check_inbox() requires. The arena ends with a page.
InboxLayout plan_inbox(std::uint64_t offset, std::uint32_t ring_entries, std::uint32_t payload_bytes,
                       std::uint64_t arena_bytes);
/// Checks that an inbox with a layout from a peer lies inside a segment of that size, page aligned, with valid sizes.
/// Error: EPROTO.
Status check_inbox(const InboxLayout& layout, std::uint64_t segment_bytes);

/// Returns the space of `bytes` in the payload ring, where pieces start at multiples of 8.
constexpr std::uint32_t round_up_8(std::uint32_t bytes) { return (bytes + 7) & ~7U; }

/// A part of a segment that the two ends write past the device, as far as they need it (verbs::SparseMemory).
struct SparsePart {
  std::size_t at = 0;      ///< its offset in the segment
  std::size_t bytes = 0;   ///< 0: there is none
  std::size_t used = 0;    ///< from its start: may have been written by the latest connection
  std::size_t memory = 0;  ///< from its start: has been written by any connection, whole pages
};
using SparseParts = std::array<SparsePart, 2>;

class MappedSegment {
 public:
  MappedSegment(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  MappedSegment(const MappedSegment&) = delete;
  MappedSegment& operator=(const MappedSegment&) = delete;
  ~MappedSegment();

  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Set by the peer of the segment's maker with its last access: the segment may then be used for another connection
  /// (SegmentCache). Lies in the producer line of the first inbox, as it was told; before that, where nobody looks.
  [[nodiscard]] std::atomic<std::uint32_t>& let_go() const;
  /// Called by the end that has made the segment for a request, before it sends that, on which it gives up
  /// (`withdrawn`), and by the end that accepts it, before that answers (`accepted`). Returns false if the other end
  /// was faster. Threads: any.
  void open_request() const { request().store(RequestState::open, std::memory_order_relaxed); }
  [[nodiscard]] bool settle_request(RequestState as) const;
  /// Tells the layout of the inbox at the start. One that does not fit is ignored. Call it before the segment is given
  /// to another thread.
  void tell_first_inbox(const InboxLayout& layout);
  /// The segment is one of several in a memfd. So its pages go to the kernel when the second of the two ends gives it
  /// up, and not with the memfd. A process that has forked meanwhile leaves that: a child may still use the segment.
  /// @param whole  unmaps it, with its neighbours
  void become_part(std::shared_ptr<const void> whole);
  /// Called before each fork(2).
  static void note_fork();
  /// Leaves the mapping to the caller. The object must not be used any more.
  [[nodiscard]] std::byte* release() {
    bytes_ = 0;
    return base_;
  }
  /// Replaces the mapping by private zeroed memory, when a forked child, or its parent, goes on with the real segment.
  void abandon();
  /// Records that the process at the other end has died, so that the segment is not kept for it. Call it before the
  /// last reference is dropped.
  void forget_peer() { has_no_peer_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool has_no_peer() const { return has_no_peer_.load(std::memory_order_relaxed); }

  // -- sparse parts, of a segment that is kept for another connection. Threads: one at a time.
  /// Begins a connection, at whose end keep_sparse() may be called.
  void lend();
  /// Tells at the end of a connection what it has used of its sparse parts. Returns false, and nothing was told, if the
  /// segment is not kept, or has memory in other places: then it is not used for another connection.
  /// @param is_read  the peer has read all that was written for it
  bool keep_sparse(const SparseParts& parts, bool is_read);
  [[nodiscard]] const SparseParts& sparse() const { return sparse_; }
  /// Records that all bytes of the sparse parts are zero.
  void sparse_is_zero();
  /// Returns the memory of the sparse part at that place, when the connection began.
  [[nodiscard]] std::size_t sparse_memory(const std::byte* start) const;
  [[nodiscard]] std::size_t sparse_memory() const { return sparse_[0].memory + sparse_[1].memory; }
  /// Returns whether the segment may be used for another connection, as far as its sparse parts are concerned.
  [[nodiscard]] bool knows_sparse() const { return has_told_ || sparse_memory() == 0; }
  /// Gives the memory of the sparse parts to the kernel, if that is permitted, and nobody needs it.
  /// @param has_let_go  the peer has let go
  void empty_sparse(bool has_let_go);

 private:
  [[nodiscard]] std::atomic<RequestState>& request() const { return first_producer().request; }
  [[nodiscard]] ProducerLine& first_producer() const {
    return *reinterpret_cast<ProducerLine*>(base_ + first_lines_ + kProducerOffset);
  }
  void leave_part();
  std::byte* base_;
  std::size_t bytes_;
  std::size_t first_lines_ = 0;  ///< offset of the first inbox's lines
  std::atomic<bool> has_no_peer_{false};
  std::shared_ptr<const void> whole_;  ///< of which it is a part; null: it is none
  unsigned forks_ = 0;                 ///< note_fork() was called so often when it became a part
  bool is_lent_ = false;
  bool has_told_ = false;
  bool is_read_ = false;
  SparseParts sparse_{};
};

/// A new zeroed memfd, sealed and mapped.
struct OwnSegment {
  UniqueFd memfd;
  std::shared_ptr<MappedSegment> mapping;
};
/// Errors: those of memfd_create(2), ftruncate(2), mmap(2); EFBIG by RLIMIT_FSIZE.
Result<OwnSegment> make_segment(std::uint64_t bytes);

/// An inbox whose layout has been checked. The object is in private memory, which the peer cannot change. It is small,
/// because each message of each connection uses those of both directions.
struct InboxView {
  InboxView() = default;
  InboxView(const MappedSegment& segment, const InboxLayout& layout);

  [[nodiscard]] ConsumerLine& consumer() const { return *reinterpret_cast<ConsumerLine*>(lines + kConsumerOffset); }
  [[nodiscard]] DoorbellLine& doorbell() const { return *reinterpret_cast<DoorbellLine*>(lines + kDoorbellOffset); }
  [[nodiscard]] ProducerLine& producer() const { return *reinterpret_cast<ProducerLine*>(lines + kProducerOffset); }
  [[nodiscard]] MrRow* rows() const { return reinterpret_cast<MrRow*>(lines + kTableOffset); }
  [[nodiscard]] Entry* ring() const { return reinterpret_cast<Entry*>(lines) - ring_entries; }
  [[nodiscard]] std::byte* payload() const { return reinterpret_cast<std::byte*>(ring()) - payload_bytes; }
  [[nodiscard]] std::byte* arena() const { return lines + kArenaOffset; }

  [[nodiscard]] Entry& entry(std::uint32_t index) const { return ring()[index & (ring_entries - 1)]; }
  /// Returns the running index of a connection's first entry: the last entries of the ring come first, because they are
  /// in the hot page.
  [[nodiscard]] std::uint32_t first_entry() const { return ring_entries - std::min(ring_entries, kHotEntries); }
  /// Returns the lap number of a valid entry with that running index. Laps start at 1, because the memory starts
  /// zeroed.
  [[nodiscard]] std::uint64_t lap(std::uint32_t index) const {
    return ((index >> std::countr_zero(ring_entries)) + 1) & 0xffff;
  }

  std::byte* lines = nullptr;  ///< behind the ring; the arena follows them
  std::uint32_t ring_entries = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t arena_bytes = 0;
};

/// Checks that the descriptor is a sealed memfd with that name. Returns its size in bytes. A file of any other kind is
/// only accessed by one fcntl(2), which does not block. Error: EPROTO not sealed, hugetlb pages, wrong size, another
/// file.
Result<std::uint64_t> check_peer_memfd(int memfd, const MemoryName& name);
/// Checks and maps a peer's memfd. Errors: EPROTO as above; EFBIG more than `limit` bytes; ENOMEM.
Result<std::shared_ptr<MappedSegment>> map_peer_segment(UniqueFd memfd, const MemoryName& name, std::uint64_t limit);

}  // namespace ringsock::soft
