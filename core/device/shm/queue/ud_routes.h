// The rings of a UD queue pair: those that it writes, by the receiver's number, and those that it reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/device/shm/queue/ud_ring.h"

namespace ringsock::soft {

/// The rings to others. Threads: the queue pair's lock.
class UdRoutes {
 public:
  static constexpr std::size_t kMost = 1024;
  struct Route {
    UdRingWriter ring;
    std::uint64_t looked_at = 0;  ///< ticks(): when the receiver's life was last proven
  };

  [[nodiscard]] Route* find(std::uint32_t qp_num);
  /// Makes a ring; the caller passes its memory to the receiver. Errors: those of make_segment(); ENOSPC too many.
  Result<UniqueFd> add(std::uint32_t qp_num);
  void drop(std::uint32_t qp_num);
  /// Tells the receivers that nothing more comes.
  void end();
  /// In a forked child: drops all, of which the receivers notice nothing.
  void forget();
  [[nodiscard]] bool empty() const { return routes_.empty(); }

 private:
  std::unordered_map<std::uint32_t, Route> routes_;
  std::uint32_t last_number_ = 0;
  Route* last_ = nullptr;
};

/// The rings from others. Threads: the queue pair's lock.
class UdIncoming {
 public:
  static constexpr std::size_t kMost = 1024;

  /// Takes the memory of a ring of queue pair `source`. Of a ring above kMost only what is in it is taken; its sender
  /// sees it closed. Errors: EPROTO it is none; ENOSPC far too many, and what is in it is lost.
  Status add(UniqueFd memory, std::uint32_t source);
  /// Drops the empty rings of sources that are gone, if there are many rings. The sources of processes that were killed
  /// have not ended their rings.
  template <class IsGone>
  void reap(IsGone is_gone);
  [[nodiscard]] bool empty() const { return rings_.empty(); }
  /// Gives the oldest datagrams, from one ring after the other, to `take(const ParsedDatagram&)`, at most `limit`.
  template <class Take>
  void take(int limit, Take take);
  /// Makes the next datagram of each ring ring.
  void arm();
  /// Tells the senders, also those to come, that other processes have the receiver's port, too.
  void tell_heirs();
  /// Tells the senders that nothing is taken any more.
  void close();
  void forget() { rings_.clear(); }

 private:
  void drop(std::size_t index);

  struct Ring {
    UdRingReader reader;
    std::uint32_t source;
    bool is_surplus = false;
  };
  static constexpr std::size_t kMostSurplus = 256;
  static constexpr std::size_t kFew = 32;
  std::vector<Ring> rings_;
  bool has_heirs_ = false;
  std::size_t next_ = 0;
  std::size_t reap_at_ = kFew;
};

template <class Take>
void UdIncoming::take(int limit, Take take) {
  for (std::size_t idle = 0; limit > 0 && idle < rings_.size();) {
    if (next_ >= rings_.size()) next_ = 0;
    UdRingReader& ring = rings_[next_].reader;
    const auto datagram = ring.front();
    if (!datagram || (!*datagram && (rings_[next_].is_surplus || ring.has_ended()) && ring.is_empty())) {
      drop(next_);
      continue;
    }
    if (!*datagram) {
      ++idle;
      ++next_;
      continue;
    }
    idle = 0;
    take(**datagram);
    ring.pop();
    --limit;
  }
}

template <class IsGone>
void UdIncoming::reap(IsGone is_gone) {
  if (rings_.size() < reap_at_) return;
  for (std::size_t i = rings_.size(); i-- > 0;) {
    if (rings_[i].reader.is_empty() && is_gone(rings_[i].source)) drop(i);
  }
  reap_at_ = 2 * rings_.size() + kFew;
}

}  // namespace ringsock::soft
