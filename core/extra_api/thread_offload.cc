#include "core/extra_api/thread_offload.h"

#include <cerrno>
#include <mutex>

namespace ringsock::vma {

Status ThreadOffload::set(pthread_t thread, bool on) {
  const std::lock_guard guard(lock_);
  if (threads_.size() >= kMostThreads && !threads_.contains(thread)) return Error{ENOMEM, "thread_offload: threads"};
  threads_[thread] = on;
  is_used_.store(true, std::memory_order_release);
  return ok();
}

std::optional<bool> ThreadOffload::of_caller() {
  if (!is_used_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard guard(lock_);
  const auto found = threads_.find(::pthread_self());
  return found != threads_.end() ? std::optional(found->second) : std::nullopt;
}

}  // namespace ringsock::vma
