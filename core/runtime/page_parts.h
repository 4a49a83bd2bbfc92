// What the pages that processes show of themselves have in common.
#pragma once

#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "core/base/socket_address.h"
#include "core/runtime/statistics_page.h"

namespace ringsock::runtime {

/// A structure of the page as plain bytes: its atomics belong to another process.
template <class T>
class Copied {
 public:
  explicit Copied(std::span<const std::byte> bytes) {
    std::memcpy(static_cast<void*>(&value_), bytes.data(), sizeof value_);
  }
  const T* operator->() const { return &value_; }
  const T& operator*() const { return value_; }

 private:
  union {
    T value_;
  };
};

/// Without a locked instruction: for a counter with one writer, or one that may lose a count.
[[gnu::always_inline]] inline void add_relaxed(Counter& counter, std::uint64_t amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

/// An address of IP as it lies in a page; others are none.
SlotAddress slot_address(const SocketAddress& address);
/// Nothing when the family is none that there is.
std::optional<SocketAddress> address_of(const SlotAddress& slot);

/// Text up to its 0, without what would spoil a terminal.
std::string printable_text(std::span<const char> text);

/// `read()`, which gives a snapshot or an error, again while an entry was being changed, but not for ever.
template <class Read>
auto read_until_settled(Read read) {
  constexpr int kAttempts = 5;
  auto page = read();
  for (int attempt = 1; attempt < kAttempts && page && page->unsettled != 0; ++attempt) page = read();
  return page;
}

/// What may be one thread's or read by others meanwhile: a reader that copies from low to high addresses has a whole
/// copy when `finished`, which comes first, equals `begun`, which comes last.
template <class Identity, class Change>
void change_identity(Identity& identity, Change change) {
  const std::uint32_t version = identity.begun.load(std::memory_order_relaxed) + 1;
  identity.begun.store(version, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  change(identity);
  identity.finished.store(version, std::memory_order_release);
}

}  // namespace ringsock::runtime
