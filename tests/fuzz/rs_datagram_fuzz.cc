// The headers of datagram rsockets, from strangers that may send anything: the first byte chooses which.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "core/wire/rs_datagram.h"
#include "librsocket/datagram/pieces.h"

using namespace ringsock;
using namespace ringsock::wire;

namespace {

bool is_suffix(std::span<const std::byte> part, std::span<const std::byte> all) {
  return part.empty() || (part.data() >= all.data() && part.data() + part.size() == all.data() + all.size());
}

void read_rendezvous(std::span<const std::byte> bytes, const SocketAddress& from) {
  const auto parsed = parse_rs_udp(bytes, from);
  if (!parsed) return;
  const bool is_4 = bytes[4] == std::byte{4};
  const std::size_t header = is_4 ? sizeof(RsUdpHeader4) : sizeof(RsUdpHeader6);
  if (bytes.size() < header || parsed->qp_number > kMaxQpNumber || !is_suffix(parsed->payload, bytes)) std::abort();
  if (parsed->op == RsUdpOp::data && parsed->payload.size() != bytes.size() - header) std::abort();
  // Accepted: we would have written the same, up to what is not read (reserved, the QPN's upper bits, the address).
  const SocketAddress source = is_4 ? SocketAddress::v4(0, 0) : SocketAddress::v6(in6addr_any, 0);
  const RsHeaderBytes again = emit_rs_udp(parsed->op, parsed->qp_number, source, parsed->note);
  if ((std::to_integer<int>(again.room[7]) | 0x80) != (std::to_integer<int>(bytes[7]) | 0x80)) std::abort();
  if (again.length != header || std::memcmp(again.room.data(), bytes.data(), 7) != 0 ||
      std::memcmp(again.room.data() + 9, bytes.data() + 9, 3) != 0)
    std::abort();
}

void read_datagram(std::span<const std::byte> bytes) {
  const auto parsed = parse_rs_ud(bytes);
  if (!parsed) return;
  const std::size_t header = rs_ud_header_bytes(parsed->source.family());
  if (!is_suffix(parsed->payload, bytes) || parsed->payload.size() != bytes.size() - header) std::abort();
  const RsHeaderBytes again = emit_rs_ud(parsed->source);
  if (again.length != header || std::memcmp(again.room.data(), bytes.data(), 4) != 0) std::abort();
  const std::size_t address = header == kRsUdHeader4Bytes ? 4 : 8;  // an IPv6 flow is not kept
  if (std::memcmp(again.room.data() + address, bytes.data() + address, header - address) != 0) std::abort();
}

void read_piece(std::span<const std::byte> bytes) {
  const auto parsed = parse_rs_fragment(bytes);
  if (!parsed) return;
  if (!is_rs_fragment(bytes) || parse_rs_ud(bytes) || !is_suffix(parsed->payload, bytes)) std::abort();
  const std::size_t offset = parsed->index * parsed->piece_bytes;
  if (parsed->total_bytes > kMaxRsLarge || offset + parsed->payload.size() > parsed->total_bytes ||
      parsed->payload.empty())
    std::abort();
  const RsFragment fragment{Be32(parsed->datagram), Be32(static_cast<std::uint32_t>(parsed->total_bytes)),
                            Be16(static_cast<std::uint16_t>(parsed->index)),
                            Be16(static_cast<std::uint16_t>(parsed->piece_bytes))};
  const RsHeaderBytes again = emit_rs_fragment(emit_rs_ud(parsed->source), fragment);
  if (again.length + parsed->payload.size() != bytes.size() || std::memcmp(again.room.data(), bytes.data(), 4) != 0 ||
      std::memcmp(again.room.data() + again.length - sizeof fragment, bytes.data() + again.length - sizeof fragment,
                  sizeof fragment) != 0)
    std::abort();
}

/// Pieces of two senders, one behind the other: each has a length of two bytes before it. Memory stays bounded.
void put_together(std::span<const std::byte> bytes) {
  constexpr std::size_t kLimit = 4096;
  rs::Pieces pieces(kLimit);
  for (int turn = 0; bytes.size() >= 2; ++turn) {
    const std::size_t length = std::min(
        std::to_integer<std::size_t>(bytes[0]) | std::to_integer<std::size_t>(bytes[1]) << 8, bytes.size() - 2);
    const auto parsed = parse_rs_fragment(bytes.subspan(2, length));
    bytes = bytes.subspan(2 + length);
    if (!parsed) continue;
    const auto whole = pieces.add(*parsed, static_cast<std::uint32_t>(turn % 2), std::chrono::milliseconds(100 * turn));
    if (whole && whole->bytes != parsed->total_bytes) std::abort();
    if (pieces.bytes() > kLimit || pieces.under_way() > 2 * rs::Pieces::kMostOfOne) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 6) {
    case 0: read_rendezvous(bytes, SocketAddress::v4(0x7f000001, 1)); break;
    case 1: read_rendezvous(bytes, SocketAddress::v6(in6addr_loopback, 1)); break;
    case 2: read_rendezvous(bytes, SocketAddress::v4(0x7f000001, 1).mapped()); break;
    case 3: read_datagram(bytes); break;
    case 4: read_piece(bytes); break;
    default: put_together(bytes); break;
  }
  return 0;
}
