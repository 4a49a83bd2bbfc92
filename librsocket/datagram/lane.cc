#include "librsocket/datagram/lane.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "librsocket/io_vector.h"

namespace ringsock::rs {

Result<std::unique_ptr<Lane>> Lane::open(verbs::Device& device, std::uint32_t slots) {
  if (device.traits().max_inline_data < wire::kRsSlotBytes) return Error{EOPNOTSUPP, "datagrams: inline data"};
  std::unique_ptr<Lane> lane(new Lane(device, slots));
  if (Status made = lane->make_queues(slots); !made) return made.error();
  if (Status made = lane->make_queue_pair(slots); !made) return made.error();
  return lane;
}

Status Lane::make_queues(std::uint32_t slots) {
  auto pd = device_.alloc_pd();
  if (!pd) return pd.error();
  pd_ = std::move(*pd);
  auto channel = device_.create_comp_channel();
  if (!channel) return channel.error();
  channel_ = std::move(*channel);
  auto receive_cq = device_.create_cq(static_cast<int>(slots), nullptr, channel_.get(), 0);
  if (!receive_cq) return receive_cq.error();
  receive_cq_ = std::move(*receive_cq);
  auto send_cq = device_.create_cq(1, nullptr, nullptr, 0);
  if (!send_cq) return send_cq.error();
  send_cq_ = std::move(*send_cq);
  auto mr = device_.reg_mr(*pd_, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE);
  if (!mr) return mr.error();
  mr_ = std::move(*mr);
  return ok();
}

Status Lane::make_queue_pair(std::uint32_t slots) {
  ibv_qp_init_attr attr{};
  attr.send_cq = send_cq_.get();
  attr.recv_cq = receive_cq_.get();
  attr.qp_type = IBV_QPT_UD;
  attr.cap = {.max_send_wr = 1,
              .max_recv_wr = slots,
              .max_send_sge = 4,
              .max_recv_sge = 1,
              .max_inline_data = wire::kRsSlotBytes};
  auto qp = device_.create_qp(*pd_, attr);
  if (!qp) return qp.error();
  qp_ = std::move(*qp);
  device_.ud().use_rings(*qp_);
  most_parts_ = std::min<std::uint32_t>(attr.cap.max_send_sge, kMostParts);
  Status made = go_to(IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  for (std::uint32_t slot = 0; made && slot < slots; ++slot) made = post(slot);
  if (made) made = go_to(IBV_QPS_RTR, IBV_QP_STATE);
  if (made) made = go_to(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN);
  return made;
}

Status Lane::go_to(ibv_qp_state state, int mask) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  attr.port_num = 1;
  attr.qkey = wire::kRsUdQkey;
  return device_.modify_qp(*qp_, attr, mask);
}

Result<verbs::Ah> Lane::make_handle(const SocketAddress& destination) {
  auto path = device_.ud().path_to(destination);
  if (!path) return path.error();
  return device_.create_ah(*pd_, *path);
}

Status Lane::post(std::uint32_t slot) {
  ibv_sge sge{reinterpret_cast<std::uint64_t>(memory_.data() + slot * kSlotBytes), kSlotBytes, mr_->lkey};
  ibv_recv_wr request{slot, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(qp_.get(), &request, &bad); error != 0) return Error{error, "ibv_post_recv"};
  ++posted_;
  return ok();
}

/// A slot that cannot be posted is lost, which only happens when the queue pair has failed.
void Lane::give_back(std::uint32_t slot) { static_cast<void>(post(slot)); }

namespace {
ibv_sge sge_of(const void* data, std::size_t bytes) {
  return {reinterpret_cast<std::uint64_t>(data), static_cast<std::uint32_t>(bytes), 0};
}
}  // namespace

Result<Lane::Outcome> Lane::send(ibv_ah& handle, std::uint32_t qp_number, std::span<const std::byte> header,
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
    if (one.status != IBV_WC_SUCCESS || one.byte_len < kGrhBytes || one.byte_len > kSlotBytes) {
      give_back(slot);
      continue;
    }
    const std::byte* const start = memory_.data() + slot * kSlotBytes + kGrhBytes;
    out[filled++] = {slot, one.src_qp, {start, one.byte_len - kGrhBytes}};
  }
  return filled;
}

int Lane::arm() {
  ibv_req_notify_cq(receive_cq_.get(), 0);
  return channel_->fd;
}

void Lane::woken() {
  while (const auto cq = device_.get_cq_event(*channel_)) device_.ack_cq_events(**cq, 1);
}

}  // namespace ringsock::rs
