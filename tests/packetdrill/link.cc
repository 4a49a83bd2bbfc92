#include "tests/packetdrill/link.h"

#include <algorithm>
#include <cstdlib>

#include "tests/packetdrill/option_specs.h"

namespace ringsock::packetdrill {
namespace {

using Kind = OptionSpec::Kind;
std::string flags_text(std::uint8_t flags) {
  std::string out;
  for (const auto& [bit, letter] : {std::pair{engine::tcp::kFin, 'F'},
                                    {engine::tcp::kSyn, 'S'},
                                    {engine::tcp::kRst, 'R'},
                                    {engine::tcp::kPsh, 'P'},
                                    {engine::tcp::kEce, 'E'},
                                    {engine::tcp::kCwr, 'W'},
                                    {engine::tcp::kUrg, 'U'},
                                    {engine::tcp::kAck, '.'}})
    if ((flags & bit) != 0) out += letter;
  return out.empty() ? "-" : out;
}

std::string differs(const std::string& field, const std::string& expected, const std::string& actual) {
  if (expected == actual) return {};
  return "live packet field " + field + ": expected: " + expected + " vs actual: " + actual + "; ";
}

std::string differs(const std::string& field, std::uint32_t expected, std::uint32_t actual) {
  return differs(field, std::to_string(expected), std::to_string(actual));
}

std::string compare_ecn(EcnSpec wanted, std::uint8_t actual) {
  const bool fine = wanted == EcnSpec::any || (wanted == EcnSpec::none && actual == 0) ||
                    (wanted == EcnSpec::ect1 && actual == 1) || (wanted == EcnSpec::ect0 && actual == 2) ||
                    (wanted == EcnSpec::ce && actual == 3) ||
                    (wanted == EcnSpec::ect01 && (actual == 1 || actual == 2));
  return fine ? "" : "live packet field ip_ecn: actual: " + std::to_string(actual) + "; ";
}

std::uint8_t ecn_bits(EcnSpec ecn) {
  if (ecn == EcnSpec::ce) return 3;
  if (ecn == EcnSpec::ect0 || ecn == EcnSpec::ect01) return 2;
  return ecn == EcnSpec::ect1 ? 1 : 0;
}

}  // namespace

/// A stamp that has not been seen counts in ticks from the last one before it.
std::uint32_t Link::live_stamp(std::uint32_t script) const {
  if (stamps.empty()) return script;
  auto found = stamps.upper_bound(script);
  if (found != stamps.begin()) --found;
  if (script == 0 && found->first != 0) return 0;
  return found->second + (script - found->first);
}

/// The script's numbers become those of the wire.
OptionSpec Link::live_option(OptionSpec one) const {
  if (one.kind == Kind::timestamp) one.second = live_stamp(one.second);
  for (auto& [begin, end] : one.blocks) {
    begin += offset();
    end += offset();
  }
  return one;
}

Bytes Link::make(const PacketSpec& spec) const {
  engine::tcp::SegmentOut out;
  out.flags = spec.flags;
  out.seq = spec.seq;
  out.ack = spec.ack.value_or(0) + offset();
  out.window = spec.window.value_or(0);
  out.urgent = spec.urgent.value_or(0);
  Bytes options;
  for (const OptionSpec& one : spec.options) put_option(options, live_option(one));
  if (options.size() % 4 != 0 || options.size() > out.options.size())
    throw ScriptError("TCP options are not padded to 4 bytes, or are too long");
  std::copy(options.begin(), options.end(), out.options.begin());
  out.option_bytes = static_cast<std::uint8_t>(options.size());
  const Bytes payload(spec.bytes, std::byte{'y'});
  out.payload[0] = payload;
  return make_packet(remote, local, out, ecn_bits(spec.ecn));
}

std::string Link::compare_stamp(std::uint32_t script, std::uint32_t live) {
  std::string out;
  if (tick_us != 0 && !stamps.empty()) {
    const auto& [first_script, first_live] = *stamps.begin();
    const std::int64_t wanted = static_cast<std::int32_t>(script - first_script);
    const std::int64_t actual = static_cast<std::int32_t>(live - first_live) * std::int64_t{tick_us} / 1000;
    if (std::abs(wanted - actual) > 4)
      out = differs("tcp_ts_val", script, static_cast<std::uint32_t>(first_script + actual));
  }
  stamps.emplace(script, live);
  return out;
}

std::string Link::compare_options(const PacketSpec& spec, const Arrival& live) {
  const auto options = read_options(live.segment.options);
  std::string out;
  for (const OptionSpec& one : options)
    for (const OptionSpec& wanted : spec.options)
      if (one.kind == Kind::timestamp && wanted.kind == one.kind) out += compare_stamp(wanted.first, one.first);
  if (spec.any_options) return out;
  return out + differs("tcp_options", describe_options(spec.options, false), describe_options(options, false));
}

std::string Link::compare(const PacketSpec& spec, const Arrival& live) {
  const auto& segment = live.segment;
  if (!initial && (segment.flags & engine::tcp::kSyn) != 0) initial = segment.seq - spec.seq;
  const auto counted = [this](std::uint8_t flags) {
    return flags_text(any_push ? static_cast<std::uint8_t>(flags & ~engine::tcp::kPsh) : flags);
  };
  std::string out = differs("tcp_flags", counted(spec.flags), counted(segment.flags));
  out += differs("tcp_seq", spec.seq, segment.seq - offset());
  out += differs("tcp_payload_bytes", spec.bytes, static_cast<std::uint32_t>(segment.payload.size()));
  if (spec.ack) out += differs("tcp_ack_seq", *spec.ack, segment.ack);
  if (spec.window) out += differs("tcp_window", *spec.window, segment.window);
  if (spec.urgent) out += differs("tcp_urg_ptr", *spec.urgent, segment.urgent);
  return out + compare_ecn(spec.ecn, live.ecn) + compare_options(spec, live);
}

std::string Link::describe(const Arrival& live) const {
  const auto& segment = live.segment;
  const std::uint32_t seq = segment.seq - offset();
  const auto bytes = static_cast<std::uint32_t>(segment.payload.size());
  std::string out = flags_text(segment.flags) + ' ' + std::to_string(seq) + ':' + std::to_string(seq + bytes) + '(' +
                    std::to_string(bytes) + ')';
  if ((segment.flags & engine::tcp::kAck) != 0) out += " ack " + std::to_string(segment.ack);
  out += " win " + std::to_string(segment.window);
  if (segment.urgent != 0) out += " urg " + std::to_string(segment.urgent);
  const auto options = read_options(segment.options);
  return options.empty() ? out : out + ' ' + describe_options(options, true);
}

}  // namespace ringsock::packetdrill
