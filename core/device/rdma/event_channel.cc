#include "core/device/rdma/event_channel.h"

#include <fcntl.h>

#include "core/base/unique_fd.h"

namespace ringsock::rdma {

void adopt_descriptor(int& fd) {
  fd = out_of_the_way(UniqueFd(fd)).release();
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0) ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

Result<EventChannel> EventChannel::create(const Calls& calls) {
  rdma_event_channel* const channel = calls.create_event_channel();
  if (channel == nullptr) return Error::last("rdma_create_event_channel");
  adopt_descriptor(channel->fd);
  return EventChannel(calls, channel);
}

}  // namespace ringsock::rdma
