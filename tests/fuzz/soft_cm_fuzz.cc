// Packets of the embedded device's connection manager, names of its ports and UD datagrams, from a hostile peer.
// First byte: which parser. Whatever a parser accepts must come back from it after encoding.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/device/shm/cm/cm_wire.h"
#include "core/device/shm/names/port_name.h"
#include "core/device/shm/queue/ud_wire.h"

namespace {

using namespace ringsock;
using namespace ringsock::soft;

void require(bool holds) {
  if (!holds) std::abort();
}

bool same(const PrivateData& a, const PrivateData& b) { return a.size == b.size && a.bytes == b.bytes; }

void request(std::span<const std::byte> bytes) {
  const auto parsed = parse_request(bytes);
  if (!parsed) return;
  require(parsed->private_data.size <= verbs::kMaxRequestPrivateData);
  require(!parsed->source.is_wildcard() && parsed->destination.port() != 0);
  const auto again = parse_request(encode_request(*parsed).view());
  require(again && again->source == parsed->source && again->destination == parsed->destination);
  require(same(again->private_data, parsed->private_data));
  require(std::memcmp(&again->offer, &parsed->offer, sizeof parsed->offer) == 0);
}

void reply(std::span<const std::byte> bytes) {
  const auto parsed = parse_reply(bytes);
  if (!parsed) return;
  const auto again = parse_reply(encode_reply(*parsed).view());
  require(again && std::memcmp(&again->offer, &parsed->offer, sizeof parsed->offer) == 0);
  require(same(again->private_data, parsed->private_data));
}

void reject(std::span<const std::byte> bytes) {
  const auto parsed = parse_reject(bytes);
  if (!parsed) return;
  require(parsed->size <= verbs::kMaxRejectPrivateData);
  const auto again = parse_reject(encode_reject(*parsed).view());
  require(again && same(*again, *parsed));
}

void name(std::span<const std::byte> bytes) {
  const auto parsed = parse_port_name({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!parsed) return;
  const auto again = parse_port_name(listening_name(parsed->binding));
  require(again && again->binding.address == parsed->binding.address);
}

void datagram(std::span<const std::byte> bytes) {
  const auto parsed = parse_datagram(bytes);
  if (!parsed) return;
  require(parsed->payload.size() <= kMaxDatagramBytes &&
          parsed->payload.data() + parsed->payload.size() == bytes.data() + bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 5) {
    case 0: request(rest); break;
    case 1: reply(rest); break;
    case 2: reject(rest); break;
    case 3: name(rest); break;
    default: datagram(rest); break;
  }
  return 0;
}
