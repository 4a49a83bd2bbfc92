#include "tests/packetdrill/link.h"

#include <algorithm>
#include <cstdlib>

namespace ringsock::packetdrill {
namespace {

using engine::tcp::Flag;
using Kind = OptionSpec::Kind;
enum Number : std::uint8_t { kEnd, kNop, kMss, kWindowScale, kSackPermitted, kSack, kTimestamp = 8, kFastOpen = 34 };

void put(Bytes& out, std::uint32_t value, int count) {
  for (int shift = 8 * (count - 1); shift >= 0; shift -= 8) out.push_back(static_cast<std::byte>(value >> shift));
}

std::uint32_t get(std::span<const std::byte> bytes, std::size_t at, std::size_t count) {
  std::uint32_t value = 0;
  for (std::size_t i = at; i < at + count; ++i)
    value = value << 8 | (i < bytes.size() ? std::to_integer<std::uint32_t>(bytes[i]) : 0);
  return value;
}

void put_head(Bytes& out, Number kind, std::size_t length) {
  put(out, kind, 1);
  put(out, static_cast<std::uint32_t>(length), 1);
}

std::string hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const std::byte byte : bytes) {
    out += kDigits[std::to_integer<std::size_t>(byte) >> 4];
    out += kDigits[std::to_integer<std::size_t>(byte) & 15];
  }
  return out;
}

Bytes from_hex(const std::string& text) {
  Bytes out;
  for (std::size_t at = 0; at + 1 < text.size(); at += 2)
    out.push_back(static_cast<std::byte>(std::strtoul(text.substr(at, 2).c_str(), nullptr, 16)));
  return out;
}

OptionSpec read_option(std::uint8_t kind, std::span<const std::byte> data) {
  OptionSpec out{.kind = Kind::nop, .blocks = {}, .cookie = {}};
  if (kind == kMss) {
    out = {.kind = Kind::mss, .first = get(data, 0, 2), .blocks = {}, .cookie = {}};
  } else if (kind == kWindowScale) {
    out = {.kind = Kind::window_scale, .first = get(data, 0, 1), .blocks = {}, .cookie = {}};
  } else if (kind == kSackPermitted) {
    out.kind = Kind::sack_permitted;
  } else if (kind == kTimestamp) {
    out = {.kind = Kind::timestamp, .first = get(data, 0, 4), .second = get(data, 4, 4), .blocks = {}, .cookie = {}};
  } else if (kind == kSack) {
    out.kind = Kind::sack;
    for (std::size_t at = 0; at + 8 <= data.size(); at += 8)
      out.blocks.emplace_back(get(data, at, 4), get(data, at + 4, 4));
  } else {
    out = {.kind = Kind::fast_open, .first = kind, .blocks = {}, .cookie = hex(data)};
  }
  return out;
}

std::vector<OptionSpec> read_options(std::span<const std::byte> bytes) {
  std::vector<OptionSpec> out;
  while (!bytes.empty()) {
    const auto kind = std::to_integer<std::uint8_t>(bytes[0]);
    if (kind <= kNop) {
      out.push_back({.kind = kind == kNop ? Kind::nop : Kind::end, .blocks = {}, .cookie = {}});
      bytes = bytes.subspan(1);
      continue;
    }
    const std::size_t length = bytes.size() > 1 ? std::to_integer<std::size_t>(bytes[1]) : 0;
    if (length < 2 || length > bytes.size()) return out;
    out.push_back(read_option(kind, bytes.subspan(2, length - 2)));
    bytes = bytes.subspan(length);
  }
  return out;
}

std::string describe_option(const OptionSpec& one, bool with_stamp) {
  const auto text = [](std::uint32_t value) { return std::to_string(value); };
  switch (one.kind) {
    case Kind::end: return "eol";
    case Kind::nop: return "nop";
    case Kind::mss: return "mss " + text(one.first);
    case Kind::window_scale: return "wscale " + text(one.first);
    case Kind::sack_permitted: return "sackOK";
    case Kind::timestamp: return "TS " + (with_stamp ? "val " + text(one.first) + ' ' : "") + "ecr " + text(one.second);
    case Kind::fast_open: return "FO " + one.cookie;
    case Kind::sack: break;
  }
  std::string out = "sack";
  for (const auto& [begin, end] : one.blocks) out += ' ' + text(begin) + ':' + text(end);
  return out;
}

std::string describe_options(const std::vector<OptionSpec>& options, bool with_stamps) {
  std::string out;
  for (const OptionSpec& one : options) out += (out.empty() ? "" : ",") + describe_option(one, with_stamps);
  return '<' + out + '>';
}

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

}  // namespace

/// A stamp that has not been seen counts in ticks from the last one before it.
std::uint32_t Link::live_stamp(std::uint32_t script) const {
  if (stamps.empty()) return script;
  auto found = stamps.upper_bound(script);
  if (found != stamps.begin()) --found;
  if (script == 0 && found->first != 0) return 0;
  return found->second + (script - found->first);
}

Bytes Link::make(const PacketSpec& spec) const {
  engine::tcp::SegmentOut out;
  out.flags = spec.flags;
  out.seq = spec.seq;
  out.ack = spec.ack.value_or(0) + offset();
  out.window = spec.window.value_or(0);
  out.urgent = spec.urgent.value_or(0);
  Bytes options;
  for (const OptionSpec& one : spec.options) {
    switch (one.kind) {
      case Kind::end: put(options, kEnd, 1); break;
      case Kind::nop: put(options, kNop, 1); break;
      case Kind::mss: put_head(options, kMss, 4), put(options, one.first, 2); break;
      case Kind::window_scale: put_head(options, kWindowScale, 3), put(options, one.first, 1); break;
      case Kind::sack_permitted: put_head(options, kSackPermitted, 2); break;
      case Kind::timestamp:
        put_head(options, kTimestamp, 10), put(options, one.first, 4), put(options, live_stamp(one.second), 4);
        break;
      case Kind::sack:
        put_head(options, kSack, 2 + 8 * one.blocks.size());
        for (const auto& [begin, end] : one.blocks) put(options, begin + offset(), 4), put(options, end + offset(), 4);
        break;
      case Kind::fast_open: {
        const Bytes cookie = from_hex(one.cookie);
        put_head(options, kFastOpen, 2 + cookie.size());
        options.insert(options.end(), cookie.begin(), cookie.end());
      }
    }
  }
  if (options.size() % 4 != 0 || options.size() > out.options.size())
    throw ScriptError("TCP options are not padded to 4 bytes, or are too long");
  std::copy(options.begin(), options.end(), out.options.begin());
  out.option_bytes = static_cast<std::uint8_t>(options.size());
  const Bytes payload(spec.bytes, std::byte{'y'});
  out.payload[0] = payload;
  const std::uint8_t ecn = spec.ecn == EcnSpec::ce     ? 3
                           : spec.ecn == EcnSpec::ect1 ? 1
                           : spec.ecn == EcnSpec::ect0 ? 2
                                                       : 0;
  return make_packet(remote, local, out, ecn);
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
