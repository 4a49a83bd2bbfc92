// Carrying out the requests of an RC send queue.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "core/base/clock.h"
#include "core/device/common/key_table.h"
#include "core/device/shm/queue/assist.h"
#include "core/device/shm/queue/outbox.h"
#include "core/device/shm/queue/peer_regions.h"
#include "core/device/shm/queue/rc_attributes.h"
#include "core/verbs/rc_extensions.h"

namespace ringsock::soft {

/// The result of a step of a send.
enum class Step {
  done,     ///< carried out
  unacked,  ///< handed over; complete when SendProgress::ack is acknowledged; later sends may continue
  stalled,  ///< cannot go on now
  failed,   ///< SendProgress::status tells why
  unheard,  ///< carried out, but the bell has found that the peer has gone
};
struct SendProgress {
  std::uint64_t offset = 0;  ///< bytes of the payload that were transferred
  std::uint32_t ack = 0;     ///< number of the acknowledgement that completes it, or the assisted piece under way
  bool piece_out = false;    ///< an assisted piece is under way
  std::uint32_t room = 0;    ///< place of that piece in the payload ring
  std::uint32_t piece_bytes = 0;
  Nanos rnr_deadline{0};
  ibv_wc_status status = IBV_WC_SUCCESS;
};

/// Writes and reads the peer's memory and sends messages, as far as the peer has room. Threads: one at a time.
class SendSteps {
 public:
  SendSteps(const RcAttributes& attributes, const KeyTable& keys, const ibv_pd& domain)
      : attributes_(attributes), keys_(keys), pd_(&domain), regions_(outbox_.fences()) {}

  [[nodiscard]] Outbox& outbox() { return outbox_; }
  [[nodiscard]] PeerRegions& regions() { return regions_; }

  /// Returns whether there is such an operation.
  static bool is_supported(const ibv_send_wr& wr);
  /// Begins the request, or goes on with it where the last call had to stop.
  Step execute(const ibv_send_wr& wr, SendProgress& progress);
  /// verbs::RcExtensions::write_at_once(), when nothing is queued.
  int write_at_once(const verbs::InlineWrite& write);
  int write_pair_at_once(const verbs::WritePair& pair);

 private:
  static Step fail(SendProgress& progress, ibv_wc_status status);
  // rc_send.cc
  Step write(const ibv_send_wr& wr, SendProgress& progress);
  Step send(const ibv_send_wr& wr, SendProgress& progress);
  [[nodiscard]] bool local_memory_ok(const ibv_send_wr& wr, unsigned access) const;
  bool may_send(SendProgress& progress, Step& step);
  // rc_remote.cc
  Step read(const ibv_send_wr& wr, SendProgress& progress);
  Step atomic(const ibv_send_wr& wr, SendProgress& progress);
  Step write_elsewhere(const ibv_send_wr& wr, SendProgress& progress, const PeerRegions::Target& target,
                       std::uint64_t length);
  Step assist(const ibv_send_wr& wr, SendProgress& progress, AssistKind kind, std::uint64_t length);
  bool ask_for_piece(const ibv_send_wr& wr, SendProgress& progress, AssistKind kind, std::uint64_t length);
  void take_answer(const ibv_send_wr& wr, SendProgress& progress, AssistKind kind, std::uint64_t length);

  const RcAttributes& attributes_;
  const KeyTable& keys_;
  const ibv_pd* pd_;
  Outbox outbox_;
  PeerRegions regions_;
};

inline Step SendSteps::execute(const ibv_send_wr& wr, SendProgress& progress) {
  switch (wr.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return write(wr, progress);
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return send(wr, progress);
    case IBV_WR_RDMA_READ: return read(wr, progress);
    default: return atomic(wr, progress);
  }
}

}  // namespace ringsock::soft
