// The flows of packets that rings bring to one socket.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/ethernet/ethernet.h"
#include "core/ethernet/ring.h"
#include "core/verbs/flow_rule.h"
#include "libvmacompat/udp/datagram_queue.h"
#include "libvmacompat/udp/kernel_socket.h"
#include "libvmacompat/udp/polled_rings.h"

namespace ringsock::vma {

/// A flow of packets that comes by a ring.
struct Attachment {
  std::shared_ptr<ethernet::Ring> ring;
  verbs::FlowTuple tuple;
  /// Returns whether this is multicast or broadcast, which the kernel's socket receives, too.
  [[nodiscard]] bool is_group() const { return tuple.destination_mac.has_value(); }
  bool operator==(const Attachment& other) const {
    return ring == other.ring && tuple.destination == other.tuple.destination && tuple.source == other.tuple.source;
  }
};

/// Attaches rings to the socket's queue and detaches them. Datagrams that are queued can still be received. Threads:
/// one at a time, with the socket's setup lock held; the rings' receive locks and the lock of the queue are taken
/// inside.
class AttachedFlows {
 public:
  AttachedFlows(KernelSocket& kernel, PolledRings& rings, ReceiveQueue& queue)
      : kernel_(kernel), rings_(rings), queue_(queue) {}

  /// Attaches the flow unless a rule of libvma.conf leaves it to the kernel. Returns whether it is attached.
  bool attach(const std::shared_ptr<ethernet::Ring>& ring, const verbs::FlowTuple& tuple);
  void detach_where(const std::function<bool(const Attachment&)>& is_meant);
  /// Detaches all of them from a socket that receives nothing any more.
  void end();
  /// Moves the flows to the rings that the choice now names. Groups do not move. Returns whether any flow was moved.
  bool move(ethernet::Ethernet& ethernet);
  /// Has the rings tell times of arrival.
  void want_times();

  [[nodiscard]] bool any() const { return !attachments_.empty(); }
  [[nodiscard]] std::vector<Attachment> groups() const;
  /// Returns the rings by which they come, each once.
  [[nodiscard]] std::vector<std::shared_ptr<ethernet::Ring>> rings() const;
  /// Returns the ring that the group already comes by, null: none.
  [[nodiscard]] std::shared_ptr<ethernet::Ring> ring_of_group(const SocketAddress& group, int ifindex) const;
  void forget_after_fork() noexcept;

 private:
  bool has_moved(const Attachment& one, ethernet::Ethernet& ethernet);

  KernelSocket& kernel_;
  PolledRings& rings_;
  ReceiveQueue& queue_;
  std::vector<Attachment> attachments_;
};

}  // namespace ringsock::vma
