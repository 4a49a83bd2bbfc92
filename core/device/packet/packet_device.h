// Raw packet queue pairs on an ordinary network interface: verbs for Ethernet without a special card.
//
// The sequence of calls (for everything else see ibv_create_qp(3) and related pages):
//
//   auto device = PacketDevice::open(if_nametoindex("eth0"));       // EPERM: not permitted; use the kernel's sockets
//   auto pd = (*device)->alloc_pd();
//   auto mr = (*device)->reg_mr(**pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
//   auto channel = (*device)->create_comp_channel();                // threads sleep on its fd
//   auto rx = (*device)->create_cq(4096, user, channel->get(), 0);  // or ibv_create_cq_ex(), for time stamps
//   auto tx = (*device)->create_cq(256, user, nullptr, 0);
//   ibv_qp_init_attr attr{.send_cq = tx->get(), .recv_cq = rx->get(), .cap = {...}, .qp_type = IBV_QPT_RAW_PACKET};
//   auto qp = (*device)->create_qp(**pd, attr);                     // a ring: a packet socket with a mapped queue
//   modify_qp(): RESET, INIT (IBV_QP_PORT, port 1), RTR, RTS        // or verbs::start_raw_packet_qp()
//   verbs::FlowRule rule({.protocol = IPPROTO_UDP, .destination = me});    // core/verbs/flow_rule.h
//   auto flow = verbs::create_flow(**device, **qp, rule.attr());    // from now on the kernel does not see such packets
//   ibv_post_recv(), ibv_post_send(), ibv_poll_cq(), ibv_req_notify_cq(): the data path, whole Ethernet frames
//
// Sleeping: call ibv_req_notify_cq(), then ibv_poll_cq() once more, then poll(2) on the channel's fd, get_cq_event(),
// ack_cq_events(), and ibv_poll_cq() until it is empty. The fd is not readable while no queue is armed.
//
// Receiving. A frame is copied into the oldest posted receive: byte_len bytes, beginning with the Ethernet header. The
// ring in front of the receives has max_recv_wr places of 2 KiB (a power of two, 256 to 16384). While no receive is
// posted, frames wait in the ring; the kernel drops and counts frames for which the ring has no place.
// IBV_WC_IP_CSUM_OK means that the checksums of the IPv4 header and of UDP or TCP are right, or that a sender on this
// host left the latter to a device that does not exist (then the field may hold anything). A packet with a wrong
// checksum or wrong lengths is dropped and counted, so a completion without the flag was not checked (neither UDP nor
// TCP). UDP packets that the kernel has merged (UDP_SEGMENT) arrive as separate datagrams. TCP packets of up to 64 KiB
// arrive whole when the receive is large enough, otherwise as segments. ibv_wc_read_completion_wallclock_ns() returns
// the wall clock time of arrival.
//
// Sending. IBV_WR_SEND sends a frame of at most MTU + 14 bytes. IBV_SEND_IP_CSUM fills in the checksums of the IPv4
// header and of UDP or TCP. IBV_WR_TSO sends up to 64 KiB as TCP segments, or as datagrams when the header's protocol
// is UDP, with `mss` bytes of payload each. One list of work requests (one doorbell) costs one system call. When
// ibv_post_send() returns, the data has been taken, inline or not; signalled requests complete at once, the others
// silently. Errors of ibv_post_send(), with *bad the first request that was not sent: ENOMEM the socket's buffer is
// full, try later; EMSGSIZE longer than the MTU; ENETDOWN the interface is down; ENODEV the interface is gone; EINVAL
// invalid request. A wrong key causes a completion with IBV_WC_LOC_PROT_ERR and the end of the queue pair, as on any
// device.
//
// Without requests. A user that needs only datagrams has a cheaper way, which libvma uses:
// PacketQueuePair::take_packet() shows the oldest packet in the ring, and send_datagram() takes headers that are
// complete except for UDP's checksum.
//
// Flows. A rule is for IPv4 or IPv6 and UDP or TCP, with all bits of destination address and port, and with none or all
// bits of source address and port; it may have an Ethernet specification with VLAN id and destination address. Errors:
// EEXIST a ring of this device has that rule (for multicast and broadcast: this ring has it); EOPNOTSUPP any other
// rule. From the moment when a rule takes effect, packets go to the ring instead of the kernel, each packet to exactly
// one of them: the kernel drops a packet if and only if the ring has taken that packet. Earlier packets are in the
// kernel's socket, and should be read first. After the end of a rule, packets that the ring has taken must still be
// polled. Multicast and broadcast go to the ring and to the kernel, whose copy is marked (copy_filter.h).
//
// The interface. get_async_event() returns IBV_EVENT_PORT_ERR and IBV_EVENT_PORT_ACTIVE when the link goes down and up,
// and IBV_EVENT_DEVICE_FATAL when the interface is gone: then queue pairs are in error, receives are flushed, and
// sleepers wake.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/device/packet/ring/packet_options.h"
#include "core/verbs/device.h"

namespace ringsock::soft {

class KeyTable;
class PacketQueuePair;
class RingMaker;

/// One interface. Objects made from it must be destroyed before it. Only IBV_QPT_RAW_PACKET is supported; connections,
/// shared receive queues and address handles return EOPNOTSUPP. Threads: as for verbs::Device. A forked child must
/// first call forget_after_fork(), because its copies of the descriptors would keep the flows from the kernel after the
/// parent's end.
class PacketDevice final : public verbs::Device {
 public:
  /// Opens interface `ifindex` of the calling thread's network namespace. Errors: ENODEV no such interface; EOPNOTSUPP
  /// not Ethernet (lo is refused, too), or the kernel lacks the BPF features; EPERM CAP_NET_RAW, CAP_NET_ADMIN or
  /// CAP_BPF is missing; EMFILE, ENFILE, ENOMEM.
  static Result<std::unique_ptr<PacketDevice>> open(unsigned ifindex, const PacketDeviceOptions& options = {});
  ~PacketDevice() override;
  PacketDevice(const PacketDevice&) = delete;
  PacketDevice& operator=(const PacketDevice&) = delete;

  [[nodiscard]] unsigned ifindex() const { return ifindex_; }
  /// The kind in the options, or packet where the other kind is not possible.
  [[nodiscard]] RingKind ring_kind() const;
  /// Called in a forked child: closes the child's copies of all descriptors, without an effect on the parent.
  /// Afterwards queue pairs are in error, and can only be destroyed.
  void forget_after_fork();

  ibv_context& context() override;
  [[nodiscard]] const char* name() const override { return name_.c_str(); }
  Result<ibv_device_attr> query_device() override;
  Result<ibv_port_attr> query_port(std::uint8_t port) override;
  Result<verbs::Pd> alloc_pd() override;
  Result<verbs::Mr> reg_mr(ibv_pd& pd, void* address, std::size_t length, int access) override;
  Result<verbs::CompChannel> create_comp_channel() override;
  Result<verbs::Cq> create_cq(int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector) override;
  [[nodiscard]] ibv_cq_ex* with_wallclock(ibv_cq& cq) override;
  Result<ibv_cq*> get_cq_event(ibv_comp_channel& channel) override;
  void ack_cq_events(ibv_cq& cq, unsigned int count) override;
  Result<verbs::Qp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr) override;
  Status modify_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask) override;
  Status query_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask, ibv_qp_init_attr& init_attr) override;
  Result<verbs::PacketCounters> packet_counters(ibv_qp& qp) override;
  Result<ibv_async_event> get_async_event() override;
  void ack_async_event(ibv_async_event& event) override;
  int dealloc_pd(ibv_pd* pd) override;
  int dereg_mr(ibv_mr* mr) override;
  int destroy_comp_channel(ibv_comp_channel* channel) override;
  int destroy_cq(ibv_cq* cq) override;
  int destroy_qp(ibv_qp* qp) override;

  // Used by the queue pairs of this device.
  [[nodiscard]] KeyTable& keys();
  [[nodiscard]] RingMaker& ring_maker();
  [[nodiscard]] bool kernel_segments_udp() const { return kernel_segments_udp_; }
  void add(PacketQueuePair& queue_pair);
  void remove(PacketQueuePair& queue_pair);
  void raise(const ibv_async_event& event);
  /// Sets all queue pairs to the error state, once. Takes the lock of the list of queue pairs. Threads: any.
  void interface_is_gone();

 private:
  struct Parts;
  PacketDevice(unsigned ifindex, std::string name, bool kernel_segments_udp, std::unique_ptr<Parts> parts);
  void hear_of_interface();

  const unsigned ifindex_;
  const std::string name_;  ///< name of the interface when it was opened
  const bool kernel_segments_udp_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ringsock::soft
