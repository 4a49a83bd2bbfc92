// Posted receives, of a queue pair or of a shared receive queue.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
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

/// A ring of posted receives. Threads: one poster and one consumer at a time.
class ReceiveQueue {
 public:
  ReceiveQueue(std::uint32_t capacity, std::uint32_t max_sge);

  /// Errors: EINVAL too many elements, ENOMEM full.
  int post(const ibv_recv_wr& wr) {
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > max_sge_) return EINVAL;
    if (tail - head_.load(std::memory_order_acquire) >= capacity_) return ENOMEM;
    const std::uint32_t slot = tail & mask_;
    slots_[slot] = {wr.wr_id, static_cast<std::uint32_t>(wr.num_sge)};
    if (wr.num_sge == 1) [[likely]] {
      sges_[std::size_t{slot} * max_sge_] = *wr.sg_list;
    } else if (wr.num_sge != 0) {
      store_sges(slot, wr);
    }
    tail_.store(tail + 1, std::memory_order_release);
    return 0;
  }
  /// Posts receives from the start of the list, up to one that has elements or finds no room. @return the rest of the
  /// list
  ibv_recv_wr* post_bare(ibv_recv_wr* wr) {
    std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    const std::uint32_t end = head_.load(std::memory_order_acquire) + capacity_;
    for (; wr != nullptr && wr->num_sge == 0 && tail != end; wr = wr->next) slots_[tail++ & mask_] = {wr->wr_id, 0};
    tail_.store(tail, std::memory_order_release);
    return wr;
  }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] std::uint32_t size() const {
    return tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_acquire);
  }
  /// Returns the oldest receive. The queue must not be empty.
  [[nodiscard]] PostedReceive front() const {
    const std::uint32_t slot = head_.load(std::memory_order_relaxed) & mask_;
    return {slots_[slot].wr_id, sges_.get() + std::size_t{slot} * max_sge_, slots_[slot].sge_count};
  }
  void pop() { head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  [[nodiscard]] std::uint32_t posted() const { return tail_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    std::uint64_t wr_id;
    std::uint32_t sge_count;
  };
  void store_sges(std::uint32_t slot, const ibv_recv_wr& wr);

  std::atomic<std::uint32_t> tail_{0};
  std::atomic<std::uint32_t> head_{0};
  std::uint32_t mask_;
  std::uint32_t capacity_;
  std::uint32_t max_sge_;
  // Not initialised, so that pages of a large queue are touched only when used.
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<ibv_sge[]> sges_;
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
