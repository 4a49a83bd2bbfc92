#include "librsocket/iomap.h"

#include <algorithm>
#include <cerrno>

namespace ringsock::rs {

Result<std::uint32_t> IoMap::free_slot() const {
  for (std::uint32_t slot = 0; slot < connection_.tables().peer_iomap_entries(); ++slot) {
    const bool taken = std::any_of(mappings_.begin(), mappings_.end(),
                                   [&](const Mapping& mapping) { return mapping.for_peer && mapping.slot == slot; });
    if (!taken) return slot;
  }
  return Error{ENOMEM, "riomap: the peer has no free slot"};
}

Result<off_t> IoMap::map(void* data, std::size_t length, bool for_peer, off_t offset) {
  const off_t chosen = offset == -1 ? static_cast<off_t>(reinterpret_cast<std::uintptr_t>(data)) : offset;
  Result<std::uint32_t> slot = for_peer ? free_slot() : Result<std::uint32_t>(0u);
  if (!slot) return slot.error();
  const int access = for_peer ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_LOCAL_WRITE;
  auto registration = connection_.register_memory(data, length, access);
  if (!registration) return registration.error();
  if (for_peer) {
    const wire::PeerIomap entry{
        static_cast<std::uint64_t>(chosen),
        {reinterpret_cast<std::uintptr_t>(data), (*registration)->rkey, static_cast<std::uint32_t>(length)}};
    if (Status sent = connection_.tables().send_iomap(*slot, entry); !sent) return sent.error();
  }
  mappings_.push_back({data, length, for_peer, *slot, *std::move(registration)});
  return chosen;
}

Status IoMap::unmap(void* data, std::size_t length) {
  const auto found = std::find_if(mappings_.begin(), mappings_.end(), [&](const Mapping& mapping) {
    return mapping.data == data && mapping.length == length;
  });
  if (found == mappings_.end()) return Error{EINVAL, "riounmap: not mapped"};
  if (found->for_peer && connection_.ends().failure() == 0 && !connection_.ends().peer_disconnected()) {
    if (Status sent = connection_.tables().send_iomap(found->slot, {}); !sent && sent.error().code == EAGAIN)
      return sent;
  }
  mappings_.erase(found);
  return ok();
}

}  // namespace ringsock::rs
