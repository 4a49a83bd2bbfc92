// The interface of devices beyond the verbs that <infiniband/verbs.h> implements inline.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "core/base/result.h"
#include "core/base/socket_address.h"
#include "core/verbs/handles.h"
#include "core/verbs/rc_extensions.h"
#include "core/verbs/ud_extensions.h"

namespace ringsock::verbs {

class ConnectionId;

/// How a connection manager identifies services: rdma_cm(7) port spaces.
enum class PortSpace { tcp, udp };

/// What does not change while a device is open, and ibv_device_attr does not have. Code above asks for these traits,
/// never which device it has.
struct DeviceTraits {
  std::uint32_t max_inline_data = 0;  ///< the largest inline payload of a send queue in bytes
  /// An armed completion queue without a channel makes event_fd() of its queue pairs' connection ids readable, and
  /// next_event() consumes that. Saves a descriptor per connection.
  bool wakes_through_connection = false;
  /// Messages to any peer may use RDMA WRITE WITH IMMEDIATE; iWARP devices, or their peers, may not have it.
  bool has_write_with_immediate = true;
  /// The device works on posted requests after the call. Destroying a queue pair then loses requests that are under
  /// way, and its connection manager must be served while the application makes no calls. False: all work is done
  /// within calls.
  bool works_in_background = false;
  /// The kernel does that work on the CPUs of this host (Soft-RoCE, Soft-iWARP): a thread that spins until something
  /// arrives may delay its arrival.
  bool works_on_our_cpus = false;
  bool survives_fork = true;  ///< a forked child can go on with its copy of a connection
  /// Both ends of its connections are on this host. Statistics call such a device embedded, the others RDMA.
  bool is_embedded = false;
  /// The kernel's own copy of a multicast or broadcast packet that a ring has taken can be recognised, so that a kernel
  /// socket may refuse it (copy_filter.h).
  bool marks_copies = false;
  bool segments_udp = false;  ///< IBV_WR_TSO cuts the data behind a UDP header into datagrams
};

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
  /// @param rc, ud  what the device offers beyond libibverbs; the defaults offer nothing
  explicit Device(const DeviceTraits& traits, std::unique_ptr<RcExtensions> rc = std::make_unique<RcExtensions>(),
                  std::unique_ptr<UdExtensions> ud = std::make_unique<UdExtensions>())
      : traits_(traits), rc_(std::move(rc)), ud_(std::move(ud)) {}
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const DeviceTraits& traits() const { return traits_; }
  [[nodiscard]] RcExtensions& rc() { return *rc_; }
  [[nodiscard]] UdExtensions& ud() { return *ud_; }

  virtual ibv_context& context() = 0;
  [[nodiscard]] virtual const char* name() const = 0;
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
  // A device without shared receive queues returns EOPNOTSUPP.
  virtual Result<Srq> create_srq(ibv_pd& /*pd*/, ibv_srq_init_attr& /*attr*/) { return unsupported("create_srq"); }
  virtual Status modify_srq(ibv_srq& /*srq*/, ibv_srq_attr& /*attr*/, int /*mask*/) {
    return unsupported("modify_srq");
  }
  virtual Status query_srq(ibv_srq& /*srq*/, ibv_srq_attr& /*attr*/) { return unsupported("query_srq"); }
  /// Makes a queue pair without the connection manager (UD, raw packet, or RC that the caller connects).
  virtual Result<Qp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr) = 0;
  virtual Status modify_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask) = 0;
  virtual Status query_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask, ibv_qp_init_attr& init_attr) = 0;
  /// Returns the counters of a raw packet queue pair. Error: EOPNOTSUPP where the device does not count.
  virtual Result<PacketCounters> packet_counters(ibv_qp& /*qp*/) { return unsupported("packet_counters"); }
  /// Error: EOPNOTSUPP where the device has no address handles.
  virtual Result<Ah> create_ah(ibv_pd& /*pd*/, ibv_ah_attr& /*attr*/) { return unsupported("create_ah"); }
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
  /// Makes a new endpoint of this device's connection manager (connection_manager.h). Error: EOPNOTSUPP where the
  /// device has none.
  virtual Result<std::unique_ptr<ConnectionId>> create_id(PortSpace space);

  // Called by the destructors of handles. Return 0 or an errno value, as ibv_dealloc_pd(3) does.
  virtual int dealloc_pd(ibv_pd* pd) = 0;
  virtual int dereg_mr(ibv_mr* mr) = 0;
  virtual int destroy_comp_channel(ibv_comp_channel* channel) = 0;
  virtual int destroy_cq(ibv_cq* cq) = 0;
  virtual int destroy_srq(ibv_srq* /*srq*/) { return EOPNOTSUPP; }
  virtual int destroy_qp(ibv_qp* qp) = 0;
  virtual int destroy_ah(ibv_ah* /*ah*/) { return EOPNOTSUPP; }

 private:
  static Error unsupported(const char* where) { return {EOPNOTSUPP, where}; }

  const DeviceTraits traits_;
  const std::unique_ptr<RcExtensions> rc_;
  const std::unique_ptr<UdExtensions> ud_;
};

}  // namespace ringsock::verbs
