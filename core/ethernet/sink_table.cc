#include "core/ethernet/sink_table.h"

#include <algorithm>
#include <cstdint>

namespace ringsock::ethernet {

std::size_t SinkTable::Hash::operator()(const Key& key) const noexcept {
  // Multiplicative hashing (Knuth), because the addresses and ports differ in few bits.
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;
  std::uint64_t mixed = 0;
  for (const wire::EndName* end : {&key.destination, &key.source}) {
    for (const std::uint64_t word : {end->address[0], end->address[1], std::uint64_t{end->port}}) {
      mixed = (mixed ^ word) * kFactor;
      mixed ^= mixed >> 29;
    }
  }
  mixed = (mixed ^ key.protocol) * kFactor;
  return mixed ^ mixed >> 29;
}

SinkTable::Key SinkTable::key_of(const verbs::FlowTuple& tuple) {
  return {wire::EndName::of(tuple.destination),
          tuple.source.is_unspecified() ? wire::EndName{} : wire::EndName::of(tuple.source), tuple.protocol};
}

Status SinkTable::attach(const verbs::FlowTuple& tuple, PacketSink& sink,
                         const std::function<Result<verbs::Flow>()>& make_flow) {
  const Key key = key_of(tuple);
  last_ = nullptr;
  auto place = entries_.find(key);
  if (place == entries_.end()) {
    auto flow = make_flow();
    if (!flow) return flow.error();
    Entry entry;
    entry.flow = *std::move(flow);
    entry.is_group = tuple.destination_mac && (tuple.destination_mac->front() & 1) != 0;
    place = entries_.emplace(key, std::move(entry)).first;
    if (key.source.port != 0) ++exact_;
  }
  auto& sinks = place->second.sinks;
  if (std::find(sinks.begin(), sinks.end(), &sink) == sinks.end()) sinks.push_back(&sink);
  place->second.find_only_sink();
  return ok();
}

void SinkTable::detach(const verbs::FlowTuple& tuple, PacketSink& sink) {
  const Key key = key_of(tuple);
  const auto place = entries_.find(key);
  if (place == entries_.end()) return;
  std::erase(place->second.sinks, &sink);
  place->second.find_only_sink();
  if (!place->second.sinks.empty()) return;
  last_ = nullptr;
  entries_.erase(place);
  if (key.source.port != 0) --exact_;
}

void SinkTable::stop(const verbs::FlowTuple& tuple, PacketSink& sink) {
  const auto place = entries_.find(key_of(tuple));
  if (place != entries_.end() && place->second.sinks == std::vector{&sink}) place->second.flow.reset();
}

/// Packets of a rule with a source are that rule's, whatever other rules there are.
bool SinkTable::has_some_of(const verbs::FlowTuple& tuple) const {
  const Key key = key_of(tuple);
  return entries_.contains(key) || entries_.contains({key.destination, wire::EndName{}, key.protocol});
}

bool SinkTable::has_waiting() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const auto& rule) {
    const auto& sinks = rule.second.sinks;
    return std::any_of(sinks.begin(), sinks.end(), [](const PacketSink* sink) { return sink->has_waiting(); });
  });
}

const SinkTable::Entry* SinkTable::look_up(const Packet& packet) {
  last_bytes_ = wire::EndBytes(packet.headers, packet.layout);
  last_ends_ = {wire::destination_name(packet.headers, packet.layout), wire::source_name(packet.headers, packet.layout),
                packet.layout.protocol};
  auto place = exact_ > 0 ? entries_.find(last_ends_) : entries_.end();
  if (place == entries_.end()) place = entries_.find({last_ends_.destination, wire::EndName{}, last_ends_.protocol});
  last_ = place == entries_.end() ? nullptr : &place->second;
  return last_;
}

PacketSink* SinkTable::choose(const Entry& entry, const Key& ends) {
  const auto accepts = [&](const PacketSink* sink) { return sink->accepts(ends.source); };
  const auto last = std::find_if(entry.sinks.rbegin(), entry.sinks.rend(), accepts);
  if (last == entry.sinks.rend() || !(*last)->shares_port()) return last == entry.sinks.rend() ? nullptr : *last;
  const auto shares = [&](const PacketSink* sink) { return sink->shares_port() && accepts(sink); };
  const auto sharing = static_cast<std::size_t>(std::count_if(entry.sinks.begin(), entry.sinks.end(), shares));
  if (sharing == 0) return *last;  // SO_REUSEPORT was switched off meanwhile
  std::size_t turn = Hash()(ends) % sharing;
  for (PacketSink* const sink : entry.sinks) {
    if (shares(sink) && turn-- == 0) return sink;
  }
  return nullptr;
}

}  // namespace ringsock::ethernet
