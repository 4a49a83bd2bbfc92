// SocketXtreme: members of the Extra API that give a program the packets of all sockets of a ring.
#include <algorithm>
#include <span>

#include "core/base/notice.h"
#include "core/base/user_memory.h"
#include "core/extra_api/api_call.h"
#include "core/extra_api/extra_api.h"
#include "core/extra_api/lent_packets.h"
#include "core/extra_api/members.h"
#include "core/extra_api/polled_ring.h"
#include "core/runtime/fd_table.h"

namespace ringsock::vma::extra {

namespace {

/// Carries out `body()` if VMA_SOCKETXTREME is set.
template <class Body>
int event_call(Body body) {
  return api_call([&]() -> Result<int> {
    const ApiLibrary& library = library_of_extra_api();
    if (library.has_events()) [[likely]]
      return body();
    if (is_first(Notice::no_socketxtreme)) library.warn("the functions of SocketXtreme need VMA_SOCKETXTREME=1");
    return Error{EOPNOTSUPP, "SocketXtreme"};
  });
}

/// Drops one reference of each of the packet's buffers.
Result<int> free_one(const vma_packet_desc_t& packet) {
  if (packet.num_bufs == 0) return 0;
  if (!lent_packets().drop_list(packet.buff_lst)) return Error{EINVAL, "socketxtreme_free_vma_packets"};
  return 0;
}

}  // namespace

int socketxtreme_poll(int ring_fd, vma_completion_t* completions, unsigned int count, int) {
  return event_call([&]() -> Result<int> {
    if (completions == nullptr || count == 0) return Error{EINVAL, "socketxtreme_poll"};
    // Only as many as fit are written, so a count beyond the array does no harm until there are as many packets.
    if (!are_writable(completions)) return Error{EFAULT, "socketxtreme_poll"};
    runtime::FdTable::Lookup found = runtime::fd_table().find(ring_fd);
    PolledRing* const ring = found ? found->as_polled_ring() : nullptr;
    if (ring == nullptr) return Error{EBADFD, "socketxtreme_poll: no ring"};
    found.pin();
    const auto filled = ring->collect(std::span(completions, std::min(count, static_cast<unsigned>(INT32_MAX))));
    return filled ? Result<int>(static_cast<int>(*filled)) : filled.error();
  });
}

int socketxtreme_free_vma_packets(vma_packet_desc_t* packets, int count) {
  return event_call([&]() -> Result<int> {
    if (packets == nullptr || count < 0) return Error{EINVAL, "socketxtreme_free_vma_packets"};
    for (int i = 0; i < count; ++i) {
      if (!are_readable(&packets[i])) return Error{EFAULT, "socketxtreme_free_vma_packets"};
      if (auto freed = free_one(packets[i]); !freed) return freed;
    }
    return 0;
  });
}

int socketxtreme_ref_vma_buff(vma_buff_t* buffer) {
  return event_call([&]() -> Result<int> {
    const auto left = lent_packets().add_reference(buffer);
    return left ? Result<int>(*left) : Error{EINVAL, "socketxtreme_ref_vma_buff"};
  });
}

int socketxtreme_free_vma_buff(vma_buff_t* buffer) {
  return event_call([&]() -> Result<int> {
    const auto left = lent_packets().drop_reference(buffer);
    return left ? Result<int>(*left) : Error{EINVAL, "socketxtreme_free_vma_buff"};
  });
}

}  // namespace ringsock::vma::extra
