// The consumer's doorbell: what it asks the peer for before it sleeps.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/mutex.h"
#include "core/base/ready_map.h"
#include "core/device/shm/link/link.h"
#include "core/device/shm/memory/segment.h"
#include "core/device/shm/queue/completion_queue.h"

namespace ringsock::soft {

/// Whether the peer rings for the next message, or notes it in our map of ready connections. Threads: any; the lock is
/// a leaf.
class Arming {
 public:
  Arming(const InboxView& inbox, CompletionQueue& receive_queue)
      : doorbell_(inbox.doorbell()), producer_(inbox.producer()), queue_(receive_queue) {}

  /// Has the peer ring for the next message. @return whether that takes AsymmetricBarrier::heavy().
  bool arm(ArmKind kind);
  /// Has the peer ring for each message until the next arm(), because this process ends.
  void arm_for_good();
  /// The peer has rung: raises the event of the arming that it has consumed.
  void rung();

  /// verbs::RcExtensions::list_at() and unlist().
  Listing list_at(const std::shared_ptr<ReadyMap>& map, std::uint32_t place);
  void unlist();
  /// Passes the map to a peer that cannot open it by its name. Called by the thread that drains the link.
  void pass_map(Link* link);

 private:
  Mutex lock_;
  DoorbellLine& doorbell_;
  ProducerLine& producer_;
  CompletionQueue& queue_;
  bool armed_here_ = false;  ///< we set DoorbellLine::armed and have not seen it cleared
  bool owed_ = false;        ///< the arming was consumed, but renewed before the wake packet was read
  std::shared_ptr<ReadyMap> listed_in_;
  unsigned maps_passed_ = 0;
};

}  // namespace ringsock::soft
