#include "core/extra_api/lent_packets.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "core/base/at_fork.h"

namespace ringsock::vma {

namespace {

constexpr unsigned kLenderShift = 32;
constexpr std::uint64_t kReferences = 0xffffffff;

constexpr std::uint32_t lender_of(std::uint64_t state) { return static_cast<std::uint32_t>(state >> kLenderShift); }

[[gnu::constructor]] void start() { hold_across_fork(lent_packets().lock()); }

}  // namespace

LentPackets& lent_packets() { return process_state<LentPackets>(); }

// -- places

LentPacket& LentPackets::at(std::uint32_t position) const {
  const std::uint32_t index = position - 1;
  const auto chunk = static_cast<std::size_t>(std::bit_width(index / kFirstChunk + 1)) - 1;
  const std::size_t begin = size_of(chunk) - kFirstChunk;
  return chunks_[chunk].load(std::memory_order_acquire)[index - begin];
}

/// Returns the place with that address, null: there is none.
LentPacket* LentPackets::find(const void* packet) const {
  const auto address = reinterpret_cast<std::uintptr_t>(packet);
  for (std::size_t i = 0; i < kMostChunks; ++i) {
    LentPacket* const chunk = chunks_[i].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    const std::uintptr_t offset = address - reinterpret_cast<std::uintptr_t>(chunk);
    if (offset >= size_of(i) * sizeof(LentPacket)) continue;
    return offset % sizeof(LentPacket) == 0 ? &chunk[offset / sizeof(LentPacket)] : nullptr;
  }
  return nullptr;
}

template <class Visit>
void LentPackets::for_each(Visit visit) const {
  for (std::size_t i = 0; i < kMostChunks; ++i) {
    LentPacket* const chunk = chunks_[i].load(std::memory_order_acquire);
    if (chunk == nullptr) return;
    for (LentPacket& one : std::span(chunk, size_of(i))) visit(one);
  }
}

LentPacket* LentPackets::pop() {
  FreeTop top = free_top_.load(std::memory_order_acquire);
  while (top.position != 0) {
    // Another thread may have taken it meanwhile; the exchange fails then.
    LentPacket& first = at(top.position);
    const std::uint32_t next = first.next_free.load(std::memory_order_relaxed);
    if (free_top_.compare_exchange_weak(top, FreeTop{next, top.changes + 1}, std::memory_order_acquire)) return &first;
  }
  return nullptr;
}

void LentPackets::push(LentPacket& first, LentPacket& last) {
  FreeTop top = free_top_.load(std::memory_order_relaxed);
  do {
    last.next_free.store(top.position, std::memory_order_relaxed);
  } while (!free_top_.compare_exchange_weak(top, FreeTop{first.index + 1, top.changes + 1}, std::memory_order_acq_rel,
                                            std::memory_order_relaxed));
}

bool LentPackets::grow() {
  const std::lock_guard guard(grow_lock_);
  if (free_top_.load(std::memory_order_relaxed).position != 0) return true;
  std::size_t number = 0;
  while (number < kMostChunks && chunks_[number].load(std::memory_order_relaxed) != nullptr) ++number;
  if (number == kMostChunks) return false;
  const std::size_t size = size_of(number);
  auto* const chunk = new (std::nothrow) LentPacket[size];
  if (chunk == nullptr) return false;
  const auto begin = static_cast<std::uint32_t>(size - kFirstChunk);
  for (std::uint32_t i = 0; i < size; ++i) {
    chunk[i].index = begin + i;
    chunk[i].next_free.store(begin + i + 2, std::memory_order_relaxed);
  }
  chunks_[number].store(chunk, std::memory_order_release);
  push(chunk[0], chunk[size - 1]);
  return true;
}

// -- packets

/// Returns null when there is no memory.
LentPacket* LentPackets::take_place() {
  LentPacket* out = pop();
  while (out == nullptr) {
    if (!grow()) return nullptr;
    out = pop();
  }
  return out;
}

LentPacket* LentPackets::lend(std::uint32_t lender, std::unique_ptr<LentMemory> memory) {
  LentPacket* const out = take_place();
  if (out == nullptr) return nullptr;
  out->buffer = {};
  out->next_in_list.store(0, std::memory_order_relaxed);
  out->other = std::move(memory);
  out->process = fork_generation();
  out->state.store(std::uint64_t{lender} << kLenderShift | 1, std::memory_order_release);
  return out;
}

LentPacket* LentPackets::lend(std::uint32_t lender, verbs::BufferRef memory, std::span<const std::byte> payload) {
  LentPacket* const out = take_place();
  if (out == nullptr) return nullptr;
  out->buffer = {.next = nullptr,
                 .payload = const_cast<std::byte*>(payload.data()),
                 .len = static_cast<std::uint16_t>(payload.size())};
  out->next_in_list.store(0, std::memory_order_relaxed);
  out->memory = std::move(memory);
  out->process = fork_generation();
  out->state.store(std::uint64_t{lender} << kLenderShift | 1, std::memory_order_release);
  return out;
}

/// Called by the thread that has made the state 0.
void LentPackets::release(LentPacket& packet) {
  // The buffers of a parent process are its own.
  if (packet.process != fork_generation()) static_cast<void>(packet.memory.release());
  packet.memory.reset();
  const std::unique_ptr<LentMemory> last = std::move(packet.other);  // its end may take time
  push(packet, packet);
}

bool LentPackets::take_back(std::uint32_t lender, const void* packet) {
  LentPacket* const known = find(packet);
  if (known == nullptr) return false;
  std::uint64_t state = known->state.load(std::memory_order_acquire);
  do {
    if (lender_of(state) != lender) return false;
  } while (!known->state.compare_exchange_weak(state, 0, std::memory_order_acq_rel, std::memory_order_acquire));
  release(*known);
  return true;
}

bool LentPackets::is_lent(std::uint32_t lender, const void* packet) const {
  const LentPacket* const known = find(packet);
  return known != nullptr && lender_of(known->state.load(std::memory_order_acquire)) == lender;
}

void LentPackets::take_all_back(std::uint32_t lender) {
  for_each([&](LentPacket& one) {
    if (lender_of(one.state.load(std::memory_order_relaxed)) == lender) take_back(lender, &one);
  });
}

void LentPackets::leave_to_kernel(std::uint32_t lender) {
  for_each([&](LentPacket& one) {
    std::uint64_t state = one.state.load(std::memory_order_acquire);
    if (lender_of(state) != lender) return;
    const std::uint64_t next = std::uint64_t{kLeft} << kLenderShift | (state & kReferences);
    one.state.compare_exchange_strong(state, next, std::memory_order_acq_rel);  // fails when it is given back meanwhile
  });
}

std::optional<int> LentPackets::add_reference(const void* packet) {
  LentPacket* const known = find(packet);
  if (known == nullptr) return std::nullopt;
  std::uint64_t state = known->state.load(std::memory_order_acquire);
  do {
    if (lender_of(state) != kNobody || (state & kReferences) >= INT32_MAX) return std::nullopt;
  } while (!known->state.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire));
  return static_cast<int>((state + 1) & kReferences);
}

inline std::optional<int> LentPackets::drop_reference(LentPacket& packet) {
  std::uint64_t state = packet.state.load(std::memory_order_acquire);
  std::uint64_t next = 0;
  do {
    if (lender_of(state) != kNobody) return std::nullopt;
    next = (state & kReferences) > 1 ? state - 1 : 0;
  } while (!packet.state.compare_exchange_weak(state, next, std::memory_order_acq_rel, std::memory_order_acquire));
  if (next == 0) release(packet);
  return static_cast<int>(next & kReferences);
}

std::optional<int> LentPackets::drop_reference(const void* packet) {
  LentPacket* const known = find(packet);
  return known != nullptr ? drop_reference(*known) : std::nullopt;
}

void LentPackets::chain(LentPacket& last, LentPacket& next) noexcept {
  last.buffer.next = &next.buffer;
  last.next_in_list.store(next.index + 1, std::memory_order_relaxed);
}

/// The program may have written to the list that it sees. It may also have freed some of the buffers before.
bool LentPackets::drop_list(const void* first) {
  LentPacket* one = find(first);
  if (one == nullptr) return false;
  std::uint32_t next = one->next_in_list.load(std::memory_order_relaxed);
  if (!drop_reference(*one)) return false;  // wrong, or the whole packet a second time
  bool are_all_lent = true;
  for (int left = kMostInList - 1; left > 0 && next != 0; --left) {
    one = &at(next);
    next = one->next_in_list.load(std::memory_order_relaxed);
    if (!drop_reference(*one)) are_all_lent = false;
  }
  return are_all_lent;
}

void LentPackets::keep_always(const std::shared_ptr<void>& owner) {
  const std::lock_guard guard(grow_lock_);
  last_kept_.store(owner.get(), std::memory_order_relaxed);
  if (std::find(kept_.begin(), kept_.end(), owner) == kept_.end()) kept_.push_back(owner);
}

std::size_t LentPackets::count() const {
  std::size_t out = 0;
  for_each([&](const LentPacket& one) { out += one.state.load(std::memory_order_relaxed) != 0 ? 1 : 0; });
  return out;
}

// -- a lender

std::uint32_t Lender::number() noexcept {
  std::uint32_t known = number_.load(std::memory_order_relaxed);
  if (known != 0) return known;
  const std::uint32_t made = lent_packets().next_lender();
  return number_.compare_exchange_strong(known, made, std::memory_order_relaxed) ? made : known;
}

void Lender::end() noexcept {
  if (const std::uint32_t known = number_.load(std::memory_order_relaxed); known != 0)
    lent_packets().take_all_back(known);
}

void Lender::leave_to_kernel() noexcept {
  if (const std::uint32_t known = number_.load(std::memory_order_relaxed); known != 0)
    lent_packets().leave_to_kernel(known);
}

}  // namespace ringsock::vma
