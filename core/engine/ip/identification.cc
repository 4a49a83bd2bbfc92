#include "core/engine/ip/identification.h"

#include <bit>
#include <cstring>

namespace ringsock::engine {

namespace {

class SipState {
 public:
  explicit SipState(const std::array<std::uint64_t, 2>& key)
      : v0_(key[0] ^ 0x736f6d6570736575),
        v1_(key[1] ^ 0x646f72616e646f6d),
        v2_(key[0] ^ 0x6c7967656e657261),
        v3_(key[1] ^ 0x7465646279746573) {}

  void absorb(std::uint64_t word) {
    v3_ ^= word;
    rounds(2);
    v0_ ^= word;
  }
  std::uint64_t finish() {
    v2_ ^= 0xff;
    rounds(4);
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void rounds(int count) {
    for (; count != 0; --count) {
      v0_ += v1_, v2_ += v3_;
      v1_ = std::rotl(v1_, 13) ^ v0_, v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v1_, v0_ += v3_;
      v1_ = std::rotl(v1_, 17) ^ v2_, v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ = std::rotl(v2_, 32);
    }
  }
  std::uint64_t v0_, v1_, v2_, v3_;
};

/// Returns the first bytes of `bytes` as a little-endian number.
std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t out = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) out |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return out;
}

}  // namespace

std::uint64_t keyed_hash(const std::array<std::uint64_t, 2>& key, std::span<const std::byte> message) {
  SipState state(key);
  const std::uint64_t length_byte = std::uint64_t{message.size() & 0xff} << 56;
  for (; message.size() >= 8; message = message.subspan(8)) state.absorb(little_endian(message.first(8)));
  state.absorb(length_byte | little_endian(message));
  return state.finish();
}

std::uint32_t IdentificationNumbers::next(std::span<const std::byte> flow) {
  auto& counter = counters_[keyed_hash(counter_key_, flow) % kCounters];
  return static_cast<std::uint32_t>(keyed_hash(start_key_, flow)) + counter.fetch_add(1, std::memory_order_relaxed);
}

std::uint16_t IdentificationNumbers::next(wire::Be32 source, wire::Be32 destination, std::uint8_t protocol) {
  const struct {
    wire::Be32 source, destination;
    std::uint8_t protocol;
  } flow{source, destination, protocol};
  return static_cast<std::uint16_t>(next(std::as_bytes(std::span(&flow, 1))));
}

std::uint32_t IdentificationNumbers::next(const wire::Ipv6Address& source, const wire::Ipv6Address& destination) {
  const std::array flow{source, destination};
  return next(std::as_bytes(std::span(flow)));
}

}  // namespace ringsock::engine
