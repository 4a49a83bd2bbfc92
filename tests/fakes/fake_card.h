// A network card: raw packet queue pairs whose line is the test's. It may drop, delay and reorder what it sends and
// receives, lose its checksum unit, and run out of places.
#pragma once

#include <infiniband/verbs.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/base/unique_fd.h"
#include "tests/fakes/fake_device.h"

namespace ringsock::fakes {

/// One queue pair. Threads: one.
class FakeCard final : public FakeDevice {
 public:
  using Frame = std::vector<std::byte>;

  FakeCard() : FakeDevice("fake card", {.max_inline_data = 128}) {
    ibv_context& context = verbs_.context;
    context.ops.poll_cq = [](ibv_cq* cq, int count, ibv_wc* out) { return of(cq->context).poll(*cq, count, out); };
    context.ops.post_send = [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
      return of(qp->context).post_send(wr, bad);
    };
    context.ops.post_recv = [](ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
      return of(qp->context).post_receive(wr, bad);
    };
    context.ops.req_notify_cq = [](ibv_cq* cq, int) {
      ++of(cq->context).armed;
      return 0;
    };
    context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    verbs_.sz = sizeof verbs_;
    verbs_.ibv_create_flow = [](ibv_qp* qp, ibv_flow_attr*) -> ibv_flow* {
      FakeCard& card = of(qp->context);
      if (card.flows == card.most_flows) {
        errno = ENOSPC;
        return nullptr;
      }
      ++card.flows;
      auto* const flow = new ibv_flow{};
      flow->context = qp->context;
      return flow;
    };
    verbs_.ibv_destroy_flow = [](ibv_flow* flow) {
      --of(flow->context).flows;
      delete flow;
      return 0;
    };
  }

  // -- what the test does
  /// A frame comes from the line. False: no receive was posted, it is lost.
  bool receive(std::span<const std::byte> frame, unsigned wc_flags = 0) {
    if (receives_.empty()) return false;
    const Posted posted = receives_.front();
    receives_.pop_front();
    const bool fits = frame.size() <= posted.bytes;
    if (fits) std::memcpy(posted.to, frame.data(), frame.size());
    ibv_wc done{};
    done.wr_id = posted.id;
    done.status = fits ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR;
    done.byte_len = static_cast<std::uint32_t>(frame.size());
    done.wc_flags = wc_flags;
    received_.push_back(done);
    return true;
  }
  /// Completions of receives come the other way round.
  void reorder_received() { std::reverse(received_.begin(), received_.end()); }
  /// Everything that was posted leaves, and completions tell.
  void send_all() {
    for (Sending& one : sending_) {
      Frame frame = std::move(one.copied);
      for (const ibv_sge& piece : one.pieces) {
        if (one.is_inline) break;  // its memory is the caller's again
        const auto* const from = reinterpret_cast<const std::byte*>(piece.addr);
        frame.insert(frame.end(), from, from + piece.length);
      }
      line.push_back({std::move(frame), one.flags});
      if ((one.flags & IBV_SEND_SIGNALED) == 0) continue;
      ibv_wc done{};
      done.wr_id = one.id;
      sent_.push_back(done);
    }
    sending_.clear();
  }
  [[nodiscard]] std::size_t posted_receives() const { return receives_.size(); }
  [[nodiscard]] std::size_t under_way() const { return sending_.size(); }

  struct Sent {
    Frame frame;
    unsigned flags;
  };
  std::vector<Sent> line;            ///< what has left
  std::size_t most_sends = 1000;     ///< that wait; then ENOMEM
  std::size_t most_receives = 1000;  ///< posted; then ENOMEM
  bool delays_sends = false;         ///< until send_all()
  int flows = 0, most_flows = 100, armed = 0;
  int wrong_keys = 0;  ///< pieces of requests that are in no registered memory

  // -- verbs::Device
  ibv_context& context() override { return verbs_.context; }
  Result<ibv_device_attr> query_device() override {
    ibv_device_attr out{};
    out.max_sge = 4;
    return out;
  }
  Result<verbs::CompChannel> create_comp_channel() override {
    fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return verbs::CompChannel(*this, new ibv_comp_channel{&context(), fd_.get(), 0});
  }
  Result<verbs::Cq> create_cq(int, void*, ibv_comp_channel* channel, int) override {
    auto* const cq = new ibv_cq{};
    cq->context = &context();
    cq->channel = channel;
    return verbs::Cq(*this, cq);
  }
  Result<ibv_cq*> get_cq_event(ibv_comp_channel&) override { return Error{EAGAIN, "get_cq_event"}; }
  Result<verbs::Qp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr) override {
    auto* const qp = new ibv_qp{};
    qp->context = &context();
    qp->pd = &pd;
    receive_cq_ = attr.recv_cq;
    return verbs::Qp(*this, qp);
  }
  Status modify_qp(ibv_qp&, ibv_qp_attr& attr, int) override {
    if (attr.qp_state == IBV_QPS_ERR) flush();
    return ok();
  }
  int destroy_comp_channel(ibv_comp_channel* channel) override {
    delete channel;
    return 0;
  }
  int destroy_cq(ibv_cq* cq) override {
    delete cq;
    return 0;
  }
  int destroy_qp(ibv_qp* qp) override {
    delete qp;
    return 0;
  }

 private:
  struct Posted {
    std::uint64_t id;
    std::byte* to;
    std::size_t bytes;
  };
  struct Sending {
    std::uint64_t id;
    unsigned flags;
    bool is_inline;
    Frame copied;
    std::vector<ibv_sge> pieces;
  };

  static FakeCard& of(ibv_context* context) {
    auto* const verbs =
        reinterpret_cast<verbs_context*>(reinterpret_cast<std::byte*>(context) - offsetof(verbs_context, context));
    return *reinterpret_cast<Verbs*>(verbs)->card;
  }

  int post_send(ibv_send_wr* wr, ibv_send_wr** bad) {
    for (; wr != nullptr; wr = wr->next) {
      *bad = wr;
      const std::span pieces(wr->sg_list, static_cast<std::size_t>(wr->num_sge));
      Sending out{.id = wr->wr_id,
                  .flags = wr->send_flags,
                  .is_inline = (wr->send_flags & IBV_SEND_INLINE) != 0,
                  .copied = {},
                  .pieces = {pieces.begin(), pieces.end()}};
      for (const ibv_sge& piece : pieces) {
        const auto* const from = reinterpret_cast<const std::byte*>(piece.addr);
        if (out.is_inline) out.copied.insert(out.copied.end(), from, from + piece.length);
        if (!out.is_inline && piece.lkey == 0) ++wrong_keys;
      }
      if (out.is_inline && out.copied.size() > traits().max_inline_data) return EINVAL;
      if (sending_.size() == most_sends) return ENOMEM;
      sending_.push_back(std::move(out));
    }
    if (!delays_sends) send_all();
    return 0;
  }
  int post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad) {
    for (; wr != nullptr; wr = wr->next) {
      *bad = wr;
      if (receives_.size() == most_receives) return ENOMEM;
      receives_.push_back({wr->wr_id, reinterpret_cast<std::byte*>(wr->sg_list->addr), wr->sg_list->length});
    }
    return 0;
  }
  int poll(ibv_cq& cq, int count, ibv_wc* out) {
    auto& from = &cq == receive_cq_ ? received_ : sent_;
    int got = 0;
    for (; got < count && !from.empty(); ++got) {
      out[got] = from.front();
      from.pop_front();
    }
    return got;
  }
  void flush() {
    for (const Posted& one : receives_) {
      ibv_wc done{};
      done.wr_id = one.id;
      done.status = IBV_WC_WR_FLUSH_ERR;
      received_.push_back(done);
    }
    receives_.clear();
    sending_.clear();
  }

  /// As libibverbs has it: functions in front of the context.
  struct Verbs : verbs_context {
    FakeCard* card;
  } verbs_{{}, this};
  UniqueFd fd_;
  ibv_cq* receive_cq_ = nullptr;
  std::deque<Posted> receives_;
  std::deque<Sending> sending_;
  std::deque<ibv_wc> received_, sent_;
};

}  // namespace ringsock::fakes
