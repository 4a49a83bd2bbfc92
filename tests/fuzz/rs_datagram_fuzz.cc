// The headers of datagram rsockets, from strangers that may send anything: the first byte chooses which.
#include <cstdlib>
#include <cstring>
#include <span>

#include "core/wire/rs_datagram.h"

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
  const RsHeaderBytes again = emit_rs_udp(parsed->op, parsed->qp_number, source);
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 4) {
    case 0: read_rendezvous(bytes, SocketAddress::v4(0x7f000001, 1)); break;
    case 1: read_rendezvous(bytes, SocketAddress::v6(in6addr_loopback, 1)); break;
    case 2: read_rendezvous(bytes, SocketAddress::v4(0x7f000001, 1).mapped()); break;
    default: read_datagram(bytes); break;
  }
  return 0;
}
