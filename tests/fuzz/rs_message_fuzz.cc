// Message words, and the entries that a peer writes into our memory, as it may write anything.
#include <cstdlib>
#include <cstring>

#include "core/wire/rs_message.h"

using namespace ringsock::wire;

namespace {

template <class T>
bool read_as(T& out, const std::uint8_t*& data, std::size_t& size) {
  if (size < sizeof out) return false;
  std::memcpy(&out, data, sizeof out);
  data += sizeof out;
  size -= sizeof out;
  return true;
}

template <class T>
void expect_swapping_twice_changes_nothing(const T& entry) {
  const T twice = swap_bytes(swap_bytes(entry));
  if (std::memcmp(&twice, &entry, sizeof entry) != 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint32_t word;
  while (read_as(word, data, size)) {
    const RsMessage message = decode_rs_message(word);
    if (static_cast<std::uint32_t>(message.opcode) > 7 || message.value > kMaxRsValue) std::abort();
    if (encode_rs_message(message) != word) std::abort();

    PeerIomap entry;
    if (read_as(entry, data, size)) {
      expect_swapping_twice_changes_nothing(entry);
      expect_swapping_twice_changes_nothing(entry.sge);
    }
  }
  return 0;
}
