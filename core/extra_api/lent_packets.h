// Packets in buffers of the rings that the program has: it reads them where they lie, and gives them back.
#pragma once

#include <mellanox/vma_extra.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/process_state.h"
#include "core/base/result.h"
#include "core/verbs/buffer.h"

namespace ringsock::vma {

/// Memory that is lent and is no buffer of a pool. Destroyed when the packet has come back: that of kNobody by a call
/// of the program, without locks.
class LentMemory {
 public:
  LentMemory() = default;
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;
  virtual ~LentMemory() = default;
};

/// One of them. The address of the first member is what the program gets, as `packet_id` or as `vma_buff_t`. The
/// program may write to that member, so the library only reads the others.
struct alignas(64) LentPacket {
  vma_buff_t buffer{};
  /// The lender in the high half, the number of references in the low one; 0: free.
  std::atomic<std::uint64_t> state{0};
  std::atomic<std::uint32_t> next_free{0};  ///< index + 1, 0 at the end; while free
  std::uint32_t index = 0;
  verbs::BufferRef memory;
  unsigned process = 0;                        ///< fork_generation() of the process that the buffer belongs to
  std::atomic<std::uint32_t> next_in_list{0};  ///< index + 1 of the next buffer of the packet, 0 at the end
  std::unique_ptr<LentMemory> other;
};
static_assert(offsetof(LentPacket, buffer) == 0);
static_assert(sizeof(LentPacket) == 64);

/// All of the process. What the program gives back is looked up by its address and its lender, so wrong pointers are
/// noticed, and so is a packet that is given back twice, unless the lender has lent the place again meanwhile.
/// Lifetime: places are never freed. Threads: any; lock-free but for growing.
class LentPackets {
 public:
  static constexpr ProcessPart kPart = ProcessPart::lent_packets;

  /// Returns a number for a new lender.
  std::uint32_t next_lender() noexcept { return lenders_.fetch_add(1, std::memory_order_relaxed); }
  /// The lender of packets that are given back without naming one.
  static constexpr std::uint32_t kNobody = 1;
  /// The lender of packets whose socket the kernel has now.
  static constexpr std::uint32_t kLeft = 2;

  /// Lends `payload`, which lies in `memory`, with one reference. Returns null when there is no memory for the place.
  LentPacket* lend(std::uint32_t lender, verbs::BufferRef memory, std::span<const std::byte> payload);
  /// The same with memory of another kind. The caller may fill it in until the program gets the packet.
  LentPacket* lend(std::uint32_t lender, std::unique_ptr<LentMemory> memory);
  /// Takes a packet back, however many references it has. Returns false when the lender has not lent it.
  bool take_back(std::uint32_t lender, const void* packet);
  [[nodiscard]] bool is_lent(std::uint32_t lender, const void* packet) const;
  /// Takes back all that the lender has lent.
  void take_all_back(std::uint32_t lender);
  /// The kernel has the lender's socket now: kLeft is the lender of its packets.
  void leave_to_kernel(std::uint32_t lender);

  /// Adds a reference to a packet of kNobody. Returns their number, nothing when it is not lent.
  std::optional<int> add_reference(const void* packet);
  /// Drops one. Returns the number of those that are left; the packet is free when there are none.
  std::optional<int> drop_reference(const void* packet);

  /// Most buffers of one packet.
  static constexpr int kMostInList = 16;
  /// Appends a buffer to the list of a packet of kNobody that the program does not have yet.
  static void chain(LentPacket& last, LentPacket& next) noexcept;
  /// Drops one reference of each buffer in a packet's list. Returns false when one of them is not lent; the others are
  /// dropped all the same.
  bool drop_list(const void* first);

  /// Keeps what packets of kNobody need as long as the process lives: the program may have them when their socket is
  /// closed.
  template <class Owner>
  void keep(Owner& owner) {
    if (last_kept_.load(std::memory_order_relaxed) != &owner) keep_always(owner.shared_from_this());
  }

  /// The number of packets that the program has. Looks at all places.
  [[nodiscard]] std::size_t count() const;
  /// A leaf lock, which is held across fork(2).
  Mutex& lock() { return grow_lock_; }

 private:
  // Chunks double in size: chunk k begins at index kFirstChunk * (2^k - 1).
  static constexpr std::uint32_t kFirstChunk = 1024;
  static constexpr std::size_t kMostChunks = 12;
  /// The free place that was used last, and a counter that changes with each operation (see BufferPool).
  struct alignas(8) FreeTop {
    std::uint32_t position;
    std::uint32_t changes;
  };

  static constexpr std::size_t size_of(std::size_t chunk) { return std::size_t{kFirstChunk} << chunk; }
  [[nodiscard]] LentPacket& at(std::uint32_t position) const;
  [[nodiscard]] LentPacket* find(const void* packet) const;
  LentPacket* pop();
  LentPacket* take_place();
  void push(LentPacket& first, LentPacket& last);
  bool grow();
  void release(LentPacket& packet);
  std::optional<int> drop_reference(LentPacket& packet);
  void keep_always(const std::shared_ptr<void>& owner);
  template <class Visit>
  void for_each(Visit visit) const;

  std::array<std::atomic<LentPacket*>, kMostChunks> chunks_{};
  alignas(64) std::atomic<FreeTop> free_top_{FreeTop{0, 0}};
  std::atomic<std::uint32_t> lenders_{kLeft + 1};
  Mutex grow_lock_;
  std::vector<std::shared_ptr<void>> kept_;
  std::atomic<const void*> last_kept_{nullptr};
};

LentPackets& lent_packets();

/// A socket as a lender, which gets a number when it lends for the first time. Threads: any.
class Lender {
 public:
  std::uint32_t number() noexcept;
  /// The socket is closed: takes back all that the program has.
  void end() noexcept;
  /// The kernel has the socket now. What is lent while this runs is left by another call.
  void leave_to_kernel() noexcept;

 private:
  std::atomic<std::uint32_t> number_{0};
};

}  // namespace ringsock::vma
