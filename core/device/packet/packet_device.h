// Raw packet queue pairs on an ordinary network interface: verbs for Ethernet without a special card.
//
// How somebody uses it (everything else is man 3 ibv_create_qp and the like):
//
//   auto device = PacketDevice::open(if_nametoindex("eth0"));       // EPERM: not here; then the kernel's sockets
//   auto pd = (*device)->alloc_pd();
//   auto mr = (*device)->reg_mr(**pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
//   auto channel = (*device)->create_comp_channel();                // its fd is what sleepers wait on
//   auto rx = (*device)->create_cq(4096, user, channel->get(), 0);  // or ibv_create_cq_ex(), for time stamps
//   auto tx = (*device)->create_cq(256, user, nullptr, 0);
//   ibv_qp_init_attr attr{.send_cq = tx->get(), .recv_cq = rx->get(), .cap = {...}, .qp_type = IBV_QPT_RAW_PACKET};
//   auto qp = (*device)->create_qp(**pd, attr);                     // a ring: a packet socket with a mapped queue
//   modify_qp(): RESET, INIT (IBV_QP_PORT, port 1), RTR, RTS        // or verbs::start_raw_packet_qp()
//   verbs::FlowRule rule({.protocol = IPPROTO_UDP, .destination = me});    // core/verbs/flow_rule.h
//   auto flow = verbs::create_flow(**device, **qp, rule.attr());    // from now on the kernel does not see such packets
//   ibv_post_recv(), ibv_post_send(), ibv_poll_cq(), ibv_req_notify_cq(): the data path, whole Ethernet frames
//
// Sleeping: ibv_req_notify_cq(), ibv_poll_cq() once more, then poll(2) on the channel's fd, get_cq_event(),
// ack_cq_events(), ibv_poll_cq() until it is empty. The fd is quiet while no queue is armed.
//
// Receiving. A frame is copied into the oldest posted receive: byte_len bytes, from the Ethernet header on. The ring in
// front of that has max_recv_wr places of 2 KiB (a power of two, 256 to 16384). While no
// receive is posted, frames wait in the ring; the kernel drops and counts what it has no place for. IBV_WC_IP_CSUM_OK:
// the IPv4 header's and the UDP or TCP checksum are right, or the sender of this host left the latter to a device that
// never came (its field then holds anything). A packet whose checksum or lengths are wrong is dropped and counted, so a
// completion without the flag is one that was not looked at (neither UDP nor TCP). UDP packets that the kernel has
// put together (UDP_SEGMENT) arrive as the datagrams that they are; TCP packets of up to 64 KiB arrive whole when the
// receive is large enough, else as segments. The wall clock time of arrival: ibv_wc_read_completion_wallclock_ns().
//
// Sending. IBV_WR_SEND with a frame of at most MTU + 14 bytes; IBV_SEND_IP_CSUM fills in the IPv4 header's and the
// UDP or TCP checksum; IBV_WR_TSO sends up to 64 KiB as TCP segments or (when the header's protocol is UDP) datagrams
// of `mss` bytes of payload each. One doorbell, that is one list of work requests, is one system call. The data has
// been taken when ibv_post_send() returns, inline or not; signalled requests complete at once, the others silently.
// Errors of ibv_post_send(), with *bad the first request that was not sent: ENOMEM the socket's buffer is full, try
// later; EMSGSIZE longer than the MTU; ENETDOWN the interface is down; ENODEV it is gone; EINVAL nonsense. A wrong
// key is a completion with IBV_WC_LOC_PROT_ERR and the end of the queue pair, as on any device.
//
// Without requests. Who asks for no more than datagrams can do with less (libvma does): PacketQueuePair::take_packet()
// shows the oldest packet where it lies, and send_datagram() takes headers that are complete but for UDP's checksum.
//
// Flows: IPv4 or IPv6 and UDP or TCP with all bits of destination address and port, and either nothing or all bits of
// source address and port; perhaps an Ethernet specification with VLAN id and destination address. EEXIST: a ring of
// this device has that rule (multicast and broadcast: this ring has it). EOPNOTSUPP: any other rule. At the instant in
// which a rule takes effect, packets go to the ring instead of the kernel, each packet to exactly one of them: whether
// the kernel drops a packet follows from whether the ring took that very packet. What came before is in the kernel's
// socket, to be read from there, first. When the rule goes, what the ring has taken before is still to be polled.
// Multicast and broadcast are taken by the ring and by the kernel, whose copy is marked (copy_filter.h).
//
// The interface: get_async_event() has IBV_EVENT_PORT_ERR and IBV_EVENT_PORT_ACTIVE when the link goes down and up,
// IBV_EVENT_DEVICE_FATAL when the interface is gone: then queue pairs are in error, receives flush, sleepers wake.
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

/// One interface. Objects made from it must be destroyed before it. Only IBV_QPT_RAW_PACKET; connections, shared
/// receive queues and address handles answer EOPNOTSUPP.
/// Threads: as verbs::Device. Processes: a forked child calls forget_after_fork() before anything else, since its
/// copies of the descriptors would keep the flows from the kernel after the parent's end.
class PacketDevice final : public verbs::Device {
 public:
  /// Opens interface `ifindex` of the calling thread's network namespace.
  /// Errors: ENODEV there is none; EOPNOTSUPP it is not Ethernet (lo is refused, too), or the kernel has no BPF for us;
  /// EPERM CAP_NET_RAW, CAP_NET_ADMIN or CAP_BPF is missing; EMFILE, ENFILE, ENOMEM.
  static Result<std::unique_ptr<PacketDevice>> open(unsigned ifindex, const PacketDeviceOptions& options = {});
  ~PacketDevice() override;
  PacketDevice(const PacketDevice&) = delete;
  PacketDevice& operator=(const PacketDevice&) = delete;

  [[nodiscard]] unsigned ifindex() const { return ifindex_; }
  /// As asked for, or packet where the other is not possible.
  [[nodiscard]] RingKind ring_kind() const;
  /// In a forked child: closes the child's copies of all descriptors, without any effect on the parent. Queue pairs are
  /// in error afterwards, and can only be destroyed.
  void forget_after_fork();

  ibv_context& context() override;
  [[nodiscard]] const char* name() const override { return name_.c_str(); }
  [[nodiscard]] std::uint32_t max_inline_data() const override;
  [[nodiscard]] bool marks_copies() const override { return true; }
  [[nodiscard]] bool segments_udp() const override { return true; }
  Result<ibv_device_attr> query_device() override;
  Result<ibv_port_attr> query_port(std::uint8_t port) override;
  Result<verbs::Pd> alloc_pd() override;
  Result<verbs::Mr> reg_mr(ibv_pd& pd, void* address, std::size_t length, int access) override;
  Result<verbs::CompChannel> create_comp_channel() override;
  Result<verbs::Cq> create_cq(int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector) override;
  [[nodiscard]] ibv_cq_ex* with_wallclock(ibv_cq& cq) override;
  Result<ibv_cq*> get_cq_event(ibv_comp_channel& channel) override;
  void ack_cq_events(ibv_cq& cq, unsigned int count) override;
  Result<verbs::Srq> create_srq(ibv_pd& pd, ibv_srq_init_attr& attr) override;
  Status modify_srq(ibv_srq& srq, ibv_srq_attr& attr, int mask) override;
  Status query_srq(ibv_srq& srq, ibv_srq_attr& attr) override;
  Result<verbs::Qp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr) override;
  Status modify_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask) override;
  Status query_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask, ibv_qp_init_attr& init_attr) override;
  Result<verbs::PacketCounters> packet_counters(ibv_qp& qp) override;
  Result<verbs::Ah> create_ah(ibv_pd& pd, ibv_ah_attr& attr) override;
  Result<ibv_async_event> get_async_event() override;
  void ack_async_event(ibv_async_event& event) override;
  Result<std::unique_ptr<verbs::ConnectionId>> create_id(verbs::PortSpace space) override;
  int dealloc_pd(ibv_pd* pd) override;
  int dereg_mr(ibv_mr* mr) override;
  int destroy_comp_channel(ibv_comp_channel* channel) override;
  int destroy_cq(ibv_cq* cq) override;
  int destroy_srq(ibv_srq* srq) override;
  int destroy_qp(ibv_qp* qp) override;
  int destroy_ah(ibv_ah* ah) override;

  // For the queue pairs of this device.
  [[nodiscard]] KeyTable& keys();
  [[nodiscard]] RingMaker& ring_maker();
  [[nodiscard]] bool kernel_segments_udp() const { return kernel_segments_udp_; }
  void add(PacketQueuePair& queue_pair);
  void remove(PacketQueuePair& queue_pair);
  void raise(const ibv_async_event& event);
  /// All queue pairs go to error, once. Any thread; takes the list of queue pairs.
  void interface_is_gone();

 private:
  struct Parts;
  PacketDevice(unsigned ifindex, std::string name, bool kernel_segments_udp, std::unique_ptr<Parts> parts);
  void hear_of_interface();

  const unsigned ifindex_;
  const std::string name_;  ///< the interface's, when it was opened
  const bool kernel_segments_udp_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ringsock::soft
