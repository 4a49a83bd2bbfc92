#include "core/device/rdma/open_context.h"

#include <unistd.h>

#include <utility>

#include "core/base/log.h"
#include "core/device/rdma/event_channel.h"

namespace ringsock::rdma {

Result<std::shared_ptr<OpenContext>> OpenContext::open(const Calls& calls, ibv_device& device, const Watcher& watch) {
  ibv_context* const context = calls.open_device(&device);
  if (context == nullptr) return Error::last("ibv_open_device");
  adopt_descriptor(context->cmd_fd);
  adopt_descriptor(context->async_fd);
  std::shared_ptr<OpenContext> opened(new OpenContext(calls, *context));
  if (watch) opened->start_watching(watch);
  return opened;
}

OpenContext::OpenContext(const Calls& calls, ibv_context& context)
    : calls_(calls), context_(&context), owner_(::getpid()), events_(calls, context) {}

OpenContext::~OpenContext() {
  watch_.reset();
  if (is_ours()) calls_.close_device(context_);
}

bool OpenContext::is_ours() const { return ::getpid() == owner_; }

void OpenContext::start_watching(const Watcher& watch) {
  auto watching = watch(context_->async_fd, [self = weak_from_this()] {
    if (const auto context = self.lock()) context->take_events();
  });
  if (!watching) log_warn("RDMA device %s: its failures are noticed late", context_->device->name);
  const std::lock_guard guard(watch_lock_);
  if (!events_.device_has_failed()) watch_ = std::move(watching);
}

void OpenContext::take_events() {
  if (events_.take_all()) return;
  // The descriptor of a removed device stays readable for ever.
  std::shared_ptr<void> ended;
  const std::lock_guard guard(watch_lock_);
  ended.swap(watch_);
}

}  // namespace ringsock::rdma
