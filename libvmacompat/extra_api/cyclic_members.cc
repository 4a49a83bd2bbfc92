// Cyclic buffers: members of the Extra API for programs that read many datagrams of constant length at a time.
#include <sys/epoll.h>

#include <algorithm>

#include "core/base/user_memory.h"
#include "core/extra_api/api_call.h"
#include "core/poll/wait.h"
#include "core/runtime/fd_table.h"
#include "libvmacompat/extra_api/members.h"
#include "libvmacompat/extra_api/ring_descriptors.h"
#include "libvmacompat/process/ring_socket.h"
#include "libvmacompat/process/ring_user.h"

namespace ringsock::vma::rings {

namespace {

bool has_cyclic(runtime::Endpoint& endpoint) {
  RingUser* const user = ring_user_of(endpoint);
  return user != nullptr && user->api().has_cyclic();
}

/// Returns the socket that `fd` names: a socket, or the one of a ring that has a cyclic buffer.
/// Errors: EINVAL neither a socket of the library nor a ring; EOPNOTSUPP it has no cyclic buffer.
Result<runtime::Ref> cyclic_socket(int fd) {
  runtime::FdTable::Lookup found = runtime::fd_table().find(fd);
  if (found && ring_user_of(*found) != nullptr) {
    if (has_cyclic(*found)) return runtime::Ref::share(*found);
    return Error{EOPNOTSUPP, "the socket has no cyclic buffer"};
  }
  const auto ring = ring_of_descriptor(fd);
  if (ring == nullptr) return Error{EINVAL, "neither a socket on rings nor a ring"};
  runtime::Ref socket = ring->with_sinks([](const auto& sinks) { return sinks.find_endpoint(has_cyclic); });
  if (!socket) return Error{EOPNOTSUPP, "no socket of the ring has a cyclic buffer"};
  return socket;
}

struct Read {
  std::size_t least, most;
  bool may_wait, wants_time;
};

Result<RingSocket::CyclicBatch> read(runtime::Endpoint& endpoint, const Read& call) {
  RingSocket& socket = ring_user_of(endpoint)->api();
  const auto attempt = [&] { return socket.read_cyclic(call.least, call.most, call.wants_time); };
  auto got = attempt();
  if (runtime::would_block(got) && call.may_wait) {
    const Nanos deadline = runtime::deadline_after(endpoint.receive_timeout());
    return runtime::retry_until_ready(endpoint, EPOLLIN, deadline, attempt);
  }
  if (runtime::would_block(got)) return RingSocket::CyclicBatch{};
  return got;
}

void tell(const RingSocket::CyclicBatch& batch, vma_completion_cb_t& out) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  out = {};
  out.packets = batch.packets;
  if (batch.packets == 0) return;
  out.payload_ptr = batch.payload.data();
  out.payload_length = batch.payload.size();
  if (!batch.headers.empty()) {
    out.usr_hdr_ptr = batch.headers.data();
    out.usr_hdr_ptr_length = batch.headers.size();
  }
  if (batch.time == Nanos::zero()) return;
  out.comp_mask = VMA_CB_MASK_TIMESTAMP;
  out.hw_timestamp = {.tv_sec = batch.time.count() / kSecond, .tv_nsec = batch.time.count() % kSecond};
}

}  // namespace

int vma_cyclic_buffer_read(int fd, vma_completion_cb_t* completion, std::size_t least, std::size_t most, int flags) {
  return extra::api_call([&]() -> Result<int> {
    if (completion == nullptr || most == 0 || least > most) return Error{EINVAL, "vma_cyclic_buffer_read"};
    if (!are_writable(completion)) return Error{EFAULT, "vma_cyclic_buffer_read"};
    if ((flags & ~MSG_DONTWAIT) != 0) return Error{EOPNOTSUPP, "vma_cyclic_buffer_read: flags"};
    const auto socket = cyclic_socket(fd);
    if (!socket) return socket.error();
    const Read call{.least = least,
                    .most = most,
                    .may_wait = (flags & MSG_DONTWAIT) == 0 && !(*socket)->is_nonblocking(),
                    .wants_time = (completion->comp_mask & VMA_CB_MASK_TIMESTAMP) != 0};
    const auto batch = read(**socket, call);
    if (!batch) return batch.error();
    tell(*batch, *completion);
    return 0;
  });
}

int get_mem_info(int fd, void** address, std::size_t* length, std::uint32_t* key) {
  return extra::api_call([&]() -> Result<int> {
    if (address == nullptr || length == nullptr || key == nullptr) return Error{EINVAL, "get_mem_info"};
    if (!are_writable(address) || !are_writable(length) || !are_writable(key)) return Error{EFAULT, "get_mem_info"};
    const auto socket = cyclic_socket(fd);
    if (!socket) return socket.error();
    const auto memory = ring_user_of(**socket)->api().cyclic_memory();
    if (!memory) return memory.error();
    *address = memory->bytes.data();
    *length = memory->bytes.size();
    *key = memory->key;
    return 0;
  });
}

}  // namespace ringsock::vma::rings
