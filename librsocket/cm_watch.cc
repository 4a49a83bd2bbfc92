#include "librsocket/cm_watch.h"

#include <sys/epoll.h>

namespace ringsock::rs {

Status CmWatch::start() {
  auto watch = runtime::service_thread().watch(fd_, EPOLLIN, [self = weak_from_this()](std::uint32_t) {
    if (auto watch = self.lock()) watch->serve_();
  });
  if (!watch) return watch.error();
  watch_ = *watch;
  return ok();
}

void CmWatch::stop() { runtime::service_thread().unwatch(watch_); }

}  // namespace ringsock::rs
