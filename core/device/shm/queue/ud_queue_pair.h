// The UD queue pair: a datagram socket whose name is the queue pair's number.
#pragma once

#include <infiniband/verbs.h>

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/close_elsewhere.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/device/common/receive_queue.h"
#include "core/device/shm/queue/queue_pair.h"
#include "core/device/shm/queue/ud_routes.h"
#include "core/device/shm/queue/ud_wire.h"

namespace ringsock::soft {

/// Datagrams travel over AF_UNIX SOCK_DGRAM sockets with abstract names, so a number is unique in the network
/// namespace, and the kernel reports the sender: only datagrams of the same user and of root are accepted. The device
/// is one host, so an address handle only has to be valid; the receiver finds its GID in the GRH. A datagram is lost
/// when the receiver has no posted receive of sufficient size, when its socket is full (net.unix.max_dgram_qlen,
/// usually 10), when the qkey is wrong, or when no queue pair has the number. Locks: the gate's lock guards everything;
/// only the completion queues' leaf locks are taken inside it.
class UdQueuePair final : public QueuePair {
 public:
  /// Makes one in state RESET. Errors: those of socket(2), EINVAL capacities.
  static Result<std::unique_ptr<UdQueuePair>> create(DeviceContext& device, ibv_pd& pd, ibv_qp_init_attr& attr);
  ~UdQueuePair() override;

  int post_send(ibv_send_wr* wr, ibv_send_wr** bad) override;
  int post_receive(ibv_recv_wr* wr, ibv_recv_wr** bad) override;
  Status modify(ibv_qp_attr& attr, int mask) override;
  void query(ibv_qp_attr& attr) override;
  int poll_receives(int count, ibv_wc* wc) override;
  void push_sends() override {}
  bool arm(CompletionQueue& queue, ArmKind kind) override;
  std::shared_ptr<Link> link() override { return nullptr; }
  // verbs::UdExtensions
  void use_rings();
  bool open_ring(std::uint32_t number);
  void look_closely();
  void note_heirs();
  bool is_there(std::uint32_t number);
  void leave_to_parent();

 private:
  /// Outlives the queue pair while a completion channel is calling it.
  struct Gate {
    Mutex lock;
    UdQueuePair* queue_pair = nullptr;
  };

  UdQueuePair(DeviceContext& device, ibv_pd& pd, const ibv_qp_init_attr& attr);
  Status open_socket();
  Status watch_socket();

  // All under the gate's lock.
  int post_one(const ibv_send_wr& wr);
  ibv_wc_status send(const ibv_send_wr& wr, std::uint32_t& undelivered);
  ibv_wc_status send_by_socket(const ibv_send_wr& wr, const DatagramHeader& header, std::uint32_t& undelivered);
  bool send_by_ring(const ibv_send_wr& wr, const DatagramHeader& header, std::uint32_t& undelivered);
  [[nodiscard]] bool is_there(UdRoutes::Route& route, std::uint32_t number);
  [[nodiscard]] bool is_gone(std::uint32_t number);
  int send_note(std::uint32_t number, std::uint16_t flag, int memory);
  [[nodiscard]] bool may_read(const ibv_send_wr& wr) const;
  void complete(const ibv_send_wr& wr, ibv_wc_status status, std::uint32_t undelivered);
  void receive_pending(int limit);
  void receive_from_socket(int limit);
  void receive_from_rings(int limit);
  void close_rings();
  void take_note(const DatagramHeader& header, PassedFd memory);
  void receive(const ParsedDatagram& datagram);
  bool take_receive(std::size_t bytes);
  void fill(const ParsedDatagram& datagram);
  [[nodiscard]] bool may_write(const PostedReceive& receive) const;
  void finish_receive(const ibv_wc& wc, bool solicited);
  int flush_receives(int count, ibv_wc* wc);
  void drop_everything();

  bool uses_rings_ = false;
  bool is_closing_ = false;     ///< datagrams are dropped
  bool looks_closely_ = false;  ///< with rings: the next poll reads the socket, too
  unsigned polls_ = 0;
  UdRoutes routes_;
  UdIncoming incoming_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  UniqueFd socket_;
  UniqueFd probe_;           ///< of is_gone()
  std::uint64_t watch_ = 0;  ///< of the receive queue's completion channel; 0: none
  ibv_qp_attr attr_{};
  ArmKind armed_for_ = ArmKind::any;
  ReceiveQueue receives_;
  PostedReceive receive_;          ///< the one being filled
  std::vector<ibv_sge> srq_sges_;  ///< of receive_, when it came from a shared queue
  std::deque<ibv_wc> completed_;   ///< receives that arrived and were not polled
};

}  // namespace ringsock::soft
