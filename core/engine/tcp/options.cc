#include "core/engine/tcp/options.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ringsock::engine::tcp {
namespace {

enum Kind : std::uint8_t { kEnd = 0, kNop = 1, kMss = 2, kScale = 3, kSackPermitted = 4, kSack = 5, kTimestamps = 8 };
constexpr std::uint32_t kUsualTimestamps = kNop << 24 | kNop << 16 | kTimestamps << 8 | 10;

std::uint32_t read_word(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return std::endian::native == std::endian::little ? __builtin_bswap32(value) : value;
}

std::uint32_t read_number(std::span<const std::byte> bytes, std::size_t at, std::size_t count) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[at + i]);
  return value;
}

void read_sack(std::span<const std::byte> value, Options& out) {
  if (value.size() % 8 != 0) return;
  for (std::size_t at = 0; at < value.size() && out.sack_count < out.sack.size(); at += 8)
    out.sack[out.sack_count++] = {read_number(value, at, 4), read_number(value, at + 4, 4)};
}

void read_option(std::uint8_t kind, std::span<const std::byte> value, Options& out) {
  if (kind == kMss && value.size() == 2) out.mss = static_cast<std::uint16_t>(read_number(value, 0, 2));
  if (kind == kScale && value.size() == 1)
    out.window_scale = std::min<std::uint8_t>(std::to_integer<std::uint8_t>(value[0]), 14);  // RFC 7323, 2.3
  if (kind == kSackPermitted && value.empty()) out.sack_permitted = true;
  if (kind == kSack) read_sack(value, out);
  if (kind != kTimestamps || value.size() != 8) return;
  out.timestamps = true;
  out.ts_value = read_number(value, 0, 4);
  out.ts_echo = read_number(value, 4, 4);
}

/// Appends to a fixed array.
struct Writer {
  std::array<std::byte, kMostOptionBytes>& out;
  std::uint8_t size = 0;

  void word(std::uint32_t value) {
    const std::uint32_t ordered = std::endian::native == std::endian::little ? __builtin_bswap32(value) : value;
    std::memcpy(out.data() + size, &ordered, sizeof ordered);
    size += sizeof ordered;
  }
  void number(std::uint32_t value, int bytes) {
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out[size++] = static_cast<std::byte>(value >> shift);
  }
  void header(std::uint8_t kind, std::uint8_t length) {
    number(kind, 1);
    number(length, 1);
  }
  void pad() {
    while (size % 4 != 0) number(kNop, 1);
  }
};

void write_handshake(const Options& options, Writer& to) {
  if (options.mss != 0) {
    to.header(kMss, 4);
    to.number(options.mss, 2);
  }
  if (options.sack_permitted) {
    if (!options.timestamps) to.number(kNop << 8 | kNop, 2);
    to.header(kSackPermitted, 2);
  }
}

void write_timestamps(const Options& options, Writer& to) {
  if (!options.sack_permitted) to.number(kNop << 8 | kNop, 2);
  to.header(kTimestamps, 10);
  to.word(options.ts_value);
  to.word(options.ts_echo);
}

void write_sack(const Options& options, Writer& to) {
  const std::size_t fit = (kMostOptionBytes - to.size - 4) / 8;
  const auto count = static_cast<std::uint8_t>(std::min<std::size_t>(options.sack_count, fit));
  if (count == 0) return;
  to.number(kNop << 8 | kNop, 2);
  to.header(kSack, static_cast<std::uint8_t>(2 + 8 * count));
  for (std::size_t i = 0; i < count; ++i) {
    to.word(options.sack[i].begin);
    to.word(options.sack[i].end);
  }
}

}  // namespace

Options parse_options(std::span<const std::byte> bytes) {
  Options out;
  if (bytes.empty()) return out;
  if (bytes.size() == 12 && read_word(bytes, 0) == kUsualTimestamps) {  // RFC 7323, appendix A
    out.timestamps = true;
    out.ts_value = read_word(bytes, 4);
    out.ts_echo = read_word(bytes, 8);
    return out;
  }
  bytes = bytes.first(std::min(bytes.size(), kMostOptionBytes));
  while (!bytes.empty()) {
    const auto kind = std::to_integer<std::uint8_t>(bytes[0]);
    if (kind == kEnd) break;
    if (kind == kNop) {
      bytes = bytes.subspan(1);
      continue;
    }
    if (bytes.size() < 2) break;
    const auto length = std::to_integer<std::size_t>(bytes[1]);
    if (length < 2 || length > bytes.size()) break;
    read_option(kind, bytes.subspan(2, length - 2), out);
    bytes = bytes.subspan(length);
  }
  return out;
}

std::uint8_t emit_options(const Options& options, std::array<std::byte, kMostOptionBytes>& out) {
  Writer to{out};
  write_handshake(options, to);
  if (options.timestamps) write_timestamps(options, to);
  if (options.window_scale) {
    to.number(kNop, 1);
    to.header(kScale, 3);
    to.number(*options.window_scale, 1);
  }
  if (options.sack_count != 0) write_sack(options, to);
  to.pad();
  return to.size;
}

}  // namespace ringsock::engine::tcp
