// Receiving of the raw packet queue pair: from the ring to the caller, or into posted receives.
#include <cerrno>

#include "core/device/common/key_table.h"
#include "core/device/common/scatter_gather.h"
#include "core/device/packet/packet_queue_pair.h"
#include "core/device/packet/packet_reader_inline.h"

namespace ringsock::soft {

const ReceivedPacket* PacketQueuePair::take_packet(std::size_t room) {
  if (!may_receive()) [[unlikely]]
    return nullptr;
  const ReceivedPacket* const packet = reader_.show(room);
  if (packet != nullptr) reader_.count_received(*packet);
  return packet;
}

[[gnu::always_inline]] inline bool PacketQueuePair::may_write(const PostedReceive& receive) const {
  for (const ibv_sge& sge : std::span(receive.sges, receive.sge_count)) {
    if (sge.length != 0 && !keys_.covers(sge.lkey, pd, sge.addr, sge.length, IBV_ACCESS_LOCAL_WRITE)) return false;
  }
  return true;
}

/// Completes the oldest receive. Returns false when the packet is dropped because it is longer than the receive.
[[gnu::always_inline]] inline bool PacketQueuePair::complete_receive(const ReceivedPacket& packet,
                                                                     PacketCompletion& out) {
  const PostedReceive receive = receives_.front();
  const std::span sges(receive.sges, receive.sge_count);
  if (length_of(sges) < packet.layout.end) {
    reader_.count_too_long();
    return false;
  }
  out = {.wr_id = receive.wr_id,
         .wallclock_ns = packet.wallclock_ns,
         .byte_len = packet.layout.end,
         .qp_num = qp_num,
         .status = IBV_WC_SUCCESS,
         .opcode = IBV_WC_RECV,
         .vendor_err = 0,
         .wc_flags = IBV_WC_IP_CSUM_OK};
  const bool may = may_write(receive);
  if (may) [[likely]] {
    scatter(packet.headers.data(), sges, 0, packet.headers.size());
    scatter(packet.payload.data(), sges, packet.headers.size(), packet.payload.size());
  }
  receives_.pop();
  if (!may) [[unlikely]] {
    out.status = IBV_WC_LOC_PROT_ERR;
    enter_error();
    return true;
  }
  reader_.count_received(packet);
  return true;
}

[[gnu::always_inline]] inline bool PacketQueuePair::receive_one(PacketCompletion& out) {
  while (!receives_.empty()) {
    const PostedReceive receive = receives_.front();
    const ReceivedPacket* const packet = reader_.show(total_length(receive.sges, receive.sge_count));
    if (packet == nullptr) return false;
    const bool is_complete = complete_receive(*packet, out);
    reader_.release();
    if (is_complete) return true;
  }
  return false;
}

int PacketQueuePair::poll_receives(int count, PacketCompletion* out) {
  if (current_state() == IBV_QPS_ERR) return flush_receives(count, out);
  int got = 0;
  if (!may_receive()) return got;
  while (got < count && receive_one(out[got])) ++got;
  return got;
}

int PacketQueuePair::flush_receives(int count, PacketCompletion* out) {
  int got = 0;
  for (; got < count && !receives_.empty(); ++got) {
    out[got] = {.wr_id = receives_.front().wr_id,
                .wallclock_ns = 0,
                .byte_len = 0,
                .qp_num = qp_num,
                .status = IBV_WC_WR_FLUSH_ERR,
                .opcode = IBV_WC_RECV,
                .vendor_err = 0,
                .wc_flags = 0};
    receives_.pop();
  }
  return got;
}

}  // namespace ringsock::soft
