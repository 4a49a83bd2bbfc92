// What a device offers for reliable connections beyond libibverbs.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/base/clock.h"
#include "core/base/hot_lines.h"
#include "core/base/ready_map.h"
#include "core/base/result.h"
#include "core/verbs/saved_queue_pair.h"

namespace ringsock::verbs {

/// ibv_wc::vendor_err of a flushed receive when the peer's process has given up the connection without a failure: it
/// ended, executed another program, or closed its copy of an inherited connection. Real devices do not report it.
inline constexpr std::uint32_t kVendorErrPeerEnded = 0x52530001;

/// The same when the peer slept and was rung in vain: what was sent last came after its end.
inline constexpr std::uint32_t kVendorErrPeerEndedAsleep = 0x52530002;

/// The result of ibv_post_send(3) for a message that was carried out, and completes, although its bell has found that
/// the peer has gone: nobody will see the message. Real devices do not report it.
inline constexpr int kPostedUnheard = EPIPE;

/// Memory of a connection that one end writes and the other end reads past the device. It has pages only as far as it
/// was used.
struct SparseMemory {
  std::span<std::byte> all;
  std::size_t used;  ///< bytes from the start that may have been written by this connection
};

/// An RDMA write with immediate, of bytes that the call copies.
struct InlineWrite {
  const void* data;
  std::uint32_t length;  ///< not 0
  std::uint32_t rkey;
  std::uint64_t remote_address;
  std::uint32_t immediate;  ///< in network order
};

/// Two RDMA writes with immediate, the second of which continues the first one's list.
struct WritePair {
  struct Part {
    std::uint32_t length;  ///< not 0
    std::uint32_t rkey;
    std::uint64_t remote_address;
    std::uint32_t immediate;  ///< in network order
  };
  std::span<const ibv_sge> list;  ///< with the bytes of both, which the call copies
  Part first, second;
};

/// The functions of a device on RC queue pairs whose peer is a process of this host: arrival stamps, ready maps, the
/// peer's memory, saving. A device overrides what it has; the functions here answer for a device that has nothing of
/// it. Threads: every function may be called from any thread, except save() and restore().
class RcExtensions {
 public:
  virtual ~RcExtensions() = default;

  /// Carries out a request as ibv_post_send(3) does IBV_WR_RDMA_WRITE_WITH_IMM with IBV_SEND_INLINE and without
  /// IBV_SEND_SIGNALED, for a third of what that costs. Returns 0, kPostedUnheard, or EAGAIN when the request was not
  /// begun: it must be posted.
  virtual int write_at_once(ibv_qp& /*qp*/, const InlineWrite& /*write*/) { return EAGAIN; }
  /// Does the same with two: a peer that gets the first gets the second at the same time.
  virtual int write_pair_at_once(ibv_qp& /*qp*/, const WritePair& /*pair*/) { return EAGAIN; }
  /// Posts `count` receives without elements, all with this wr_id, as ibv_post_recv(3) does with a list of them, but at
  /// the cost of one. Returns ibv_post_recv(3)'s error, with as many posted as find room; EOPNOTSUPP, and none was
  /// posted, where the device knows lists only.
  virtual int post_counted(ibv_qp& /*qp*/, std::uint64_t /*wr_id*/, std::uint32_t /*count*/) { return EOPNOTSUPP; }
  /// Makes ibv_wc::vendor_err of successful receives on this RC queue pair the peer's order_stamp() (clock.h) at the
  /// time of sending, or 0. It is a hint, because a peer may send any value. Returns false where the device has no
  /// stamps.
  virtual bool ask_for_stamps(ibv_qp& /*qp*/) { return false; }
  /// Returns a number that is the same for RC queue pairs whose peers can share a map of ready connections
  /// (core/base/ready_map.h), 0 where the device has no such maps or the queue pair is not connected. Threads: any.
  [[nodiscard]] virtual std::uint64_t peer_group(ibv_qp& /*qp*/) { return 0; }
  /// Makes a map for one group of peers. Errors: EOPNOTSUPP; EMFILE, ENFILE, ENOMEM.
  virtual Result<std::shared_ptr<ReadyMap>> make_ready_map() { return Error{EOPNOTSUPP, "make_ready_map"}; }
  /// Makes the peer of a queue pair, which has just been armed for any completion, set `place` of the map at each
  /// message instead of ringing. The peer rings through the connection for a consumer that sleeps (ReadyBits::set()),
  /// and where it cannot use the map. The next arming ends that, and unlist() does, which arms for nothing. A listing
  /// that does not last was taken by a message that came meanwhile.
  virtual Listing list_at(ibv_qp& /*qp*/, const std::shared_ptr<ReadyMap>& /*map*/, std::uint32_t /*place*/) {
    return {};
  }
  virtual void unlist(ibv_qp& /*qp*/) {}
  /// This process ends: the peer of a connected RC queue pair finds out by its next message. Until the next arming each
  /// message rings.
  virtual void arm_for_good(ibv_qp& /*qp*/) {}
  /// Returns whether the peer of a connected RC queue pair is known to be this process. Threads: any.
  [[nodiscard]] virtual bool is_own_process(ibv_qp& /*qp*/) { return false; }
  /// Returns where this process has mapped a part of the memory that the peer of a connected RC queue pair received
  /// from create_qp(), nullptr where it has not, or the peer has not opened that part for writing. The mapping lives as
  /// long as the queue pair; the peer may write there at any time. If it was written, keep_sparse() or leaves_traces()
  /// follows.
  virtual std::byte* peer_memory(ibv_qp& /*qp*/, std::uint32_t /*key*/, std::uint64_t /*address*/,
                                 std::size_t /*length*/) {
    return nullptr;
  }
  /// Returns whether all sends posted so far have been carried out, and the connection lives.
  virtual bool has_sent_all(ibv_qp& /*qp*/) { return false; }
  /// Returns how far a connected RC queue pair has come, so that another process that has it by fork(2) can go on with
  /// it. Nothing when requests are under way, or where a device cannot tell. Threads: no other one uses the queue pair,
  /// or its completion queue, which has been polled until it was empty.
  virtual std::optional<SavedQueuePair> save(ibv_qp& /*qp*/) { return std::nullopt; }
  /// Goes on where another process has saved; completions of sends that this process has not polled are dropped.
  /// Threads: as save(). Errors: EPROTO for impossible values; EOPNOTSUPP; EINVAL for a queue pair that is not
  /// connected.
  virtual Status restore(ibv_qp& /*qp*/, const SavedQueuePair& /*saved*/) { return Error{EOPNOTSUPP, "restore"}; }
  /// Returns whether no process has gone further than `saved`, as far as the peer can see: it has sent nothing, and has
  /// not told what it received. A process that was killed in the middle of its work leaves that question. Threads: as
  /// save().
  virtual bool is_untouched_since(ibv_qp& /*qp*/, const SavedQueuePair& /*saved*/) { return false; }
  /// Tells that the connection's memory, on either side, was written past the device, nobody knows where.
  virtual void leaves_traces(ibv_qp& /*qp*/) {}

  // -- sparse memory: what peer_memory() returns, and what the peer's returns, as far as it was used
  /// Returns how much memory the sparse part at `start` had when the connection was made, from an earlier connection.
  virtual std::size_t sparse_memory(ibv_qp& /*qp*/, const std::byte* /*start*/) { return 0; }
  /// Leaves the sparse memory of both ends, at the end of a connection, to another connection of the same processes.
  /// The device then counts and limits it, and gives it back (give_back_sparse()). Returns the bytes of all sparse
  /// memory that this process keeps then, nothing if the device does not take it.
  /// @param is_read  the peer has read all that it can; of a peer of another user it must have
  virtual std::optional<std::size_t> keep_sparse(ibv_qp& /*qp*/, const SparseMemory& /*own*/,
                                                 const SparseMemory& /*peers*/, bool /*is_read*/) {
    return std::nullopt;
  }
  /// Gives sparse memory to the kernel that was kept and not used for a second. Returns whether there is more. Threads:
  /// any.
  virtual bool give_back_sparse(Nanos /*now*/) { return false; }

  /// Adds the cache lines of a connected RC queue pair, and of its receive queue, that a message needs.
  virtual void add_hot_lines(ibv_qp& /*qp*/, HotLines& /*lines*/) {}
};

}  // namespace ringsock::verbs
