// The interface of devices beyond the verbs that <infiniband/verbs.h> implements inline.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "core/base/ready_map.h"
#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/verbs/handles.h"
#include "core/verbs/saved_queue_pair.h"

namespace ringsock::verbs {

/// ibv_wc::vendor_err of a flushed receive when the peer's process has given up the connection without a failure: it
/// ended, executed another program, or closed its copy of an inherited connection. Real devices do not report it.
inline constexpr std::uint32_t kVendorErrPeerEnded = 0x52530001;

/// The same when the peer slept and was rung in vain: what was sent last came after its end.
inline constexpr std::uint32_t kVendorErrPeerEndedAsleep = 0x52530002;

class ConnectionId;

/// How a connection manager identifies services: rdma_cm(7) port spaces.
enum class PortSpace { tcp, udp };

/// Counts what happened to the packets of a raw packet queue pair since it was made.
struct PacketCounters {
  std::uint64_t rx_packets = 0;       ///< completed receives
  std::uint64_t rx_bytes = 0;         ///< in them
  std::uint64_t rx_ring_full = 0;     ///< dropped: the ring was not polled in time, or no receive was posted
  std::uint64_t rx_bad_length = 0;    ///< dropped: the headers' lengths contradict each other or the frame's
  std::uint64_t rx_bad_checksum = 0;  ///< dropped
  std::uint64_t rx_too_long = 0;      ///< dropped: the posted receive was too short
  std::uint64_t tx_packets = 0;       ///< sent; a packet that the device segments counts once
  std::uint64_t tx_bytes = 0;         ///< in them
  std::uint64_t tx_dropped = 0;       ///< posted and lost: the interface's queue was full
  std::uint64_t rx_system_calls = 0;  ///< made for packets too large for the ring
  std::uint64_t tx_system_calls = 0;
};

/// An open device. Posting, polling and arming go straight through context()->ops by the inline verbs (ibv_post_send(),
/// ibv_poll_cq(), ibv_req_notify_cq() ...) whatever the device; the functions here are the ones that libibverbs exports
/// as symbols. Arguments, results and errors are those of the ibv_ function of the same name (man 3 ibv_create_qp ...);
/// creating functions return owning handles (handles.h).
/// Threads: every function may be called from any thread.
class Device {
 public:
  virtual ~Device() = default;

  virtual ibv_context& context() = 0;
  [[nodiscard]] virtual const char* name() const = 0;
  /// Returns the largest inline payload of a send queue in bytes, which ibv_device_attr does not have.
  [[nodiscard]] virtual std::uint32_t max_inline_data() const = 0;
  /// Returns whether an armed completion queue without a channel makes event_fd() of its queue pairs' connection ids
  /// readable, and next_event() consumes that. Saves a descriptor per connection.
  [[nodiscard]] virtual bool wakes_through_connection() const { return false; }
  /// Returns whether messages to any peer may use RDMA WRITE WITH IMMEDIATE; iWARP devices, or their peers, may not
  /// have it.
  [[nodiscard]] virtual bool has_write_with_immediate() const { return true; }
  /// Returns whether the device works on posted requests after the call. Destroying a queue pair then loses requests
  /// that are under way, and its connection manager must be served while the application makes no calls. False: all
  /// work is done within calls.
  [[nodiscard]] virtual bool works_in_background() const { return false; }
  /// Returns whether the kernel does that work on the CPUs of this host (Soft-RoCE, Soft-iWARP): a thread that spins
  /// until something arrives may delay its arrival.
  [[nodiscard]] virtual bool works_on_our_cpus() const { return false; }
  /// Returns whether a forked child can go on with its copy of a connection.
  [[nodiscard]] virtual bool survives_fork() const { return true; }
  /// Returns whether both ends of its connections are on this host. Statistics call such a device embedded, the others
  /// RDMA.
  [[nodiscard]] virtual bool is_embedded() const { return false; }
  /// Returns whether the kernel's own copy of a multicast or broadcast packet that a ring has taken can be recognised,
  /// so that a kernel socket may refuse it (copy_filter.h).
  [[nodiscard]] virtual bool marks_copies() const { return false; }
  /// Returns whether IBV_WR_TSO cuts the data behind a UDP header into datagrams.
  [[nodiscard]] virtual bool segments_udp() const { return false; }
  virtual Result<ibv_device_attr> query_device() = 0;
  virtual Result<ibv_port_attr> query_port(std::uint8_t port) = 0;

  virtual Result<Pd> alloc_pd() = 0;
  virtual Result<Mr> reg_mr(ibv_pd& pd, void* address, std::size_t length, int access) = 0;
  virtual Result<CompChannel> create_comp_channel() = 0;
  virtual Result<Cq> create_cq(int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector) = 0;
  /// Returns a completion queue of create_cq() as an extended one with the wall clock time of each completion
  /// (ibv_wc_read_completion_wallclock_ns()), or null where that is not supported. Both forms may be polled, in turn.
  [[nodiscard]] virtual ibv_cq_ex* with_wallclock(ibv_cq& /*cq*/) { return nullptr; }
  /// ibv_get_cq_event(3), except that it never blocks. Error: EAGAIN when no event is pending.
  virtual Result<ibv_cq*> get_cq_event(ibv_comp_channel& channel) = 0;
  virtual void ack_cq_events(ibv_cq& cq, unsigned int count) = 0;
  /// Calls ibv_req_notify_cq(3), for any completion, on several queues of this device. Cheaper than single calls where
  /// each arming has a fixed cost.
  virtual void arm(std::span<ibv_cq* const> cqs) {
    for (ibv_cq* cq : cqs) ibv_req_notify_cq(cq, 0);
  }
  virtual Result<Srq> create_srq(ibv_pd& pd, ibv_srq_init_attr& attr) = 0;
  virtual Status modify_srq(ibv_srq& srq, ibv_srq_attr& attr, int mask) = 0;
  virtual Status query_srq(ibv_srq& srq, ibv_srq_attr& attr) = 0;
  /// Makes a queue pair without the connection manager (UD, raw packet, or RC that the caller connects).
  virtual Result<Qp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr) = 0;
  virtual Status modify_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask) = 0;
  virtual Status query_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask, ibv_qp_init_attr& init_attr) = 0;
  /// Returns the counters of a raw packet queue pair. Error: EOPNOTSUPP where the device does not count.
  virtual Result<PacketCounters> packet_counters(ibv_qp& /*qp*/) { return Error{EOPNOTSUPP, "packet_counters"}; }
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
  /// Returns whether the peer of a connected RC queue pair is known to be this process. Threads: any.
  [[nodiscard]] virtual bool is_own_process(ibv_qp& /*qp*/) { return false; }
  /// Returns where this process has mapped a part of the memory that the peer of a connected RC queue pair received
  /// from create_qp(), nullptr where it has not, or the peer has not opened that part for writing. The mapping lives as
  /// long as the queue pair; the peer may write there at any time. The memory of this connection is not used again for
  /// another one if it was written (leaves_traces()).
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
  /// Goes on where another process has saved. Threads: as save(). Errors: EPROTO for impossible values; EOPNOTSUPP;
  /// EINVAL for a queue pair that is not connected.
  virtual Status restore(ibv_qp& /*qp*/, const SavedQueuePair& /*saved*/) { return Error{EOPNOTSUPP, "restore"}; }
  /// Tells that the connection's memory, on either side, was written past the device.
  virtual void leaves_traces(ibv_qp& /*qp*/) {}
  virtual Result<Ah> create_ah(ibv_pd& pd, ibv_ah_attr& attr) = 0;
  /// ibv_get_async_event(3), except that it never blocks; context().async_fd is pollable. Error: EAGAIN.
  virtual Result<ibv_async_event> get_async_event() = 0;
  virtual void ack_async_event(ibv_async_event& event) = 0;

  /// Returns whether a socket may be listening at `destination`, true where a device cannot tell. Cheap and without
  /// side effects.
  /// Threads: any.
  [[nodiscard]] virtual bool may_have_listener(PortSpace /*space*/, const SocketAddress& /*destination*/) {
    return true;
  }
  /// Returns whether the listener at `destination` recently did not answer a connection of this process that had
  /// another way. Threads: any.
  [[nodiscard]] virtual bool was_silent(PortSpace /*space*/, const SocketAddress& /*destination*/) { return false; }
  /// Makes a new endpoint of this device's connection manager (connection_manager.h).
  virtual Result<std::unique_ptr<ConnectionId>> create_id(PortSpace space) = 0;

  // Called by the destructors of handles. Return 0 or an errno value, as ibv_dealloc_pd(3) does.
  virtual int dealloc_pd(ibv_pd* pd) = 0;
  virtual int dereg_mr(ibv_mr* mr) = 0;
  virtual int destroy_comp_channel(ibv_comp_channel* channel) = 0;
  virtual int destroy_cq(ibv_cq* cq) = 0;
  virtual int destroy_srq(ibv_srq* srq) = 0;
  virtual int destroy_qp(ibv_qp* qp) = 0;
  virtual int destroy_ah(ibv_ah* ah) = 0;
};

}  // namespace ringsock::verbs
