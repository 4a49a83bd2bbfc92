// Two ends of an RC connection of the embedded device, in one process, over a socketpair. No connection manager.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/device/shm/link/link.h"
#include "core/device/shm/queue/rc_wiring.h"
#include "core/device/shm/soft_device.h"
#include "core/verbs/device.h"

namespace ringsock::soft::testing {

/// What a fixture cannot go on without.
template <class T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "fixture: %s: %s\n", result.error().where, std::strerror(result.error().code));
    std::abort();
  }
  return *std::move(result);
}
inline void must(Status status) {
  if (status) return;
  std::fprintf(stderr, "fixture: %s: %s\n", status.error().where, std::strerror(status.error().code));
  std::abort();
}

struct EndOptions {
  std::uint32_t send_wr = 64;
  std::uint32_t receive_wr = 64;
  std::uint32_t sges = 4;
  int cqe = 1024;
  std::size_t arena_bytes = 1 << 20;
  bool srq = false;
  std::uint32_t srq_wr = 64;
  bool signal_all = false;
  bool has_channel = true;  ///< otherwise the link wakes
  bool two_queues = false;  ///< sends and receives complete in different queues
  std::uint8_t rnr_retry = 7;
};

/// One side: a device and everything up to a connected queue pair. Public members: a test's vocabulary.
struct End {
  explicit End(EndOptions wanted = {}) : options(wanted) {
    device = must(SoftDevice::open());
    pd = must(device->alloc_pd());
    channel = must(device->create_comp_channel());
    cq = must(device->create_cq(options.cqe, this, options.has_channel ? channel.get() : nullptr, 0));
    if (options.two_queues) send_cq = must(device->create_cq(options.cqe, this, channel.get(), 0));
    if (options.srq) {
      ibv_srq_init_attr srq_attr{};
      srq_attr.attr.max_wr = options.srq_wr;
      srq_attr.attr.max_sge = options.sges;
      srq = must(device->create_srq(*pd, srq_attr));
    }
  }

  void create(const SpareRoom* room) {
    ibv_qp_init_attr attr{};
    attr.send_cq = options.two_queues ? send_cq.get() : cq.get();
    attr.recv_cq = cq.get();
    attr.srq = srq.get();
    attr.cap.max_send_wr = options.send_wr;
    attr.cap.max_recv_wr = options.receive_wr;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = options.sges;
    attr.qp_type = IBV_QPT_RC;
    attr.sq_sig_all = options.signal_all;
    const RcQueuePair made = must(create_rc_queue_pair(device->shared(), *pd, attr, options.arena_bytes, room));
    qp = verbs::Qp(*device, made.qp);
    if (made.arena_mr != nullptr) arena_mr = verbs::Mr(*device, made.arena_mr);
    arena = {static_cast<std::byte*>(made.arena), options.arena_bytes};
  }

  /// 0 or errno.
  int post_receive(std::uint64_t wr_id, std::vector<ibv_sge> sges = {}) {
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = wr_id;
    wr.sg_list = sges.data();
    wr.num_sge = static_cast<int>(sges.size());
    return srq ? ibv_post_srq_recv(srq.get(), &wr, &bad) : ibv_post_recv(qp.get(), &wr, &bad);
  }
  void post_receives(int count) {
    for (int i = 0; i < count; ++i) {
      if (post_receive(static_cast<std::uint64_t>(i)) != 0) std::abort();
    }
  }
  int post(ibv_send_wr wr, std::vector<ibv_sge> sges) {
    ibv_send_wr* bad = nullptr;
    wr.sg_list = sges.data();
    wr.num_sge = static_cast<int>(sges.size());
    return ibv_post_send(qp.get(), &wr, &bad);
  }
  /// An inline, signalled send of `text`; `to` is an offset in the peer's arena.
  int post_text(ibv_wr_opcode opcode, const std::string& text, const End* peer = nullptr, std::size_t to = 0,
                std::uint32_t imm = 0, unsigned flags = IBV_SEND_SIGNALED) {
    ibv_send_wr wr{};
    wr.wr_id = 1000 + imm;
    wr.opcode = opcode;
    wr.send_flags = flags | IBV_SEND_INLINE;
    wr.imm_data = imm;
    if (peer != nullptr) {
      wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(peer->arena.data() + to);
      wr.wr.rdma.rkey = peer->arena_mr->rkey;
    }
    return post(wr, {{reinterpret_cast<std::uint64_t>(text.data()), static_cast<std::uint32_t>(text.size()), 0}});
  }

  static std::vector<ibv_wc> poll_once(ibv_cq& queue, int count = 16) {
    std::vector<ibv_wc> out(static_cast<std::size_t>(count));
    const int got = ibv_poll_cq(&queue, count, out.data());
    out.resize(static_cast<std::size_t>(std::max(got, 0)));
    return out;
  }
  /// Polls until a completion is there; a test that hangs here has lost one.
  ibv_wc next() { return next(*cq); }
  static ibv_wc next(ibv_cq& queue) {
    const Nanos deadline = monotonic_now() + std::chrono::seconds(20);
    ibv_wc wc{};
    while (ibv_poll_cq(&queue, 1, &wc) == 0) {
      if (monotonic_now() > deadline) {
        std::fprintf(stderr, "no completion came\n");
        std::abort();
      }
    }
    return wc;
  }
  [[nodiscard]] bool channel_readable(int timeout_ms = 0) const {
    pollfd entry{channel->fd, POLLIN, 0};
    return ::poll(&entry, 1, timeout_ms) == 1;
  }
  [[nodiscard]] bool link_readable() const {
    pollfd entry{link->fd(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }
  /// Waits for an event, takes and acknowledges it; nullptr when none comes.
  ibv_cq* next_event(int timeout_ms = 20'000) {
    while (channel_readable(timeout_ms)) {
      if (auto event = device->get_cq_event(*channel)) {
        device->ack_cq_events(**event, 1);
        return *event;
      }
    }
    return nullptr;
  }
  verbs::Mr register_memory(void* memory, std::size_t bytes, int access) {
    return must(device->reg_mr(*pd, memory, bytes, access));
  }
  ibv_qp_state state() {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    must(device->query_qp(*qp, attr, IBV_QP_STATE, init));
    return attr.qp_state;
  }
  Status modify_state(ibv_qp_state to) {
    ibv_qp_attr attr{};
    attr.qp_state = to;
    return device->modify_qp(*qp, attr, IBV_QP_STATE);
  }

  EndOptions options;
  std::unique_ptr<SoftDevice> device;
  verbs::Pd pd;
  verbs::CompChannel channel;
  verbs::Cq cq;
  verbs::Cq send_cq;
  verbs::Srq srq;
  verbs::Qp qp;
  verbs::Mr arena_mr;
  std::span<std::byte> arena;
  std::shared_ptr<Link> link;
};

inline ibv_sge sge_of(const void* memory, std::size_t bytes, std::uint32_t lkey) {
  return {reinterpret_cast<std::uint64_t>(memory), static_cast<std::uint32_t>(bytes), lkey};
}

inline std::pair<UniqueFd, UniqueFd> socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

/// The active side offers a memfd, the passive side takes the spare room in it (or not), both attach.
struct RcPair {
  explicit RcPair(EndOptions active = {}, EndOptions passive = {}) : alice(active), bob(passive) {
    alice.create(nullptr);
    RcWiring& alices = wiring_of(*alice.qp);
    const QueuePairOffer request = alices.offer();
    std::shared_ptr<MappedSegment> at_bob =
        must(map_peer_segment(UniqueFd(::dup(alices.offer_memfd()->get())), request.memory, UINT64_MAX));
    const SpareRoom room{at_bob, request.spare};
    bob.create(&room);
    RcWiring& bobs = wiring_of(*bob.qp);
    const QueuePairOffer reply = bobs.offer();
    std::shared_ptr<MappedSegment> at_alice;
    if ((reply.flags & kOfferHasMemfd) != 0)
      at_alice = must(map_peer_segment(UniqueFd(::dup(bobs.offer_memfd()->get())), reply.memory, UINT64_MAX));
    auto [a, b] = socket_pair();
    alice.link = std::make_shared<Link>(std::move(a));
    bob.link = std::make_shared<Link>(std::move(b));
    const RcWiring::Peer ourselves{{::getpid(), ::getuid()}, ::getpid()};
    must(bobs.attach(request, at_bob, bob.link, ourselves, passive.rnr_retry));
    must(alices.attach(reply, at_alice, alice.link, ourselves, active.rnr_retry));
  }
  End alice, bob;
};

}  // namespace ringsock::soft::testing
