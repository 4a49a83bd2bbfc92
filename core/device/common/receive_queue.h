// Posted receives, of a queue pair or of a shared receive queue.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/base/biased_mutex.h"
#include "core/base/result.h"

namespace ringsock::soft {

/// A receive as the consumer of messages sees it. `sges` is valid until it is popped.
struct PostedReceive {
  std::uint64_t wr_id = 0;
  const ibv_sge* sges = nullptr;
  std::uint32_t sge_count = 0;
};

/// Returns the sum of the lengths, 2^32-1 at most.
std::uint32_t total_length(const ibv_sge* sges, std::size_t count);

/// A ring of posted receives. Receives without elements that all have the same wr_id, as those of a program that gets
/// its data by RDMA WRITE, are only counted and take no memory. Threads: one poster and one consumer at a time.
class ReceiveQueue {
 public:
  ReceiveQueue(std::uint32_t capacity, std::uint32_t max_sge);
  ReceiveQueue(const ReceiveQueue&) = delete;
  ReceiveQueue& operator=(const ReceiveQueue&) = delete;
  ~ReceiveQueue();

  /// Errors: EINVAL too many elements; ENOMEM full, or no memory.
  int post(const ibv_recv_wr& wr);
  /// Posts `count` receives without elements, all with this wr_id. While receives are only counted, the count does not
  /// matter. Errors: ENOMEM, with as many posted as find room.
  int post_counted(std::uint64_t wr_id, std::uint32_t count);
  /// Posts receives from the start of the list, up to one that has elements or another wr_id, or finds no room.
  /// @return the rest of the list
  ibv_recv_wr* post_counted(ibv_recv_wr* wr) {
    if (slots_.load(std::memory_order_relaxed) != nullptr) return wr;
    std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    const std::uint32_t end = head_.load(std::memory_order_acquire) + capacity_;
    if (!has_id_ && wr != nullptr) set_id(wr->wr_id);
    for (; wr != nullptr && wr->num_sge == 0 && wr->wr_id == id_ && tail != end; wr = wr->next) ++tail;
    tail_.store(tail, std::memory_order_release);
    return wr;
  }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] std::uint32_t size() const {
    return tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_acquire);
  }
  /// Returns the oldest receive. The queue must not be empty, as size() has told.
  [[nodiscard]] PostedReceive front() const {
    const Slot* const slots = slots_.load(std::memory_order_acquire);
    if (slots == nullptr) return {id_, nullptr, 0};
    const std::uint32_t slot = head_.load(std::memory_order_relaxed) & mask_;
    return {slots[slot].wr_id, sges_ + std::size_t{slot} * max_sge_, slots[slot].sge_count};
  }
  void pop() { head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  /// Returns whether all receives so far were only counted, so that restore_counts() can make the same queue of a copy.
  [[nodiscard]] bool is_only_counted() const { return slots_.load(std::memory_order_relaxed) == nullptr; }
  /// Makes `posted` - `taken` the receives that are left. Returns false when the queue cannot be like that. Threads:
  /// one.
  bool restore_counts(std::uint32_t taken, std::uint32_t posted) {
    if (!is_only_counted() || posted - taken > capacity_) return false;
    head_.store(taken, std::memory_order_relaxed);
    tail_.store(posted, std::memory_order_release);
    return true;
  }
  [[nodiscard]] std::uint32_t posted() const { return tail_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    std::uint64_t wr_id;
    std::uint32_t sge_count;
  };
  void set_id(std::uint64_t id) {
    id_ = id;
    has_id_ = true;
  }
  bool make_slots();

  // Each message uses the first four.
  std::atomic<std::uint32_t> tail_{0};
  std::atomic<std::uint32_t> head_{0};
  std::uint64_t id_ = 0;               ///< of the receives that were only counted
  std::atomic<Slot*> slots_{nullptr};  ///< null while receives are only counted; stored before tail_
  bool has_id_ = false;
  std::uint32_t mask_;
  std::uint32_t capacity_;
  std::uint32_t max_sge_;
  ibv_sge* sges_ = nullptr;  ///< stored before slots_
};

class DeviceContext;

/// ibv_create_srq(3). Threads: all functions from any thread.
class SharedReceiveQueue final : public ibv_srq {
 public:
  SharedReceiveQueue(DeviceContext& device, ibv_pd& pd, const ibv_srq_attr& attr, void* context);
  ~SharedReceiveQueue();

  int post(ibv_recv_wr* wr, ibv_recv_wr** bad);
  /// Takes the oldest receive; its elements are copied into `sges`, which `out` points into. False when there is none.
  bool take(PostedReceive& out, std::vector<ibv_sge>& sges);
  /// Errors: EINVAL (a resize, or a limit above the size).
  Status modify(const ibv_srq_attr& attr, int mask);
  [[nodiscard]] ibv_srq_attr query();

  void add_user() { users_.fetch_add(1, std::memory_order_relaxed); }
  void drop_user() { users_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] bool in_use() const { return users_.load(std::memory_order_relaxed) != 0; }

 private:
  DeviceContext& device_;
  BiasedMutex lock_;
  ReceiveQueue receives_;
  ibv_srq_attr attr_;
  std::atomic<int> users_{0};
};

}  // namespace ringsock::soft
