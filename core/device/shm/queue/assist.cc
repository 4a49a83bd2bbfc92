#include "core/device/shm/queue/assist.h"

#include <atomic>
#include <cstring>
#include <mutex>

#include "core/base/user_memory.h"
#include "core/device/shm/memory/guarded_copy.h"

namespace ringsock::soft {

namespace {

unsigned access_for(AssistKind kind) {
  if (is_atomic(kind)) return IBV_ACCESS_REMOTE_ATOMIC;
  return kind == AssistKind::write ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
}

std::uint64_t change_word(const AssistHeader& request, std::byte* memory) {
  return static_cast<AssistKind>(request.kind) == AssistKind::compare_swap
             ? compare_and_swap(memory, request.compare_add, request.swap)
             : fetch_and_add(memory, request.compare_add);
}

}  // namespace

std::uint64_t compare_and_swap(std::byte* memory, std::uint64_t expected, std::uint64_t desired) {
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory)).compare_exchange_strong(expected, desired);
  return expected;
}

std::uint64_t fetch_and_add(std::byte* memory, std::uint64_t addend) {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory)).fetch_add(addend);
}

ibv_wc_status carry_out(const AssistHeader& request, std::byte* place, std::uint32_t data_bytes,
                        ProtectionDomain& domain, const KeyTable& keys) {
  const auto kind = static_cast<AssistKind>(request.kind);
  if (request.kind < 1 || request.kind > 4) return IBV_WC_REM_INV_REQ_ERR;
  if (is_atomic(kind) ? request.length != 8 || request.address % 8 != 0 : request.length > data_bytes) {
    return IBV_WC_REM_INV_REQ_ERR;
  }
  // The lock keeps dereg_mr from returning while the region's memory is accessed.
  const std::lock_guard guard(domain.access_lock());
  if (!keys.covers(request.rkey, &domain, request.address, request.length, access_for(kind)))
    return IBV_WC_REM_ACCESS_ERR;
  auto* memory = reinterpret_cast<std::byte*>(request.address);
  std::byte* data = place + sizeof request;
  if (kind == AssistKind::write) {
    if (!guarded_write(memory, data, request.length)) return IBV_WC_REM_ACCESS_ERR;
  } else if (kind == AssistKind::read) {
    if (!guarded_read(data, memory, request.length)) return IBV_WC_REM_ACCESS_ERR;
  } else {
    if (!is_word_writable(memory)) return IBV_WC_REM_ACCESS_ERR;
    const std::uint64_t original = change_word(request, memory);
    std::memcpy(place + offsetof(AssistHeader, original), &original, sizeof original);
  }
  return IBV_WC_SUCCESS;
}

}  // namespace ringsock::soft
