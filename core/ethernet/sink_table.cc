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
  const bool is_known = !listing_ || has(sink);
  if (std::find(sinks.begin(), sinks.end(), &sink) == sinks.end()) sinks.push_back(&sink);
  if (!is_known) list_all_waiting(sink);
  place->second.find_only_sink();
  return ok();
}

void SinkTable::detach(const verbs::FlowTuple& tuple, PacketSink& sink) {
  const Key key = key_of(tuple);
  const auto place = entries_.find(key);
  if (place == entries_.end()) return;
  std::erase(place->second.sinks, &sink);
  place->second.find_only_sink();
  if (place->second.sinks.empty()) {
    last_ = nullptr;
    entries_.erase(place);
    if (key.source.port != 0) --exact_;
  }
  if (listing_ && !has(sink)) std::erase(listing_->sinks, &sink);
}

bool SinkTable::has(const PacketSink& sink) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& rule) {
    const auto& sinks = rule.second.sinks;
    return std::find(sinks.begin(), sinks.end(), &sink) != sinks.end();
  });
}

// -- for programs that poll the ring

namespace {
std::vector<PacketSink*> all_of(const auto& entries) {
  std::vector<PacketSink*> out;
  for (const auto& [key, entry] : entries) out.insert(out.end(), entry.sinks.begin(), entry.sinks.end());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}
}  // namespace

void SinkTable::list_all_waiting(PacketSink& sink) const noexcept {
  EventSource* const source = sink.event_source();
  for (std::size_t left = source != nullptr ? source->count_waiting() : 0; left > 0; --left) list(sink);
}

/// Where there is no memory for the place, the packet stays in the socket's queue, and is read in the place of the next
/// one.
void SinkTable::list(PacketSink& sink) const noexcept {
  Listing& listing = *listing_;
  try {
    if (listing.sinks.size() >= listing.limit) {
      std::erase_if(listing.sinks, [](const PacketSink* one) { return !one->has_waiting(); });
      listing.limit = std::max(Listing::kLeastLimit, 2 * listing.sinks.size());
    }
    listing.sinks.push_back(&sink);
  } catch (const std::bad_alloc&) {
  }
}

std::size_t SinkTable::take_events(std::span<SinkEvent> out) {
  if (!listing_) {
    listing_ = std::make_unique<Listing>();
    for (PacketSink* const sink : all_of(entries_)) list_all_waiting(*sink);
  }
  std::size_t count = 0;
  auto& sinks = listing_->sinks;
  while (count < out.size() && !sinks.empty()) {
    EventSource* const source = sinks.front()->event_source();
    if (source != nullptr && source->take_packet(out[count])) ++count;
    sinks.pop_front();
  }
  return count;
}

std::size_t SinkTable::look_elsewhere(std::span<SinkEvent> out) {
  std::size_t count = 0;
  for (PacketSink* const sink : all_of(entries_)) {
    if (count == out.size()) break;
    EventSource* const source = sink->event_source();
    if (source != nullptr && source->look_elsewhere(out[count])) ++count;
  }
  return count;
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
