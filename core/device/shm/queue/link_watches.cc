#include "core/device/shm/queue/link_watches.h"

#include <utility>

namespace ringsock::soft {

Status LinkWatches::watch(const std::shared_ptr<Link>& link) {
  const auto enter = [&](CompletionChannel* channel, std::uint64_t& watch) -> Status {
    if (channel == nullptr) return ok();
    auto entered = channel->watch(link->fd(), [link] { link->drain(); });
    if (!entered) return entered.error();
    watch = *entered;
    return ok();
  };
  if (Status entered = enter(receives_, receive_watch_); !entered) return entered;
  return enter(sends_, send_watch_);
}

void LinkWatches::unwatch(const Link& link) {
  if (receive_watch_ != 0) receives_->unwatch(std::exchange(receive_watch_, 0), link.fd());
  if (send_watch_ != 0) sends_->unwatch(std::exchange(send_watch_, 0), link.fd());
}

}  // namespace ringsock::soft
