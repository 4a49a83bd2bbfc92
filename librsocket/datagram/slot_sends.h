// The sends of a lane on a real device.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/verbs/handles.h"
#include "librsocket/io_vector.h"

namespace ringsock::rs {

/// Copies each datagram to a registered slot, posts it from there, and goes on. Completions free the slots, and are
/// taken when the next datagram is sent. Threads: the caller's lock.
class SlotSends {
 public:
  struct Memory {
    std::span<std::byte> bytes;  ///< registered
    std::size_t slot_bytes = 0;
    std::uint32_t key = 0;
  };
  /// @param inline_bytes  datagrams up to this length are sent inline
  SlotSends(ibv_qp& qp, ibv_cq& cq, const Memory& memory, std::uint32_t inline_bytes);

  [[nodiscard]] std::size_t slots() const { return slots_; }
  /// Returns whether so many datagrams can be posted now.
  bool has_room(std::size_t count = 1);
  /// Posts a datagram of `header` and the next bytes of `data`, at most `most`, and advances that. They fit in a slot.
  /// Errors: EAGAIN all slots are under way; EIO the queue pair has failed.
  Status send(ibv_ah& handle, std::uint32_t qp_number, std::span<const std::byte> header, IoCursor& data,
              std::size_t most);
  /// Takes an address handle that is no longer used, and destroys it when no datagram is under way with it.
  void retire(verbs::Ah handle);
  /// Takes completions.
  void reap();
  [[nodiscard]] bool is_idle() const { return free_.size() == slots_; }
  /// Returns whether the queue pair has failed.
  [[nodiscard]] bool has_failed() const { return has_failed_; }

 private:
  struct Retired {
    verbs::Ah handle;
    std::uint64_t last_send;  ///< the number of the last datagram that may use it
  };

  ibv_qp& qp_;
  ibv_cq& cq_;
  const Memory memory_;
  const std::uint32_t inline_bytes_;
  const std::size_t slots_;
  std::vector<std::uint32_t> free_;
  std::uint64_t posted_ = 0;     ///< datagrams ever
  std::uint64_t completed_ = 0;  ///< of those: a queue pair completes them in order
  std::vector<Retired> retired_;
  bool has_failed_ = false;
};

}  // namespace ringsock::rs
