// The extended verbs_context of a packet device: what <infiniband/verbs.h> calls through.
#pragma once

#include <infiniband/verbs.h>

namespace ringsock::soft {

class PacketDevice;

/// A verbs_context and its ibv_device. Operations that the device does not have answer EOPNOTSUPP.
class PacketVerbs {
 public:
  PacketVerbs(PacketDevice& device, const char* interface, int async_fd);
  ~PacketVerbs();
  PacketVerbs(const PacketVerbs&) = delete;
  PacketVerbs& operator=(const PacketVerbs&) = delete;

  ibv_context& context() { return frame_.verbs.context; }

 private:
  friend PacketDevice& packet_device_of(ibv_context& context);
  /// Standard layout, so that the way from the ibv_context back to the device is well defined.
  struct Frame {
    verbs_context verbs;
    ibv_device device;
    PacketDevice* owner;
  };
  Frame frame_{};
};

PacketDevice& packet_device_of(ibv_context& context);

}  // namespace ringsock::soft
