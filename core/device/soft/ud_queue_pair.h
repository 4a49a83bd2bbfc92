// The UD queue pair: a datagram socket whose name is the queue pair's number.
#pragma once

#include <infiniband/verbs.h>

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/device/soft/queue_pair.h"
#include "core/device/soft/receive_queue.h"
#include "core/device/soft/ud_wire.h"

namespace ringsock::soft {

/// Datagrams travel over AF_UNIX SOCK_DGRAM sockets with abstract names, so a number is unique in the network namespace
/// and the kernel tells who sends: only the same user and root are heard. The device is one host, so an address handle
/// only has to be valid; its GID comes out at the receiver as the GRH's. A datagram is lost when the receiver has no
/// receive posted that it fits in, when its socket is full (net.unix.max_dgram_qlen, usually 10), when the qkey is
/// wrong, or when nobody has the number. Locks: everything under the gate's, which is a leaf but for the completion
/// queues' leaves.
class UdQueuePair final : public QueuePair {
 public:
  /// In state RESET. Errors: those of socket(2), EINVAL capacities.
  static Result<std::unique_ptr<UdQueuePair>> create(SoftDevice& device, ibv_pd& pd, ibv_qp_init_attr& attr);
  ~UdQueuePair() override;

  int post_send(ibv_send_wr* wr, ibv_send_wr** bad) override;
  int post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad) override;
  Status modify(ibv_qp_attr& attr, int mask) override;
  void query(ibv_qp_attr& attr) override;
  int poll_receives(int count, ibv_wc* wc) override;
  void push_sends() override {}
  void publish() override {}
  bool arm(CompletionQueue& queue, ArmKind kind) override;
  std::shared_ptr<Link> link() override { return nullptr; }

 private:
  /// Outlives the queue pair for a completion channel that is just calling.
  struct Gate {
    Mutex lock;
    UdQueuePair* queue_pair = nullptr;
  };

  UdQueuePair(SoftDevice& device, ibv_pd& pd, const ibv_qp_init_attr& attr);
  Status open_socket();
  Status watch_socket();

  // All under the gate's lock.
  int post_one(const ibv_send_wr& wr);
  ibv_wc_status send(const ibv_send_wr& wr);
  [[nodiscard]] bool may_read(const ibv_send_wr& wr) const;
  void complete(const ibv_send_wr& wr, ibv_wc_status status);
  void receive_pending(int limit);
  void receive(const ParsedDatagram& datagram);
  bool take_receive(std::size_t bytes);
  void fill(const ParsedDatagram& datagram);
  [[nodiscard]] bool may_write(const PostedReceive& receive) const;
  void finish_receive(const ibv_wc& wc, bool solicited);
  int flush_receives(int count, ibv_wc* wc);
  void drop_everything();
  [[nodiscard]] bool hears() const;

  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  UniqueFd socket_;
  std::uint64_t watch_ = 0;  ///< of the receive queue's completion channel; 0: none
  ibv_qp_attr attr_{};
  ArmKind armed_for_ = ArmKind::any;
  ReceiveQueue receives_;
  PostedReceive receive_;          ///< the one being filled
  std::vector<ibv_sge> srq_sges_;  ///< of receive_, when it came from a shared queue
  std::deque<ibv_wc> completed_;   ///< receives that arrived and were not polled
};

}  // namespace ringsock::soft
