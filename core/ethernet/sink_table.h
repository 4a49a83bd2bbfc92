// Finds the sockets for the packets of a ring: by protocol, destination, and by source for rules that have one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/ethernet/packet_sink.h"
#include "core/ethernet/told.h"
#include "core/verbs/flow_rule.h"
#include "core/verbs/handles.h"

namespace ringsock::ethernet {

/// The steering rules of one ring, each with its sockets. Threads: one at a time.
class SinkTable {
 public:
  /// Adds a socket to a rule; a socket is added once per rule. The first socket makes the device's rule by calling
  /// `make_flow`. Errors: those of `make_flow`.
  Status attach(const verbs::FlowTuple& tuple, PacketSink& sink, const std::function<Result<verbs::Flow>()>& make_flow);
  /// Removes a socket from a rule. The rule ends with its last socket. Does nothing when the socket is not there.
  void detach(const verbs::FlowTuple& tuple, PacketSink& sink);
  /// Ends the device's rule if `sink` is its only socket. The socket stays, for packets that have already come.
  void stop(const verbs::FlowTuple& tuple, PacketSink& sink);
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  /// Returns whether a rule that is there already describes some of the packets that `tuple` describes, so that a
  /// packet that has come may be one of them.
  [[nodiscard]] bool has_some_of(const verbs::FlowTuple& tuple) const;

  /// Delivers a packet to its sockets. Adds to `told` the sockets that have kept it. Returns false when no socket takes
  /// it.
  bool deliver(Incoming& incoming, Told& told);

  /// Returns whether any socket has kept packets that nobody has read yet.
  [[nodiscard]] bool has_waiting() const;
  /// From now on the watchers of `follower` are told, too, whenever a socket has kept a packet. There is one follower.
  void set_follower(runtime::Endpoint& follower) {
    if (follower_.get() != &follower) follower_ = runtime::Ref::share(follower);
  }
  /// Returns the follower; empty: there is none.
  [[nodiscard]] runtime::Ref share_follower() const {
    return follower_ ? runtime::Ref::share(*follower_) : runtime::Ref();
  }
  [[nodiscard]] bool is_followed_by(const runtime::Endpoint& other) const { return follower_.get() == &other; }
  /// Ends that. Returns the follower, for a caller that drops the reference without a lock.
  runtime::Ref take_follower() { return std::exchange(follower_, {}); }

  /// Returns the endpoint of the first socket for whose endpoint `is_it` says so, null if there is none.
  template <class IsIt>
  runtime::Ref find_endpoint(IsIt is_it) const {
    for (const auto& [key, entry] : entries_) {
      for (PacketSink* const sink : entry.sinks) {
        if (is_it(sink->endpoint())) return runtime::Ref::share(sink->endpoint());
      }
    }
    return {};
  }

  /// For programs that poll the ring: takes packets that sockets have kept and nobody has read meanwhile, in the order
  /// in which they have come. They are listed from the first call on. Returns their number.
  std::size_t take_events(std::span<SinkEvent> out);
  /// Asks every socket whether something else has happened to it. Returns the number of events.
  std::size_t look_elsewhere(std::span<SinkEvent> out);

 private:
  /// The sockets of packets that wait, oldest first. A packet that was read by another way leaves its place behind.
  struct Listing {
    static constexpr std::size_t kLeastLimit = 4096;
    std::deque<PacketSink*> sinks;
    std::size_t limit = kLeastLimit;  ///< from here on places that have been left are looked for
  };
  /// The key of a rule; `source` with port 0 stands for any source.
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
    bool is_group = false;  ///< multicast or broadcast: all sockets get the packet
    std::vector<PacketSink*> sinks;
    PacketSink* only_sink = nullptr;  ///< set when there is one, and it is no group

    void find_only_sink() { only_sink = sinks.size() == 1 && !is_group ? sinks.front() : nullptr; }
  };

  static Key key_of(const verbs::FlowTuple& tuple);
  const Entry* find(const Packet& packet);
  const Entry* look_up(const Packet& packet);
  /// Chooses among the sockets that accept the packet: the last one, or, if that one shares its port, one by the hash
  /// of both ends. Returns null when none accepts it.
  static PacketSink* choose(const Entry& entry, const Key& ends);
  /// Returns false when the socket refuses the packet.
  bool give(PacketSink& sink, Incoming& incoming, const wire::EndName& source, Told& told) const;
  void tell_of(PacketSink& sink, Told& told) const;
  void list(PacketSink& sink) const noexcept;
  void list_all_waiting(PacketSink& sink) const noexcept;
  [[nodiscard]] bool has(const PacketSink& sink) const;

  std::unordered_map<Key, Entry, Hash> entries_;
  std::size_t exact_ = 0;  ///< number of entries with a source
  // The last result of find(); reset when entries change.
  wire::EndBytes last_bytes_;
  Key last_ends_;
  const Entry* last_ = nullptr;
  runtime::Ref follower_;
  std::unique_ptr<Listing> listing_;  ///< null: nobody polls the ring
};

inline void SinkTable::tell_of(PacketSink& sink, Told& told) const {
  told.add(sink.endpoint());
  if (follower_) [[unlikely]]
    told.add(*follower_);
  if (listing_) [[unlikely]]
    list(sink);
}

/// Most packets have the same ends as the one before.
[[gnu::always_inline]] inline const SinkTable::Entry* SinkTable::find(const Packet& packet) {
  if (last_ != nullptr && last_bytes_.are_in(packet.headers, packet.layout)) [[likely]]
    return last_;
  return look_up(packet);
}

[[gnu::always_inline]] inline bool SinkTable::give(PacketSink& sink, Incoming& incoming, const wire::EndName& source,
                                                   Told& told) const {
  const Delivery delivery = sink.deliver(incoming, source);
  if (delivery == Delivery::waits) tell_of(sink, told);
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
