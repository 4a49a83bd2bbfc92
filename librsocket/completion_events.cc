#include "librsocket/completion_events.h"

#include <cerrno>
#include <utility>

namespace ringsock::rs {

Status CompletionEvents::create(verbs::Device& device, unsigned entries, void* context) {
  if (!device.traits().wakes_through_connection) {
    auto channel = device.create_comp_channel();
    if (!channel) return channel.error();
    channel_ = *std::move(channel);
  }
  auto cq = device.create_cq(static_cast<int>(entries), context, channel_.get(), 0);
  if (!cq) return cq.error();
  cq_ = *std::move(cq);
  return ok();
}

void CompletionEvents::arm() {
  // After any other failure the queue pair makes no more completions, which the caller's last look finds.
  if (ibv_req_notify_cq(cq_.get(), 0) == EAGAIN) must_look_again_.store(true, std::memory_order_relaxed);
}

void CompletionEvents::resume() {
  if (std::exchange(arms_on_resume_, false)) arm();
}

void CompletionEvents::woken(verbs::Device& device) {
  if (!channel_) return;
  while (auto cq = device.get_cq_event(*channel_)) device.ack_cq_events(**cq, 1);
}

}  // namespace ringsock::rs
