#include "tests/packetdrill/option_specs.h"

#include <cstdlib>

namespace ringsock::packetdrill {
namespace {

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

}  // namespace

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

std::string describe_options(const std::vector<OptionSpec>& options, bool with_stamps) {
  std::string out;
  for (const OptionSpec& one : options) out += (out.empty() ? "" : ",") + describe_option(one, with_stamps);
  return '<' + out + '>';
}

void put_option(Bytes& out, const OptionSpec& one) {
  switch (one.kind) {
    case Kind::end: return put(out, kEnd, 1);
    case Kind::nop: return put(out, kNop, 1);
    case Kind::mss: put_head(out, kMss, 4); return put(out, one.first, 2);
    case Kind::window_scale: put_head(out, kWindowScale, 3); return put(out, one.first, 1);
    case Kind::sack_permitted: return put_head(out, kSackPermitted, 2);
    case Kind::timestamp: put_head(out, kTimestamp, 10), put(out, one.first, 4); return put(out, one.second, 4);
    case Kind::sack: put_head(out, kSack, 2 + 8 * one.blocks.size()); break;
    case Kind::fast_open: put_head(out, kFastOpen, 2 + one.cookie.size() / 2); break;
  }
  for (const auto& [begin, end] : one.blocks) put(out, begin, 4), put(out, end, 4);
  const Bytes cookie = from_hex(one.cookie);
  out.insert(out.end(), cookie.begin(), cookie.end());
}

}  // namespace ringsock::packetdrill
