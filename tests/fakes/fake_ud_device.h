// A device with UD queue pairs that reach each other, and what a test wants to know and to do about it.
#pragma once

#include <infiniband/verbs.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/verbs/registry.h"
#include "tests/fakes/fake_device.h"

namespace ringsock::fakes {

/// What all devices of a test are attached to. Threads: one.
struct UdLink {
  bool is_ethernet = false;
  ibv_mtu mtu = IBV_MTU_2048;
  bool is_searching = false;              ///< paths are not known yet
  bool holds_completions = false;         ///< of sends
  ibv_wc_status status = IBV_WC_SUCCESS;  ///< of sends; others than success do not arrive

  /// A datagram as it was posted.
  struct Packet {
    std::uint32_t from;
    std::uint32_t to;
    std::uint32_t qkey;
    ibv_ah_attr path;
    std::string bytes;
  };
  std::vector<Packet> sent;
  int live_handles = 0;
  Nanos handles_take{};  ///< to be made

  struct CompletionQueue {
    ibv_cq cq{};
    std::deque<ibv_wc> done;
    bool is_armed = false;
  };
  struct QueuePair {
    ibv_qp qp{};
    std::deque<std::pair<std::uint64_t, ibv_sge>> receives;
    std::deque<ibv_wc> held;
    ibv_qp_attr last{};
  };
  std::map<std::uint32_t, QueuePair*> queue_pairs;
  std::uint32_t next_number = 0x100;

  static CompletionQueue& of(ibv_cq* cq) { return *static_cast<CompletionQueue*>(cq->cq_context); }
  static void complete(ibv_cq* cq, const ibv_wc& what) {
    CompletionQueue& queue = of(cq);
    queue.done.push_back(what);
    if (std::exchange(queue.is_armed, false)) ::eventfd_write(cq->channel->fd, 1);
  }
  /// Puts a datagram into a queue pair's receive, or loses it. `from` is the number that the receiver sees.
  void deliver(std::uint32_t from, std::uint32_t to, const std::string& bytes) {
    const auto found = queue_pairs.find(to);
    if (found == queue_pairs.end() || found->second->receives.empty()) return;
    const auto [id, sge] = found->second->receives.front();
    found->second->receives.pop_front();
    ibv_wc wc{};
    wc.wr_id = id;
    wc.byte_len = static_cast<std::uint32_t>(sizeof(ibv_grh) + bytes.size());
    wc.src_qp = from;
    wc.status = wc.byte_len > sge.length ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
    if (wc.status == IBV_WC_SUCCESS)
      std::memcpy(reinterpret_cast<char*>(sge.addr) + sizeof(ibv_grh), bytes.data(), bytes.size());
    complete(found->second->qp.recv_cq, wc);
  }
  void release_completions() {
    holds_completions = false;
    for (auto& [number, qp] : queue_pairs) {
      for (const ibv_wc& wc : qp->held) complete(qp->qp.send_cq, wc);
      qp->held.clear();
    }
  }
};

/// Ports and paths: LIDs are the last byte of an address. All addresses are on the only port.
class FakeUdExtensions final : public verbs::UdExtensions {
 public:
  explicit FakeUdExtensions(UdLink& link) : link_(link) {}
  Result<verbs::UdPort> port_of(const SocketAddress& /*local*/) override {
    verbs::UdPort out;
    out.number = 2;
    out.mtu = link_.mtu;
    out.is_ethernet = link_.is_ethernet;
    return out;
  }
  Result<ibv_ah_attr> path_to(const verbs::UdPort& port, const SocketAddress& /*local*/,
                              const SocketAddress& destination, std::unique_ptr<verbs::UdPathSearch>& search) override {
    if (link_.is_searching) {
      if (!search) search = std::make_unique<verbs::UdPathSearch>();
      return Error{EAGAIN, "fake: searching"};
    }
    ibv_ah_attr out{};
    out.dlid = static_cast<std::uint16_t>(ntohl(destination.in4().sin_addr.s_addr) & 0xff);
    out.port_num = port.number;
    return out;
  }
  bool may_exchange(const SocketAddress& /*local*/, const SocketAddress& /*peer*/) override { return true; }

 private:
  UdLink& link_;
};

class FakeUdDevice final : public FakeDevice {
 public:
  explicit FakeUdDevice(UdLink& link)
      : FakeDevice("fake_ud", {.max_inline_data = 64, .works_in_background = true},
                   std::make_unique<FakeUdExtensions>(link)),
        link_(link) {
    ibv_context_ops& ops = context().ops;
    ops.post_send = [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr**) { return of(qp->pd->context).send(*qp, *wr); };
    ops.post_recv = [](ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr**) {
      static_cast<UdLink::QueuePair*>(qp->qp_context)->receives.emplace_back(wr->wr_id, wr->sg_list[0]);
      return 0;
    };
    ops.poll_cq = [](ibv_cq* cq, int count, ibv_wc* out) {
      auto& done = UdLink::of(cq).done;
      int got = 0;
      for (; got < count && !done.empty(); ++got, done.pop_front()) out[got] = done.front();
      return got;
    };
    ops.req_notify_cq = [](ibv_cq* cq, int) {
      UdLink::of(cq).is_armed = true;
      return 0;
    };
    context().abi_compat = this;
  }

  Result<verbs::CompChannel> create_comp_channel() override {
    auto* channel = new ibv_comp_channel{};
    channel->fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return verbs::CompChannel(*this, channel);
  }
  Result<verbs::Cq> create_cq(int, void*, ibv_comp_channel* channel, int) override {
    auto* made = new UdLink::CompletionQueue;
    made->cq.context = &context();
    made->cq.channel = channel;
    made->cq.cq_context = made;
    return verbs::Cq(*this, &made->cq);
  }
  Result<ibv_cq*> get_cq_event(ibv_comp_channel& channel) override {
    eventfd_t events = 0;
    if (::eventfd_read(channel.fd, &events) != 0) return Error{EAGAIN, "fake: no event"};
    return &nobody_;
  }
  Result<verbs::Qp> create_qp(ibv_pd& pd, ibv_qp_init_attr& attr) override {
    auto* made = new UdLink::QueuePair;
    made->qp.context = &context();
    made->qp.pd = &pd;
    made->qp.qp_context = made;
    made->qp.send_cq = attr.send_cq;
    made->qp.recv_cq = attr.recv_cq;
    made->qp.qp_num = link_.next_number++;
    attr.cap.max_inline_data = 64;
    link_.queue_pairs[made->qp.qp_num] = made;
    return verbs::Qp(*this, &made->qp);
  }
  Status modify_qp(ibv_qp& qp, ibv_qp_attr& attr, int mask) override {
    auto& last = static_cast<UdLink::QueuePair*>(qp.qp_context)->last;
    last.qp_state = attr.qp_state;
    if ((mask & IBV_QP_QKEY) != 0) last.qkey = attr.qkey;
    if ((mask & IBV_QP_PORT) != 0) last.port_num = attr.port_num;
    return ok();
  }
  Result<verbs::Ah> create_ah(ibv_pd&, ibv_ah_attr& attr) override {
    ++link_.live_handles;
    std::this_thread::sleep_for(link_.handles_take);
    auto* made = new Handle;
    made->path = attr;
    return verbs::Ah(*this, &made->ah);
  }

  int destroy_comp_channel(ibv_comp_channel* channel) override {
    ::close(channel->fd);
    delete channel;
    return 0;
  }
  int destroy_cq(ibv_cq* cq) override {
    delete &UdLink::of(cq);
    return 0;
  }
  int destroy_qp(ibv_qp* qp) override {
    link_.queue_pairs.erase(qp->qp_num);
    delete static_cast<UdLink::QueuePair*>(qp->qp_context);
    return 0;
  }
  int destroy_ah(ibv_ah* ah) override {
    --link_.live_handles;
    delete reinterpret_cast<Handle*>(ah);
    return 0;
  }

 private:
  struct Handle {
    ibv_ah ah{};
    ibv_ah_attr path{};
  };
  static FakeUdDevice& of(ibv_context* context) { return *static_cast<FakeUdDevice*>(context->abi_compat); }

  int send(ibv_qp& qp, const ibv_send_wr& wr) {
    std::string bytes;
    for (int i = 0; i < wr.num_sge; ++i)
      bytes.append(reinterpret_cast<const char*>(wr.sg_list[i].addr), wr.sg_list[i].length);
    const std::uint32_t to = wr.wr.ud.remote_qpn;
    link_.sent.push_back({qp.qp_num, to, wr.wr.ud.remote_qkey, reinterpret_cast<Handle*>(wr.wr.ud.ah)->path, bytes});
    ibv_wc wc{};
    wc.wr_id = wr.wr_id;
    wc.status = link_.status;
    if (link_.holds_completions) {
      static_cast<UdLink::QueuePair*>(qp.qp_context)->held.push_back(wc);
    } else {
      UdLink::complete(qp.send_cq, wc);
    }
    if (link_.status == IBV_WC_SUCCESS) link_.deliver(qp.qp_num, to, bytes);
    return 0;
  }

  UdLink& link_;
  ibv_cq nobody_{};
};

/// The device reaches the addresses of a network of 256, or all.
class FakeUdProvider final : public verbs::DeviceProvider {
 public:
  static constexpr std::uint32_t kAll = 0;
  explicit FakeUdProvider(UdLink& link, std::uint32_t network = kAll) : link_(link), network_(network) {}
  [[nodiscard]] const char* name() const override { return "fake_ud"; }
  [[nodiscard]] verbs::DeviceKind kind() const override { return verbs::DeviceKind::rdma; }
  bool reaches(const SocketAddress& address) override {
    return network_ == kAll || (ntohl(address.in4().sin_addr.s_addr) & 0xffffff00) == network_;
  }
  Result<std::unique_ptr<verbs::Device>> open() override {
    return std::unique_ptr<verbs::Device>(std::make_unique<FakeUdDevice>(link_));
  }

 private:
  UdLink& link_;
  const std::uint32_t network_;
};

}  // namespace ringsock::fakes
