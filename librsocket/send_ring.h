// Registered memory from which a device sends data that does not fit into a work request.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "core/verbs/device.h"
#include "core/verbs/handles.h"
#include "core/verbs/pages.h"
#include "librsocket/io_vector.h"

namespace ringsock::rs {

/// A ring of bytes: the sender copies in at one end, completions free bytes at the other.
///
/// Threads: the sender calls free_bytes() and copy_in(), the thread that processes completions retire(). Both may run
/// concurrently.
class SendRing {
 public:
  /// @param ring_bytes raised to kMinBytes
  /// @param extra_bytes additional memory for the caller under the same registration (local write only)
  /// Errors: ENOMEM; those of ibv_reg_mr(3), e.g. beyond RLIMIT_MEMLOCK.
  static Result<SendRing> create(verbs::Device& device, ibv_pd& pd, std::uint32_t ring_bytes, std::size_t extra_bytes);
  SendRing() = default;
  SendRing(SendRing&& other) noexcept { *this = std::move(other); }
  SendRing& operator=(SendRing&& other) noexcept;

  explicit operator bool() const { return size_ != 0; }
  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] std::uint32_t free_bytes() const {
    return size_ - (head_.load(std::memory_order_relaxed) - tail_.load(std::memory_order_acquire));
  }

  /// The result of copy_in(): one piece, or two around the end of the ring.
  struct Pieces {
    std::array<ibv_sge, 2> list;
    int count;
    std::uint32_t length;
  };
  /// Copies up to `limit` bytes of `data`, at most free_bytes(), and advances it.
  Pieces copy_in(IoCursor& data, std::uint32_t limit);
  /// Frees the oldest `bytes`, which have been sent.
  void retire(std::uint32_t bytes) {
    tail_.store(tail_.load(std::memory_order_relaxed) + bytes, std::memory_order_release);
  }

  [[nodiscard]] std::span<std::byte> extra() const { return pages_.bytes().subspan(size_); }
  [[nodiscard]] std::uint32_t key() const { return mr_->lkey; }

  static constexpr std::uint32_t kMinBytes = 4096;
  static constexpr std::uint32_t kMaxBytes = 1u << 30;

 private:
  verbs::Pages pages_;
  verbs::Mr mr_;
  std::uint32_t size_ = 0;
  std::uint32_t offset_ = 0;            ///< head_ modulo the size
  std::atomic<std::uint32_t> head_{0};  ///< bytes ever copied in, modulo 2^32
  std::atomic<std::uint32_t> tail_{0};  ///< bytes ever sent, modulo 2^32
};

}  // namespace ringsock::rs
