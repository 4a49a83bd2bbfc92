// A connection's queue pair, with the memory that its peer may write.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "core/verbs/connection_manager.h"
#include "librsocket/queue_settings.h"

namespace ringsock::rs {

/// The receive memory has the BufferTables, the words of the overflow area, the receive ring, and the overflow area
/// with pages of its own. Threads: any.
class QueuePairMemory {
 public:
  /// Makes both. Where the larger memory is not to be had (RLIMIT_AS, RLIMIT_FSIZE), there is no overflow area, and
  /// settings.receive_overflow becomes 0. Errors: those of verbs::ConnectionId::create_qp().
  /// @param attr           attr.cap becomes what is granted
  /// @param requests_more  entries of the send queue that an overflow area needs
  Status create(verbs::ConnectionId& id, ibv_pd& pd, ibv_qp_init_attr& attr, QueueSettings& settings,
                std::uint32_t requests_more);

  [[nodiscard]] ibv_qp& qp() const { return *memory_.qp; }
  [[nodiscard]] std::uint32_t key() const { return memory_.receive_mr->rkey; }
  [[nodiscard]] std::byte* tables() const { return memory_.receive_memory.data(); }
  [[nodiscard]] std::byte* ring() const { return ring_; }
  /// The kRsOverflowWordBytes in front of the ring. Only with an overflow area.
  [[nodiscard]] std::byte* overflow_words() const;
  [[nodiscard]] std::span<std::byte> overflow_area(const QueueSettings& settings) const;

 private:
  verbs::ConnectionQp memory_;
  std::byte* ring_ = nullptr;
};

}  // namespace ringsock::rs
