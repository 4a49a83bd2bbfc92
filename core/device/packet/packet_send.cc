// Sending of the raw packet queue pair: from work requests to the ring.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/device/common/key_table.h"
#include "core/device/common/scatter_gather.h"
#include "core/device/packet/outgoing_batch.h"
#include "core/device/packet/packet_device.h"
#include "core/device/packet/packet_queue_pair.h"
#include "core/wire/udp.h"

namespace ringsock::soft {

PacketSender::PacketSender(PacketDevice& device, const ibv_qp& queue_pair, const ibv_qp_init_attr& attr,
                           FrameRing& ring)
    : device_(device),
      queue_pair_(queue_pair),
      ring_(ring),
      keys_(device.keys()),
      max_sge_(attr.cap.max_send_sge),
      signal_all_(attr.sq_sig_all != 0) {}

void PacketSender::add_to(verbs::PacketCounters& counters) const {
  counters.tx_packets = packets_.load(std::memory_order_relaxed);
  counters.tx_bytes = bytes_.load(std::memory_order_relaxed);
}

[[gnu::always_inline]] inline int PacketSender::check(const ibv_send_wr& wr) const {
  if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > max_sge_) return EINVAL;
  const std::uint64_t bytes = length_of(sges_of(wr));
  if (wr.opcode == IBV_WR_SEND) {
    if (bytes < ETH_HLEN) return EINVAL;
    return bytes > kMaxTsoBytes ? EMSGSIZE : 0;
  }
  if (wr.opcode != IBV_WR_TSO) return EINVAL;
  if (wr.tso.hdr == nullptr || wr.tso.hdr_sz > wire::kMaxHeaderBytes || wr.tso.mss == 0) return EINVAL;
  return bytes + wr.tso.hdr_sz > kMaxTsoBytes ? EMSGSIZE : 0;
}

[[gnu::always_inline]] inline bool PacketSender::may_read(const ibv_send_wr& wr) const {
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) return true;
  return std::ranges::all_of(sges_of(wr), [this](const ibv_sge& sge) {
    return sge.length == 0 || keys_.covers(sge.lkey, queue_pair_.pd, sge.addr, sge.length, 0);
  });
}

inline void PacketSender::count(std::size_t packets, std::size_t bytes) {
  packets_.fetch_add(packets, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

[[gnu::always_inline]] inline void PacketSender::finish(const ibv_send_wr& wr, std::size_t bytes) {
  count(1, bytes);
  if (signal_all_ || (wr.send_flags & IBV_SEND_SIGNALED) != 0) complete(wr, IBV_WC_SUCCESS);
}

int PacketSender::send_batch(OutgoingBatch& batch, ibv_send_wr*& failed) {
  std::size_t done = 0;
  const std::span<const OutgoingFrame> frames = batch.frames();
  while (done < frames.size()) {
    const auto sent = ring_.send(frames.subspan(done));
    if (!sent) {
      failed = &batch.request(done);
      return failure(sent.error().code);
    }
    for (const std::size_t end = done + *sent; done < end; ++done) finish(batch.request(done), batch.bytes(done));
  }
  batch.clear();
  return 0;
}

/// Translates an error of the ring into the result of post_send().
int PacketSender::failure(int code) {
  if (code == ENODEV) device_.interface_is_gone();
  return code == EAGAIN ? ENOMEM : code;  // a full socket stands for a full send queue
}

PacketSender::Outcome PacketSender::send_some(ibv_send_wr* wr) {
  OutgoingBatch batch;
  Outcome out{.next = wr};
  ibv_send_wr*& next = out.next;
  for (; next != nullptr && !batch.full(); next = next->next) {
    out.error = check(*next);
    if (out.error != 0) break;
    out.is_denied = !may_read(*next);
    if (out.is_denied) break;
    const bool alone = next->opcode == IBV_WR_TSO && must_segment(*next);
    if (alone && !batch.empty()) break;
    out.error = alone ? send_segments(*next) : batch.add(*next);
    if (out.error != 0) break;
  }
  // The requests before an invalid one are sent first.
  if (ibv_send_wr* failed = nullptr; const int error = send_batch(batch, failed)) return {error, failed, false};
  return out;
}

/// Sends a datagram that does not fit into its room.
int PacketSender::send_in_parts(const iovec& head, std::span<const iovec> payload) {
  std::array<iovec, 1 + kMaxPacketSge> parts;
  parts[0] = head;
  std::ranges::copy(payload, parts.begin() + 1);
  std::size_t bytes = head.iov_len - sizeof(virtio_net_hdr);
  for (const iovec& part : payload) bytes += part.iov_len;
  if (bytes > kMaxTsoBytes) return EMSGSIZE;
  const OutgoingFrame frame(parts.data(), 1 + payload.size());
  if (const auto sent = ring_.send({&frame, 1}); !sent) return failure(sent.error().code);
  count(1, bytes);
  return 0;
}

bool PacketSender::must_segment(const ibv_send_wr& wr) const {
  if (device_.kernel_segments_udp()) return false;
  const auto layout = wire::parse_headers({static_cast<const std::byte*>(wr.tso.hdr), wr.tso.hdr_sz}, wr.tso.hdr_sz);
  return layout && !layout->is_tcp();
}

int PacketSender::send_segments(const ibv_send_wr& wr) {
  std::vector<std::byte> packet(wr.tso.hdr_sz + length_of(sges_of(wr)));
  std::memcpy(packet.data(), wr.tso.hdr, wr.tso.hdr_sz);
  gather(sges_of(wr), 0, packet.size() - wr.tso.hdr_sz, packet.data() + wr.tso.hdr_sz);
  const auto layout = wire::parse_headers(packet, packet.size());
  if (!layout || layout->payload != wr.tso.hdr_sz) return EINVAL;
  virtio_net_hdr offload{};
  offload.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
  offload.csum_start = layout->transport;
  offload.csum_offset = static_cast<std::uint16_t>(layout->checksum_offset());
  PacketSegments segments({packet.data(), layout->payload}, *layout, wr.tso.mss);
  do {
    const PacketSegments::Segment segment = segments.next();
    std::array<std::byte, sizeof offload + wire::kMaxHeaderBytes> head;
    std::memcpy(head.data(), &offload, sizeof offload);
    std::memcpy(head.data() + sizeof offload, segment.headers.data(), segment.headers.size());
    const std::array<iovec, 2> parts{iovec{head.data(), sizeof offload + segment.headers.size()},
                                     iovec{packet.data() + segment.payload_at, segment.payload_bytes}};
    const OutgoingFrame frame(parts);
    if (const auto sent = ring_.send({&frame, 1}); !sent) return failure(sent.error().code);
  } while (!segments.done());
  finish(wr, packet.size());
  return 0;
}

void PacketSender::complete(const ibv_send_wr& wr, ibv_wc_status status) {
  const PacketCompletion completion{.wr_id = wr.wr_id,
                                    .wallclock_ns = 0,
                                    .byte_len = 0,
                                    .qp_num = queue_pair_.qp_num,
                                    .status = status,
                                    .opcode = wr.opcode == IBV_WR_TSO ? IBV_WC_TSO : IBV_WC_SEND,
                                    .vendor_err = 0,
                                    .wc_flags = 0};
  if (PacketCompletionQueue::of(*queue_pair_.send_cq).push(completion)) return;
  ibv_async_event event{};
  event.element.cq = queue_pair_.send_cq;
  event.event_type = IBV_EVENT_CQ_ERR;
  device_.raise(event);
}

void PacketSender::flush(const ibv_send_wr* wr) {
  for (; wr != nullptr; wr = wr->next) complete(*wr, IBV_WC_WR_FLUSH_ERR);
}

[[gnu::always_inline]] inline int PacketSender::send_datagram(DatagramRoom& room, std::size_t header_bytes,
                                                              std::span<const iovec> payload) {
  if (payload.size() > kMaxPacketSge || header_bytes > wire::kMaxHeaderBytes) return EINVAL;
  virtio_net_hdr offload{};
  offload.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
  offload.csum_start = static_cast<std::uint16_t>(header_bytes - sizeof(wire::UdpHeader));
  offload.csum_offset = offsetof(wire::UdpHeader, checksum);
  std::byte* const head = room.bytes_.data();
  std::memcpy(head, &offload, sizeof offload);
  const std::size_t head_bytes = sizeof offload + header_bytes;
  if (payload.size() == 1 && payload[0].iov_len <= DatagramRoom::kSmallPayload) [[likely]] {
    if (payload[0].iov_len != 0) std::memcpy(head + head_bytes, payload[0].iov_base, payload[0].iov_len);
    const iovec whole{head, head_bytes + payload[0].iov_len};
    if (const Status sent = ring_.send_piece(whole); !sent) [[unlikely]]
      return failure(sent.error().code);
    count(1, whole.iov_len - sizeof offload);
    return 0;
  }
  return send_in_parts({head, head_bytes}, payload);
}

int PacketQueuePair::send_datagram(DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) {
  if (current_state() != IBV_QPS_RTS) [[unlikely]]
    return current_state() == IBV_QPS_ERR ? ENODEV : EINVAL;
  return sender_.send_datagram(room, header_bytes, payload);
}

/// Not by send_datagram() with an argument: that would make each send longer.
int PacketSender::rehearse_datagram(DatagramRoom& room, std::size_t header_bytes,
                                    std::span<const iovec> payload) const {
  if (payload.size() > kMaxPacketSge || header_bytes > wire::kMaxHeaderBytes) return EINVAL;
  const virtio_net_hdr offload{};
  std::memcpy(room.bytes_.data(), &offload, sizeof offload);
  const auto place = std::span(room.bytes_).subspan(sizeof offload + header_bytes);
  for (const iovec& part : payload) {
    const std::size_t bytes = std::min({part.iov_len, place.size(), DatagramRoom::kSmallPayload});
    if (bytes != 0) std::memcpy(place.data(), part.iov_base, bytes);
  }
  // The compiler must not leave the copies out because nobody reads them.
  asm volatile("" : : "r"(room.bytes_.data()) : "memory");
  __builtin_prefetch(&ring_);
  __builtin_prefetch(&packets_, 1);
  return 0;
}

int PacketQueuePair::rehearse_datagram(DatagramRoom& room, std::size_t header_bytes, std::span<const iovec> payload) {
  if (current_state() != IBV_QPS_RTS) return current_state() == IBV_QPS_ERR ? ENODEV : EINVAL;
  return sender_.rehearse_datagram(room, header_bytes, payload);
}

int PacketQueuePair::post_send(ibv_send_wr* wr, ibv_send_wr** bad) {
  while (wr != nullptr) {
    const ibv_qp_state now = current_state();
    if (now == IBV_QPS_ERR) {
      sender_.flush(wr);
      return 0;
    }
    const auto sent = now == IBV_QPS_RTS ? sender_.send_some(wr) : PacketSender::Outcome{EINVAL, wr, false};
    if (sent.error != 0) {
      *bad = sent.next;
      return sent.error;
    }
    wr = sent.next;
    if (sent.is_denied) {
      sender_.complete(*wr, IBV_WC_LOC_PROT_ERR);
      enter_error();
      wr = wr->next;
    }
  }
  return 0;
}

}  // namespace ringsock::soft
