// The entries of a queue pair's link in the completion channels of its completion queues.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/result.h"
#include "core/device/common/completion_channel.h"
#include "core/device/shm/link/link.h"

namespace ringsock::soft {

/// Channels drain the link when it is readable. Threads: one at a time.
class LinkWatches {
 public:
  /// @param receives, sends  the channels of both queues, perhaps null, perhaps the same. They must exist until
  /// unwatch().
  LinkWatches(CompletionChannel* receives, CompletionChannel* sends)
      : receives_(receives), sends_(sends == receives ? nullptr : sends) {}
  /// Errors: those of CompletionChannel::watch().
  Status watch(const std::shared_ptr<Link>& link);
  void unwatch(const Link& link);

 private:
  CompletionChannel* receives_;
  CompletionChannel* sends_;                          ///< null: the same
  std::uint64_t receive_watch_ = 0, send_watch_ = 0;  ///< 0: none
};

}  // namespace ringsock::soft
