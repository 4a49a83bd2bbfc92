// The common parts of the statistics pages that processes publish.
#pragma once

#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "core/base/socket_address.h"
#include "core/statistics/statistics_page.h"

namespace ringsock::runtime {

/// Copies a structure of the page as plain bytes, because its atomics belong to another process.
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

/// Adds without a locked instruction, for a counter with one writer or one that may lose a count.
[[gnu::always_inline]] inline void add_relaxed(Counter& counter, std::uint64_t amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

/// Returns an IP address in the format of a page. Other addresses become none.
SlotAddress slot_address(const SocketAddress& address);
/// Returns the address of a slot, nothing when its family is unknown.
std::optional<SocketAddress> address_of(const SlotAddress& slot);

/// Returns the text up to its 0, without characters that would disturb a terminal.
std::string printable_text(std::span<const char> text);

/// Calls `read()`, which returns a snapshot or an error, a limited number of times until no entry was being changed.
template <class Read>
auto read_until_settled(Read read) {
  constexpr int kAttempts = 5;
  auto page = read();
  for (int attempt = 1; attempt < kAttempts && page && page->unsettled != 0; ++attempt) page = read();
  return page;
}

/// Changes an identity that others may read meanwhile. A reader that copies from low to high addresses has a consistent
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
