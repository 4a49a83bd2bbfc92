// A queue pair that keeps what is posted to it. The test completes it.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace ringsock::fakes {

/// A request as it was posted, each of a list by itself.
struct PostedSend {
  std::uint64_t id;
  ibv_wr_opcode opcode;
  unsigned flags;
  std::uint32_t immediate;  ///< in network order
  std::uint64_t address;    ///< in the peer's memory
  std::uint32_t key;
  std::string payload;
};
struct PostedReceive {
  std::uint64_t id;
  std::uint64_t address;  ///< 0 without memory
  std::uint32_t bytes;
};

/// Threads: one.
class FakeQueuePair {
 public:
  FakeQueuePair() {
    context_.ops.post_send = [](ibv_qp* qp, ibv_send_wr* request, ibv_send_wr**) { return of(*qp).send(request); };
    context_.ops.post_recv = [](ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr**) { return of(*qp).receive(request); };
    qp_.context = &context_;
    qp_.qp_context = this;
  }
  FakeQueuePair(const FakeQueuePair&) = delete;
  FakeQueuePair& operator=(const FakeQueuePair&) = delete;

  [[nodiscard]] ibv_qp& qp() { return qp_; }

  std::vector<PostedSend> sent;
  std::vector<PostedReceive> received;
  int refuses = 0;  ///< the error of all further requests, 0 for none

 private:
  static FakeQueuePair& of(const ibv_qp& qp) { return *static_cast<FakeQueuePair*>(qp.qp_context); }

  int send(const ibv_send_wr* request) {
    for (; request != nullptr && refuses == 0; request = request->next) {
      std::string payload;
      for (int i = 0; i < request->num_sge; ++i) {
        const ibv_sge& piece = request->sg_list[i];
        payload.append(reinterpret_cast<const char*>(piece.addr), piece.length);
      }
      const auto& rdma = request->wr.rdma;
      sent.push_back({request->wr_id, request->opcode, request->send_flags, request->imm_data, rdma.remote_addr,
                      rdma.rkey, payload});
    }
    return refuses;
  }
  int receive(const ibv_recv_wr* request) {
    for (; request != nullptr && refuses == 0; request = request->next) {
      const bool is_bare = request->num_sge == 0;
      received.push_back(
          {request->wr_id, is_bare ? 0 : request->sg_list[0].addr, is_bare ? 0 : request->sg_list[0].length});
    }
    return refuses;
  }

  ibv_context context_{};
  ibv_qp qp_{};
};

}  // namespace ringsock::fakes
