// Buffers with a reference count, which zero-copy passes around instead of bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace ringsock::verbs {

class BufferPool;

/// The state of one buffer of a pool. It is kept beside the memory, not in it, because devices write to the memory.
/// Each has its own cache line, so that counting references to one buffer does not slow down its neighbours.
struct alignas(64) BufferHeader {
  std::atomic<std::uint32_t> references{0};
  std::atomic<std::uint32_t> next_free{0};  ///< index + 1 of the next free buffer, 0 at the end; while free
  std::uint32_t index = 0;
  std::uint32_t bytes = 0;
  std::uint32_t lkey = 0;
  std::uint32_t rkey = 0;
  std::byte* data = nullptr;
  BufferPool* pool = nullptr;
};

/// Returns a buffer without references to its pool.
void recycle(BufferHeader& header);

/// A counted reference to a buffer of a pool, or none. The buffer returns to its pool when the last reference goes.
/// Threads: as std::shared_ptr: different references from different threads, one reference from one at a time.
class BufferRef {
 public:
  BufferRef() = default;
  /// Takes ownership of one reference that has been counted already.
  explicit BufferRef(BufferHeader& header) : header_(&header) {}
  BufferRef(const BufferRef& other) : header_(other.header_) {
    if (header_) header_->references.fetch_add(1, std::memory_order_relaxed);
  }
  BufferRef(BufferRef&& other) noexcept : header_(std::exchange(other.header_, nullptr)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(header_, other.header_);
    return *this;
  }
  ~BufferRef() { reset(); }

  void reset() {
    BufferHeader* const header = std::exchange(header_, nullptr);
    if (header == nullptr) return;
    // If this is the only reference nobody else can make another one, so no locked instruction is needed.
    if (header->references.load(std::memory_order_acquire) == 1 ||
        header->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      recycle(*header);
    }
  }

  explicit operator bool() const { return header_ != nullptr; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {header_->data, header_->bytes}; }
  [[nodiscard]] std::uint32_t lkey() const { return header_->lkey; }
  [[nodiscard]] std::uint32_t rkey() const { return header_->rkey; }
  /// Returns whether this is the only reference, so that the buffer may be written.
  [[nodiscard]] bool is_unique() const { return header_->references.load(std::memory_order_acquire) == 1; }
  friend bool operator==(const BufferRef& a, const BufferRef& b) { return a.header_ == b.header_; }

  /// Releases the reference as a plain pointer, to be stored in a wr_id for example; BufferRef(*pointer) takes it back.
  [[nodiscard]] BufferHeader* release() { return std::exchange(header_, nullptr); }

 private:
  BufferHeader* header_ = nullptr;
};

}  // namespace ringsock::verbs
