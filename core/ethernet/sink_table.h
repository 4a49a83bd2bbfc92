// Which sockets the packets of a ring are for: by protocol, destination, and source where a rule has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "core/base/result.h"
#include "core/ethernet/packet_sink.h"
#include "core/ethernet/told.h"
#include "core/verbs/flow_rule.h"
#include "core/verbs/handles.h"

namespace ringsock::ethernet {

/// The steering rules of one ring, each with the sockets that want what it brings. Threads: one at a time.
class SinkTable {
 public:
  /// Makes the device's rule when it is the first socket's: `make_flow` is called as Result<verbs::Flow>().
  /// A socket is entered once per rule. Errors: those of `make_flow`.
  Status attach(const verbs::FlowTuple& tuple, PacketSink& sink, const std::function<Result<verbs::Flow>()>& make_flow);
  /// The rule goes with its last socket. Harmless when it is not entered.
  void detach(const verbs::FlowTuple& tuple, PacketSink& sink);
  /// The rule's end, if it is there for this socket only, which stays entered for what has come by it.
  void stop(const verbs::FlowTuple& tuple, PacketSink& sink);
  [[nodiscard]] bool empty() const { return entries_.empty(); }

  /// Gives it to whom it is for. `told` are those with whom it waits now. False: it is for nobody.
  bool deliver(Incoming& incoming, Told& told);

 private:
  /// A rule; `source` of port 0: anybody.
  struct Key {
    wire::EndName destination;
    wire::EndName source;
    std::uint8_t protocol = 0;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  struct Entry {
    verbs::Flow flow;
    bool is_group = false;  ///< multicast, broadcast: all sockets get it
    std::vector<PacketSink*> sinks;
    PacketSink* only_sink = nullptr;  ///< if there is one, and it is no group

    void find_only_sink() { only_sink = sinks.size() == 1 && !is_group ? sinks.front() : nullptr; }
  };

  static Key key_of(const verbs::FlowTuple& tuple);
  const Entry* find(const Packet& packet);
  const Entry* look_up(const Packet& packet);
  /// Among those that accept: the last one, or, if that shares its port, one by the hash of both ends. Null: nobody.
  static PacketSink* choose(const Entry& entry, const Key& ends);
  /// False: refused.
  static bool give(PacketSink& sink, Incoming& incoming, const wire::EndName& source, Told& told);

  std::unordered_map<Key, Entry, Hash> entries_;
  std::size_t exact_ = 0;  ///< entries with a source
  // What find() has found last; no entry goes meanwhile.
  wire::EndBytes last_bytes_;
  Key last_ends_;
  const Entry* last_ = nullptr;
};

/// Most often they are those of the datagram before.
[[gnu::always_inline]] inline const SinkTable::Entry* SinkTable::find(const Packet& packet) {
  if (last_ != nullptr && last_bytes_.are_in(packet.headers, packet.layout)) [[likely]]
    return last_;
  return look_up(packet);
}

[[gnu::always_inline]] inline bool SinkTable::give(PacketSink& sink, Incoming& incoming, const wire::EndName& source,
                                                   Told& told) {
  const Delivery delivery = sink.deliver(incoming, source);
  if (delivery == Delivery::waits) told.add(sink.endpoint());
  return delivery != Delivery::refused;
}

[[gnu::always_inline]] inline bool SinkTable::deliver(Incoming& incoming, Told& told) {
  const Entry* const entry = find(incoming.packet());
  const Key& ends = last_ends_;
  if (entry == nullptr) return false;
  if (entry->only_sink != nullptr) [[likely]]
    return give(*entry->only_sink, incoming, ends.source, told);
  if (!entry->is_group) {
    PacketSink* const sink = choose(*entry, ends);
    return sink != nullptr && give(*sink, incoming, ends.source, told);
  }
  bool any = false;
  incoming.expect_many();
  for (PacketSink* const sink : entry->sinks) any |= give(*sink, incoming, ends.source, told);
  return any;
}

}  // namespace ringsock::ethernet
