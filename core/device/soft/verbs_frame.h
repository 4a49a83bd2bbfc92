// The extended verbs_context of the embedded device: what <infiniband/verbs.h> calls through.
#pragma once

#include <infiniband/verbs.h>

namespace ringsock::soft {

class SoftDevice;

/// A verbs_context and its ibv_device. The data path's operations are ours; every extended operation that the device
/// does not have answers EOPNOTSUPP, so that no inline verb calls through null.
class VerbsFrame {
 public:
  VerbsFrame(SoftDevice& device, int async_fd);
  ~VerbsFrame();
  VerbsFrame(const VerbsFrame&) = delete;
  VerbsFrame& operator=(const VerbsFrame&) = delete;

  ibv_context& context() { return frame_.verbs.context; }
  static SoftDevice& device_of(ibv_context& context);

 private:
  /// Standard layout, so that the way from the ibv_context back to the device is well defined.
  struct Frame {
    verbs_context verbs;
    ibv_device device;
    SoftDevice* owner;
  };
  Frame frame_{};
};

}  // namespace ringsock::soft
