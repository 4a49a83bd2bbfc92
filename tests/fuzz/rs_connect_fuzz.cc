// Private data of a connect request or reply, from a peer that may send anything.
#include <cstdlib>
#include <cstring>
#include <span>

#include "core/wire/rs_connect.h"

using namespace ringsock::wire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed = parse_rs_connect(std::as_bytes(std::span(data, size)));
  const bool acceptable = size >= sizeof(RsConnect) && data[0] == kRsVersion;
  if (static_cast<bool>(parsed) != acceptable) std::abort();
  if (!parsed) return 0;

  // Accepted: the same bytes back, and a table size that is one of the encodable ones.
  if (std::memcmp(&*parsed, data, sizeof(RsConnect)) != 0) std::abort();
  const std::uint32_t entries = decode_iomap_size((*parsed).iomap_size_scaled);
  if (entries > kMaxIomapEntries) std::abort();
  if (decode_iomap_size(encode_iomap_size(entries)) != entries) std::abort();
  return 0;
}
