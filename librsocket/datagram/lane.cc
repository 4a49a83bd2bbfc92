#include "librsocket/datagram/lane.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "librsocket/io_vector.h"

namespace ringsock::rs {

namespace {

/// The embedded device has the original's slots. On a real device nothing longer than the port's MTU arrives.
std::size_t most_bytes_of(const verbs::Device& device, const verbs::UdPort& port) {
  return device.traits().is_embedded ? wire::kRsSlotBytes : wire::mtu_bytes(port.mtu);
}

std::size_t whole_lines(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Lane::Lane(verbs::Device& device, const verbs::UdPort& port)
    : device_(device),
      port_(port),
      most_bytes_(most_bytes_of(device, port)),
      slot_bytes_(whole_lines(kGrhBytes + most_bytes_)) {}

Result<std::unique_ptr<Lane>> Lane::open(verbs::Device& device, const verbs::UdPort& port, const LaneSizes& sizes) {
  if (device.traits().is_embedded && device.traits().max_inline_data < wire::kRsSlotBytes)
    return Error{EOPNOTSUPP, "datagrams: inline data"};
  std::unique_ptr<Lane> lane(new Lane(device, port));
  if (Status made = lane->make_memory(sizes); !made) return made.error();
  if (Status made = lane->make_queues(sizes); !made) return made.error();
  if (Status made = lane->make_queue_pair(sizes); !made) return made.error();
  if (Status started = lane->start(lane->receives_of(sizes)); !started) return started.error();
  return lane;
}

std::uint32_t Lane::receives_of(const LaneSizes& sizes) const {
  return sizes.receives + (is_embedded() ? 0 : kSpareReceives);
}

Status Lane::make_memory(const LaneSizes& sizes) {
  const std::size_t slots = receives_of(sizes) + (is_embedded() ? 0 : sizes.sends);
  auto memory = verbs::Pages::allocate(slots * slot_bytes_);
  if (!memory) return memory.error();
  memory_ = std::move(*memory);
  auto pd = device_.alloc_pd();
  if (!pd) return pd.error();
  pd_ = std::move(*pd);
  auto mr = device_.reg_mr(*pd_, memory_.bytes().data(), slots * slot_bytes_, IBV_ACCESS_LOCAL_WRITE);
  if (!mr) return mr.error();
  mr_ = std::move(*mr);
  return ok();
}

Status Lane::make_queues(const LaneSizes& sizes) {
  auto channel = device_.create_comp_channel();
  if (!channel) return channel.error();
  channel_ = std::move(*channel);
  auto receive_cq = device_.create_cq(static_cast<int>(receives_of(sizes)), nullptr, channel_.get(), 0);
  if (!receive_cq) return receive_cq.error();
  receive_cq_ = std::move(*receive_cq);
  auto send_cq = is_embedded() ? device_.create_cq(1, nullptr, nullptr, 0)
                               : device_.create_cq(static_cast<int>(sizes.sends), nullptr, channel_.get(), 0);
  if (!send_cq) return send_cq.error();
  send_cq_ = std::move(*send_cq);
  return ok();
}

Status Lane::make_queue_pair(const LaneSizes& sizes) {
  const std::uint32_t receives = receives_of(sizes);
  ibv_qp_init_attr attr{};
  attr.send_cq = send_cq_.get();
  attr.recv_cq = receive_cq_.get();
  attr.qp_type = IBV_QPT_UD;
  attr.cap = {.max_send_wr = is_embedded() ? 1 : sizes.sends,
              .max_recv_wr = receives,
              .max_send_sge = is_embedded() ? 4U : 1U,
              .max_recv_sge = 1,
              .max_inline_data = is_embedded() ? std::uint32_t{wire::kRsSlotBytes} : kInlineBytes};
  auto qp = device_.create_qp(*pd_, attr);
  if (!qp) return qp.error();
  qp_ = std::move(*qp);
  device_.ud().use_rings(*qp_);
  most_parts_ = std::min<std::uint32_t>(attr.cap.max_send_sge, kMostParts);
  if (is_embedded()) return ok();
  const SlotSends::Memory memory{memory_.bytes().subspan(receives * slot_bytes_, sizes.sends * slot_bytes_),
                                 slot_bytes_, mr_->lkey};
  slot_sends_.emplace(*qp_, *send_cq_, memory, attr.cap.max_inline_data);
  return ok();
}

Status Lane::start(std::uint32_t receives) {
  Status made = go_to(IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  for (std::uint32_t slot = 0; made && slot < receives; ++slot) made = post(slot);
  if (made) made = go_to(IBV_QPS_RTR, IBV_QP_STATE);
  if (made) made = go_to(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN);
  return made;
}

Status Lane::go_to(ibv_qp_state state, int mask) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  attr.port_num = port_.number;
  attr.pkey_index = port_.pkey_index;
  attr.qkey = wire::kRsUdQkey;
  return device_.modify_qp(*qp_, attr, mask);
}

wire::RsUdpNote Lane::note() const {
  if (is_embedded()) return {};
  wire::RsUdpNote out;
  out.takes_large = true;
  out.is_on_ethernet = port_.is_ethernet;
  out.mtu = static_cast<std::uint8_t>(port_.mtu);
  return out;
}

void Lane::retire(verbs::Ah handle) {
  if (slot_sends_) slot_sends_->retire(std::move(handle));
}

void Lane::finish_sends() {
  constexpr int kLooks = 20;
  for (int i = 0; i < kLooks && slot_sends_ && !slot_sends_->has_failed(); ++i) {
    slot_sends_->reap();
    if (slot_sends_->is_idle()) return;
    pollfd one{arm(true), POLLIN, 0};
    slot_sends_->reap();
    if (slot_sends_->is_idle()) return;
    ::poll(&one, 1, 1);
    woken();
  }
}

Status Lane::post(std::uint32_t slot) {
  ibv_sge sge{reinterpret_cast<std::uint64_t>(memory_.bytes().data() + slot * slot_bytes_),
              static_cast<std::uint32_t>(slot_bytes_), mr_->lkey};
  ibv_recv_wr request{slot, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(qp_.get(), &request, &bad); error != 0) return Error{error, "ibv_post_recv"};
  ++posted_;
  return ok();
}

/// A slot that cannot be posted is lost.
void Lane::give_back(std::uint32_t slot) {
  if (!post(slot)) has_failed_ = true;
}

namespace {
ibv_sge sge_of(const void* data, std::size_t bytes) {
  return {reinterpret_cast<std::uint64_t>(data), static_cast<std::uint32_t>(bytes), 0};
}
}  // namespace

Result<Lane::Outcome> Lane::send(ibv_ah& handle, std::uint32_t qp_number, std::span<const std::byte> header,
                                 std::span<const iovec> parts) {
  if (!slot_sends_) return send_inline(handle, qp_number, header, parts);
  IoCursor data(parts);
  Status sent = slot_sends_->send(handle, qp_number, header, data, most_bytes_ - header.size());
  if (!sent) return sent.error();
  return Outcome::sent;
}

Result<Lane::Outcome> Lane::send_inline(ibv_ah& handle, std::uint32_t qp_number, std::span<const std::byte> header,
                                        std::span<const iovec> parts) {
  int count = 0;
  sges_[static_cast<std::size_t>(count++)] = sge_of(header.data(), header.size());
  if (parts.size() < most_parts_) {
    for (const iovec& part : parts) sges_[static_cast<std::size_t>(count++)] = sge_of(part.iov_base, part.iov_len);
  } else {
    std::size_t bytes = 0;
    for (IoCursor from(parts); !from.done() && bytes < scratch_.size();) {
      const auto piece = from.take(scratch_.size() - bytes);
      std::memcpy(scratch_.data() + bytes, piece.data(), piece.size());
      bytes += piece.size();
    }
    sges_[static_cast<std::size_t>(count++)] = sge_of(scratch_.data(), bytes);
  }
  ibv_send_wr request{};
  request.sg_list = sges_.data();
  request.num_sge = count;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
  request.wr.ud = {&handle, qp_number, wire::kRsUdQkey};
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(qp_.get(), &request, &bad) != 0) return Error{EIO, "ibv_post_send"};
  return outcome();
}

Result<Lane::Outcome> Lane::outcome() {
  ibv_wc done{};
  if (ibv_poll_cq(send_cq_.get(), 1, &done) != 1 || done.status != IBV_WC_SUCCESS) return Error{EIO, "ud: send"};
  switch (done.vendor_err) {
    case verbs::kVendorErrNobody: return Outcome::nobody;
    case verbs::kVendorErrFull: return Outcome::full;
    default: return Outcome::sent;
  }
}

std::size_t Lane::poll(std::span<Came> out) {
  constexpr std::size_t kAtOnce = 16;
  std::array<ibv_wc, kAtOnce> done;
  const std::size_t most = std::min<std::size_t>({out.size(), posted_, kAtOnce});
  if (most == 0) return 0;
  const int got = ibv_poll_cq(receive_cq_.get(), static_cast<int>(most), done.data());
  std::size_t filled = 0;
  for (int i = 0; i < got; ++i) {
    const ibv_wc& one = done[static_cast<std::size_t>(i)];
    const auto slot = static_cast<std::uint32_t>(one.wr_id);
    --posted_;
    if (one.status == IBV_WC_WR_FLUSH_ERR) {
      has_failed_ = true;
      continue;
    }
    if (one.status != IBV_WC_SUCCESS || one.byte_len < kGrhBytes || one.byte_len > slot_bytes_) {
      give_back(slot);
      continue;
    }
    const std::byte* const start = memory_.bytes().data() + slot * slot_bytes_ + kGrhBytes;
    out[filled++] = {slot, one.src_qp, {start, one.byte_len - kGrhBytes}};
  }
  return filled;
}

int Lane::arm(bool for_room) {
  ibv_req_notify_cq(receive_cq_.get(), 0);
  if (for_room && slot_sends_) ibv_req_notify_cq(send_cq_.get(), 0);
  return channel_->fd;
}

/// On the embedded device one queue has events, of which one is due at most.
void Lane::woken() {
  while (const auto cq = device_.get_cq_event(*channel_)) {
    device_.ack_cq_events(**cq, 1);
    if (is_embedded()) return;
  }
}

}  // namespace ringsock::rs
